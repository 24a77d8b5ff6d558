"""Settings that check themselves."""
