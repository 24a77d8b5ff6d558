"""Laws of tokens: filtered, mixed by a deferral rule, and drawn from."""
