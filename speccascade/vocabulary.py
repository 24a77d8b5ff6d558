"""Makes a SentencePiece vocabulary from text files, as VOCABULARY takes it.

  python -m speccascade.vocabulary --text_files data/train \\
    --vocab_size=4000 --output_file=data/pieces.model

A text file is one of: lines, plain or .gz; JSON lines with inputs and targets,
.jsonl or .jsonl.gz; or data/train, which stands for data/train.en and
data/train.de (--languages), plain or .gz. The ids are as in T5: 0 pads, 1
ends a text, 2 is an unknown piece. Prints how many tokens the texts have, which
is what TASK_FEATURE_LENGTHS needs.
"""

import sys

from speccascade import cli


def main(argv: list[str] | None = None) -> int:
  """Writes the vocabulary, and returns the exit code."""

  def build(text_files: list[str], **settings):
    from speccascade.text import pieces

    for line in pieces.build(text_files, **settings):
      print(line)

  parser = cli.Parser("vocabulary", __doc__)
  parser.add_argument(
    "--text_files", nargs="+", required=True, help="what it is made of"
  )
  parser.add_argument("--output_file", required=True, help="the model")
  parser.add_argument(
    "--vocab_size", type=int, default=4000, help="pieces (%(default)s)"
  )
  parser.add_argument(
    "--languages",
    nargs=2,
    default=["en", "de"],
    help="suffixes of a prefix, inputs first (en de)",
  )
  parser.add_argument(
    "--model_type",
    choices=["unigram", "bpe"],
    default="unigram",
    help="how pieces are chosen (%(default)s)",
  )
  parser.add_argument(
    "--character_coverage",
    type=float,
    default=1.0,
    help="share of characters that are pieces; 0.9995 for Chinese or Japanese"
    " (%(default)s)",
  )
  parser.add_argument(
    "--split_digits", action="store_true", help="a piece for each digit"
  )
  return parser.run(build, argv)


if __name__ == "__main__":
  sys.exit(main())
