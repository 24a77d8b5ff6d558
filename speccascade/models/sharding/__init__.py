"""Where the arrays of a model lie on several devices."""
