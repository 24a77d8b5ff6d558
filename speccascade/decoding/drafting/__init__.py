"""Drafters, which propose blocks of tokens, and how their models catch up."""
