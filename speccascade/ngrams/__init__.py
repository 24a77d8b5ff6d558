"""N-gram models counted from text: drafters, and Max-Gram's bigrams."""
