"""What texts are held to: stops, masks, grammars, as automata over tokens."""
