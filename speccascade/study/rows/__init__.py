"""Result rows, records of decoded texts, and the folders that hold them."""
