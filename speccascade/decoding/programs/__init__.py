"""The table of methods, and each method as a compiled program."""
