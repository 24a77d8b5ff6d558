"""From points to result rows: decode, time and score."""
