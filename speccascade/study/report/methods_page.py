"""Prints the page of rules and targets, docs/methods.md.

  python -m speccascade.report.methods_page > docs/methods.md
  python -m speccascade.report.methods_page --table --vocab_size=256000

The second command prints the table of methods alone, for another vocabulary.
The text of each rule and target is its docstring, and the numbers come from the
functions themselves.
"""

import collections
import inspect
import re
import sys
import textwrap

from speccascade import cli
from speccascade.decoding.laws.targets import Target
from speccascade.decoding.loops.speculative import speculative
from speccascade.decoding.programs.methods import METHODS
from speccascade.study.report import markdown, templates, worked_example

VOCAB_SIZE = 32128
WIDTH = 79
# The pair of the docstrings in `targets`, at temperature 1.
Q, P = (0.5, 0.3, 0.15, 0.05), (0.2, 0.4, 0.3, 0.1)
_ALPHAS = {
  # The alphas of the docstrings, where the defaults show less.
  "lossy": 0.4,
  "lossy_star": 0.4,
  "mentored": 0.1,
  "cactus": 0.05,
  "lossy_from_p": 0.4,
  "ensemble": 0.25,
  "chow": 0.4,
  "diff": -0.2,
  "opt": -0.5,
}


def methods_table(vocab_size: int) -> str:
  """Returns the table of methods in Markdown.

  Args:
    vocab_size: V, which the range of alpha of some rules depends on.
  """
  rows = []
  for name, method in METHODS.items():
    alpha = "-"
    if method.uses_alpha:
      alpha = method.alpha_interval.describe(vocab_size)
    execution = method.execution.label
    if method.greedy_only:
      execution += ", greedy only"
    # As it stands, Markdown would read T[rule](q, p) as a link.
    law = f"`{method.law}`" if "](" in method.law else method.law
    rows.append([f"`{name}`", method.label, execution, law, alpha])
  titles = ["name", "label", "execution", "sampled from", "alpha"]
  return markdown.table(titles, rows)


def counts() -> str:
  """Returns how many methods of each kind there are."""
  by_kind = collections.Counter(
    method.execution.label for method in METHODS.values()
  )
  speculative_methods = [
    method for method in METHODS.values() if method.execution is speculative
  ]
  num, composed, greedy_only = (
    len(speculative_methods),
    sum(method.compose is not None for method in speculative_methods),
    sum(method.greedy_only for method in speculative_methods),
  )
  others = [
    f"{number} {label}"
    for label, number in by_kind.items()
    if label != speculative.label
  ]
  return (
    f"Of the {len(METHODS)} methods {num} are speculative: {num - composed}"
    f" with one drafter, and {composed} whose drafter is a cascade itself."
    f" {num - greedy_only} of the {num} can be sampled, and {greedy_only} are"
    f" greedy only. The others, by execution: {', '.join(others)}."
  )


def known_targets() -> dict[str, Target]:
  """Returns each target of the table of methods once, by its name."""
  found: dict[str, Target] = {}
  for method in METHODS.values():
    if method.target is not None:
      found.setdefault(method.target.name, method.target)
  return found


def _alpha(target: Target) -> float:
  """Returns the alpha of the worked example."""
  return _ALPHAS.get(target.name, target.interval.default)


def example_row(target: Target) -> list[str]:
  """Returns the line of a target in the table of the worked position."""
  alpha = _alpha(target)
  tokens = [str(place) for place in range(1, len(Q) + 1)]
  drafts = worked_example.outcomes(target, alpha, Q, P, tokens)
  if drafts[0].left is None:
    decision = "-"
  elif target.reads_tokens:
    kept = [draft.token for draft in drafts if not draft.deferred]
    decision = "keeps " + (" ".join(kept) or "none")
  else:
    decision = "defers" if drafts[0].deferred else "keeps q"
  return [
    f"`{target.name}`",
    "-" if target.is_lossless else f"{alpha:g}",
    decision,
    " ".join(f"{draft.pi:.3f}".lstrip("0") for draft in drafts),
    f"{sum(draft.accepted for draft in drafts):.2f}",
    f"{max(draft.pi / draft.p for draft in drafts):.2f}",
  ]


def sections(docstring: str) -> dict[str, str]:
  """Returns the parts of a docstring: "", "Args", "Source" and others.

  Examples are left out, and so are the parts of `Args` that are not alpha's.
  """
  text = inspect.cleandoc(docstring)
  text = re.split(r"^>>> ", text, maxsplit=1, flags=re.M)[0]
  name, parts = "", {"": ""}
  for paragraph in text.split("\n\n"):
    if match := re.match(r"(Args|Source|Returns|Raises):\s*", paragraph):
      name, paragraph = match[1], paragraph[match.end() :]
    elif name:
      name = ""
    parts[name] = f"{parts.get(name, '')}\n\n{paragraph}".strip("\n")
  if "Args" in parts:
    of_alpha = r"^\s*alpha: (.*?)(?=^\s*\w+: |\Z)"
    found = re.search(of_alpha, parts["Args"], re.M | re.S)
    parts["Args"] = found[1] if found else ""
  return parts


def _reflow(text: str) -> str:
  """Returns paragraphs at the width of the pages; formulas stay as they are."""
  paragraphs = []
  for paragraph in text.split("\n\n"):
    if paragraph.startswith(" "):
      paragraphs.append(f"```\n{textwrap.dedent(paragraph)}\n```")
    else:
      paragraphs.append(textwrap.fill(" ".join(paragraph.split()), WIDTH))
  return "\n\n".join(paragraphs)


def _section(target: Target) -> str:
  """Returns the text of a target, or of the rule inside it."""
  documented = target.rule or target.function
  parts = sections(documented.__doc__ or "")
  lines = [f"### {target.name}", "", _reflow(parts[""])]
  facts = []
  if not target.is_lossless:
    interval = target.interval.describe(VOCAB_SIZE)
    # A docstring says the range of alpha, too; what follows it is said here.
    words = " ".join(parts.get("Args", "").split())
    fact = f"alpha: {interval}, default {target.interval.default:g}."
    rest = re.sub(r"^scalar[^.;]*?(?:\.|;|$)\s*", "", words)
    rest = re.sub(r"^any finite number\.?\s*", "", rest)
    if re.match(r"[a-z]{2}", rest):  # and no symbol, such as "e in (0, 1]"
      rest = rest[0].upper() + rest[1:]
    facts.append(f"{fact} {rest}".rstrip())
  if target.rule is None:
    kind = "target, no rule"
  else:
    kind = "token rule" if target.reads_tokens else "position rule"
  reads = "q and p" if target.uses_q else "p alone"
  if target.needs_confidence:
    reads += (
      "; the rule reads q's confidence, so one-hot drafts are refused: no"
      " prompt lookup"
    )
  facts.append(f"Kind: {kind}. pi depends on {reads}.")
  if target.kind is not None:
    facts.append(
      f"Parameters: {target.kind.name}, in the file that RULE_PARAMETERS names"
      " ([learned rules](learned_rule.md)). The position above uses parameters"
      " that correct nothing."
    )
  if target.is_lossless_when_greedy:
    facts.append("At temperature 0 pi is p, whatever alpha.")
  names = [
    f"`{name}`"
    for name, method in METHODS.items()
    if method.target is target and method.execution.needs_verifier
  ]
  facts.append(f"Methods: {', '.join(names)}.")
  if source := parts.get("Source"):
    facts.append(f"Source: {' '.join(source.split())}")
  lines += ["", *(_bullet(fact) for fact in facts)]
  return "\n".join(lines)


def _fill(paragraph: str) -> str:
  """Returns a paragraph or a list at the width of the pages."""
  if paragraph.startswith("|"):
    return paragraph
  if paragraph.startswith("- "):
    items = paragraph.removeprefix("- ").split("\n- ")
    return "\n".join(map(_bullet, items))
  return textwrap.fill(paragraph, WIDTH)


def _bullet(text: str) -> str:
  return textwrap.fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ")


def page() -> str:
  """Returns the page in Markdown."""
  found = known_targets()
  numbers = (", ".join(f"{x:g}" for x in probs) for probs in (Q, P))
  q, p = numbers
  paragraphs = worked_example.markdown().split("\n\n")
  intro = templates.load("study/report/methods.md").render(
    q=q,
    p=p,
    table=markdown.table(
      ["target", "alpha", "the rule", "pi", "accepted", "max pi/p"],
      map(example_row, found.values()),
      "lrllrr",
    ),
    methods=methods_table(VOCAB_SIZE),
    counts=_fill(counts()),
    vocab_size=VOCAB_SIZE,
    drawn="\n\n".join(map(_fill, paragraphs)),
  )
  return "\n\n".join([intro.rstrip(), *map(_section, found.values())]) + "\n"


def main(argv: list[str] | None = None) -> int:
  """Prints the page, or the table alone; returns the exit code."""
  parser = cli.Parser("report.methods_page", __doc__)
  parser.add_argument(
    "--table", action="store_true", help="print the table of methods alone"
  )
  parser.add_argument(
    "--vocab_size",
    type=int,
    default=VOCAB_SIZE,
    help="of the ranges of alpha in the table alone (%(default)s)",
  )

  def print_it(table: bool, vocab_size: int):
    print(methods_table(vocab_size) if table else page(), end="")

  return parser.run(print_it, argv)


if __name__ == "__main__":
  sys.exit(main())
