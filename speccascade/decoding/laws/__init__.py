"""Distributions of tokens: filtered, mixed by a deferral rule, drawn from."""
