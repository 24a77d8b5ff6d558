"""Judges samplers: what is a sampler's exact distribution, and is it right."""
