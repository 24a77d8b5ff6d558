"""The review of a block: score it, accept a prefix of it, draw one token."""
