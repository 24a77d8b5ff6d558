"""The command that makes a SentencePiece vocabulary from text files."""
