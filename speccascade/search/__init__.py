"""What sweeps, advice and the search for cascades share: points and rows."""
