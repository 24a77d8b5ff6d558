"""Small races that run from one command: a trained pair, and SmolLM2."""
