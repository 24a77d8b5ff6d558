"""Sweeps: which points of a pair of models are measured, and in what order."""
