"""A point of a trade-off: the method, its settings, its costs, its advice."""
