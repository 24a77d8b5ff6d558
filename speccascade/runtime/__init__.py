"""Files, folders, processes, memory, progress and signals of a run."""
