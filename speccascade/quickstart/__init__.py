"""A small pair trained on the built-in task, and every method measured."""
