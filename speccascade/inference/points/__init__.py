"""A point of a trade-off, and the settings of a run."""
