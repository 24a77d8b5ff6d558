"""Curves of a pair: what is measured, in what order, resumable."""
