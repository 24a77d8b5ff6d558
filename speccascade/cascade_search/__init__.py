"""The search for K and lenience of a cascade of drafters."""
