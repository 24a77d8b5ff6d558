"""Experiments: measuring, result rows, search, reports."""
