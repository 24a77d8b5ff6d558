"""Measures points: decodes, times and scores them, and makes their rows."""
