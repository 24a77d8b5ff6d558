"""Tasks of seqio, few-shot prompts, and the generated task."""
