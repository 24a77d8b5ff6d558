"""A small pair trained on the built-in task, and a dozen methods measured."""
