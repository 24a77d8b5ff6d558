"""Searches: which method, alpha, gamma, tree or cascade of drafters pays."""
