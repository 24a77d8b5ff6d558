"""Makes a SentencePiece vocabulary from text files, as VOCABULARY takes it.

  python -m speccascade.vocabulary --text_files data/train \\
    --vocab_size=4000 --output_file=data/pieces.model

A text file is one of: lines, plain or .gz; JSON lines with inputs and targets,
.jsonl or .jsonl.gz; or data/train, which stands for data/train.en and
data/train.de (--languages), plain or .gz. The ids are T5's: 0 pads, 1 ends, 2
is unknown. Says how many tokens texts have, which TASK_FEATURE_LENGTHS asks.
"""

import sys

from speccascade import cli


def main(argv: list[str] | None = None) -> int:
  """Writes the vocabulary; returns the exit code."""

  def build(text_files: list[str], **how):
    from speccascade.data import pieces

    for line in pieces.build(text_files, **how):
      print(line)

  parser = cli.Parser("vocabulary", __doc__)
  parser.add_flags(
    text_files=({"nargs": "+", "required": True}, "what it is made of"),
    output_file=({"required": True}, "the model"),
    vocab_size=({"type": int, "default": 4000}, "pieces (%(default)s)"),
    languages=(
      {"nargs": 2, "default": ["en", "de"]},
      "suffixes of a prefix, inputs first (en de)",
    ),
    model_type=(
      {"choices": ["unigram", "bpe"], "default": "unigram"},
      "how pieces are chosen (%(default)s)",
    ),
    character_coverage=(
      {"type": float, "default": 1.0},
      "share of characters that are pieces; 0.9995 for Chinese or Japanese"
      " (%(default)s)",
    ),
    split_digits=({"action": "store_true"}, "a piece for each digit"),
  )
  return parser.run(build, argv)


if __name__ == "__main__":
  sys.exit(main())
