"""Counts the tokens that texts use most: the draft vocabulary of a drafter.

  python -m speccascade.draft_vocabulary --texts out/decode/predictions.jsonl \\
    --vocabulary=models/verifier --num=8192 \\
    --output_file=models/drafter/draft_vocabulary.json

The best texts are those that the verifier wrote: predictions.jsonl of a decode.
Text files have one text a line; of JSON lines with inputs and targets the
targets are counted. Special tokens always come first, and with --fill tokens
that no text has come last, by their ids. DRAFT_VOCABULARY takes
the file, or a number N for the first N ids of draft_vocabulary.json in the
drafter's folder: its output head then computes these tokens alone. See
docs/decoder_only.md.
"""

import sys

from speccascade import cli


def main(argv: list[str] | None = None) -> int:
  """Writes the file; returns the exit code."""
  parser = cli.Parser("draft_vocabulary", __doc__)
  parser.add_argument(
    "--texts", nargs="+", type=cli.path, required=True, help="what is counted"
  )
  parser.add_argument(
    "--vocabulary",
    required=True,
    help="a SentencePiece model, a Hugging Face directory, or bytes",
  )
  parser.add_argument(
    "--num", type=int, default=8192, help="tokens that are kept (%(default)s)"
  )
  parser.add_argument(
    "--fill",
    action="store_true",
    help="add the lowest ids of tokens that no text has, up to --num",
  )
  parser.add_argument(
    "--output_file",
    type=cli.path,
    required=True,
    help="the JSON file; one that is there is replaced",
  )
  return parser.run(write, argv)


def write(texts, vocabulary: str, num: int, fill: bool, output_file):
  """Counts the texts, writes the file, and prints what it holds."""
  from speccascade.text import frequent_tokens, vocabularies

  loaded = vocabularies.load(vocabulary)
  found = frequent_tokens.write(output_file, texts, loaded, num, fill=fill)
  print(
    f"{output_file}: {len(found.ids)} of {loaded.vocab_size} tokens, which are"
    f" {found.share:.2%} of the {found.num_tokens} tokens of the texts"
  )


if __name__ == "__main__":
  sys.exit(main())
