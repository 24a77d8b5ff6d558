"""Plans of memory, formats of other projects, T5X, and examples."""
