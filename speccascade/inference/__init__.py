"""What the products share: one way from a pair, inputs and a point to a row."""
