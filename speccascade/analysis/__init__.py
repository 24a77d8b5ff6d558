"""Closed forms of the papers on scalars: block lengths, speed-ups, EWIF, SWI.

Plain NumPy: nothing here needs an accelerator or a model.
"""
