"""What rooms pass on: models, drafters, trees, blocks, settings, tokens."""
