"""Makes a SentencePiece vocabulary from text files, as VOCABULARY takes it.

  python -m speccascade.vocabulary --text_files data/train \\
    --vocab_size=4000 --output_file=data/pieces.model

A text file is one of: lines, plain or .gz; JSON lines with inputs and targets,
.jsonl or .jsonl.gz; or data/train, which stands for data/train.en and
data/train.de (--languages), plain or .gz. The ids are T5's: 0 pads, 1 ends, 2
is unknown. Says how many tokens texts have, which TASK_FEATURE_LENGTHS asks.
"""

import argparse
import sys


def main(argv: list[str] | None = None) -> int:
  """Writes the vocabulary; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m speccascade.vocabulary",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  for flag, how, text in (
    ("text_files", {"nargs": "+", "required": True}, "what it is made of"),
    ("output_file", {"required": True}, "the model"),
    ("vocab_size", {"type": int, "default": 4000}, "pieces (%(default)s)"),
    (
      *("languages", {"nargs": 2, "default": ["en", "de"]}),
      "suffixes of a prefix, inputs first (en de)",
    ),
    (
      *("model_type", {"choices": ["unigram", "bpe"], "default": "unigram"}),
      "how pieces are chosen (%(default)s)",
    ),
    (
      *("character_coverage", {"type": float, "default": 1.0}),
      "share of characters that are pieces; 0.9995 for Chinese or Japanese"
      " (%(default)s)",
    ),
    ("split_digits", {"action": "store_true"}, "a piece for each digit"),
  ):
    parser.add_argument(f"--{flag}", help=text, **how)
  args = vars(parser.parse_args(argv))
  try:
    from speccascade.data import pieces

    for line in pieces.build(args.pop("text_files"), **args):
      print(line)
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print("error: interrupted", file=sys.stderr)
    return 130
  return 0


if __name__ == "__main__":
  sys.exit(main())
