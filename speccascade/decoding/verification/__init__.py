"""The review of a block: score it, accept a prefix, draw a token."""
