"""Learned rules: what a pair does on right texts, and a rule fitted to it."""
