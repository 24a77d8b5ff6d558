"""Tasks, vocabularies and the arrays that training and decoding consume."""
