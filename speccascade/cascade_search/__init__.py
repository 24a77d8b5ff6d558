"""The search for the matrix K and the lenience of a cascade of drafters."""
