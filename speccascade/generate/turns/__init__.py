"""One text at a time, as it is decoded, and turn after turn."""
