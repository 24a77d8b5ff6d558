"""Shared records: models, drafters, trees, blocks, settings, tokens."""
