"""Executions: the compiled loops that write tokens round by round."""
