"""Drafters that review: a pair inside a drafter, and cascades of them."""
