"""Trains a small pair on the built-in task, and compares a dozen methods."""
