"""Quality of texts, efficiency of decoding, wall-clock time: what rows hold."""
