"""Source texts, and the batches in which they are decoded."""
