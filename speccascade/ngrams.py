"""Counts a text into an n-gram model: a drafter, and Max-Gram's bigrams.

  python -m speccascade.ngrams --gin_file=configs/runs/ngrams.gin \\
    --gin.MIXTURE_OR_TASK_NAME='"speccascade_en_de"' \\
    --gin.OUTPUT_FILE='"/tmp/bigrams.npz"'

The text is a split of a seqio task, or a file (--gin.INPUT_FILE, which needs a
--gin.VOCABULARY). The .npz file is written whole or not at all. A Cascade reads
it as `bigrams` (the likeliest next tokens) or as `ngrams` (the whole model).
"""

from speccascade import cli


def main():
  """Builds the model that gin configures, and prints what was counted."""
  from speccascade.training import ngram_files

  print(ngram_files.describe(cli.configure(ngram_files.build)()))


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/ngrams.gin")
