"""The papers' formulas: block lengths, speed-ups, EWIF, SWI, and lemmas.

Nothing here needs a model or an accelerator. The formulas on scalars are NumPy
in float64; the lemmas on distributions, in `theory`, are JAX.
"""
