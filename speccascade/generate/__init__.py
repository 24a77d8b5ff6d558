"""Generation with a pair of models: sessions, batches, points, turns."""
