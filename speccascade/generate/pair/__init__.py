"""The drafter and the verifier of a run: reading, checking, combining them."""
