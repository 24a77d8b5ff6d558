"""Drafters: who proposes a block, and how their models catch up."""
