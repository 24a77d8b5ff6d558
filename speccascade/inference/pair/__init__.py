"""The drafter and the verifier of a run: how they are read and checked."""
