"""Text and tokens: vocabularies, prompts, conversations."""
