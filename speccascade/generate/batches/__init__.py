"""The examples of a run, and the batches in which they are decoded."""
