"""Advice: which method, alpha, gamma and drafter pay, and how much."""
