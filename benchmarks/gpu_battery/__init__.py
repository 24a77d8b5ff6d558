"""A battery of measurements for one GPU, see `__main__.py`."""
