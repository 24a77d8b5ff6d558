"""Writes the answer of a search: text to read, gin and commands to paste."""

from collections.abc import Collection, Iterator, Mapping, Sequence
import dataclasses
import json
import pathlib
import re
import shlex

from speccascade.generate.points.point_settings import PointSettings
from speccascade.runtime import files
from speccascade.study.evaluation.walltime import Latency
from speccascade.study.measuring.environment import device_name, environment
from speccascade.study.report import tables, templates

# The part of a config that asks for advice, and what its bindings begin with.
_ADVICE_FILE = "advise.gin"
_ADVICE_PARTS = ("advisor.", "effort.", "wanted.")


@dataclasses.dataclass(frozen=True)
class WrittenAdvice:
  """What advice says: sentences, what to paste, tables, and JSON values.

  Attributes:
    sentences: what to use, and how fast it is.
    warnings: why the answer may be wrong.
    bindings: the macros that make a decode as advised, by name; None where the
      verifier alone is best.
    is_timed: whether anything was timed.
    tables: tables in Markdown by their titles; "" is not a title.
    details: sentences that say how the answer was found.
    values: the further JSON values.
    command: a command to paste, or "".
  """

  sentences: Sequence[str]
  warnings: Sequence[str]
  bindings: Mapping[str, object] | None
  is_timed: bool
  tables: Mapping[str, str]
  details: Sequence[str]
  values: Mapping[str, object]
  command: str = ""

  @property
  def snippet(self) -> str:
    """The settings to paste into the config of a decode."""
    if self.bindings is not None:
      return gin(self.bindings)
    comment = "Nothing pays." if self.is_timed else "Nothing was timed."
    return gin({"METHOD": "verifier"}, comment)

  @property
  def text(self) -> str:
    """The answer, what to paste, the tables, and how it was found."""
    return templates.load("study/search/answer.md").render(answer=self)

  @property
  def json(self) -> dict[str, object]:
    """All that the search found, as JSON values."""
    return {
      "sentences": [*self.sentences, *self.details],
      "warnings": [*self.warnings],
      **self.values,
      "environment": environment(),
    }

  def write(self, folder: pathlib.Path, name: str) -> str:
    """Writes NAME.json, NAME.gin and NAME.md; returns the last one's text."""
    text = self.text
    files_of_answer = {
      f"{name}.json": self.json,
      f"{name}.gin": self.snippet,
      f"{name}.md": text,
    }
    write(folder, files_of_answer)
    return text


def write(folder: pathlib.Path, answer: Mapping[str, str | Mapping]):
  """Writes the files of an answer, each of them whole.

  Args:
    folder: OUTPUT_DIR.
    answer: by the name of a file its text, or JSON values.
  """
  for name, content in answer.items():
    if not isinstance(content, str):
      content = json.dumps(content, indent=1, allow_nan=False) + "\n"
    files.write_whole(folder / name, content)


def gin(settings: Mapping[str, object], comment: str = "") -> str:
  """Returns macros of a gin file.

  >>> print(gin({"METHOD": "spec_decode", "DRAFTER": None, "GAMMA": 3}), end="")
  METHOD = "spec_decode"
  DRAFTER = None
  GAMMA = 3
  """
  lines = [f"# {comment}\n"] if comment else []
  for name, value in settings.items():
    literal = f'"{value}"' if isinstance(value, str) else str(value)
    lines.append(f"{name} = {literal}\n")
  return "".join(lines)


def times(latency: Latency) -> str:
  """Returns a speed-up with its interval, as "1.68 [1.58, 1.79]"."""
  return "{:.2f} [{:.2f}, {:.2f}]".format(*tables.speedup(latency))


templates.ENVIRONMENT.filters["times"] = times


def sentences(macro: str, *facts) -> list[str]:
  """Returns the sentences of a macro of this folder's sentences.txt.

  Args:
    macro: the name of the macro.
    *facts: what its sentences say.
  """
  return templates.sentences(macro, *facts, file="study/search/sentences.txt")


def examples(settings: PointSettings, models: str) -> list[str]:
  """Returns the sentence that says what was decoded, and on which device.

  Args:
    settings: settings of a row of the search.
    models: the models in words.
  """
  return sentences("examples", settings, models, device_name())


def decode_command(
  argv: Sequence[str],
  advice_macros: Collection[str],
  bindings: Mapping[str, object],
) -> str:
  """Returns a command to paste.

  Args:
    argv: the command line that asked for advice, program first.
    advice_macros: the names of macros that only the question for advice has;
      flags that bind them are left out.
    bindings: the values of macros to set. They take the place of values on the
      command line.

  >>> print(decode_command(
  ...   ["x", "--gin_file=a.gin", "--gin_file", "runs/advise.gin",
  ...    "--gin.MAX_LOSS=1", "--gin.TEMPERATURE=0.5"],
  ...   {"MAX_LOSS"}, {"METHOD": "spec_decode", "GAMMA": 4}))
  python -m speccascade.decode --gin_file=a.gin --gin.TEMPERATURE=0.5 \\
    --gin.METHOD='"spec_decode"' --gin.GAMMA=4
  """
  replaced = {*advice_macros, *bindings}
  flags = [
    _quote_value(flag)
    for flag in _join_values(argv[1:])
    if not _is_left_out(flag, replaced)
  ]
  settings = []
  for name, value in bindings.items():
    text = f'"{value}"' if isinstance(value, str) else str(value)
    settings.append(f"--gin.{name}={shlex.quote(text)}")
  first_line = " ".join(["python -m speccascade.decode", *flags])
  return f"{first_line} \\\n  {' '.join(settings)}"


def _join_values(args: Sequence[str]) -> Iterator[str]:
  """Yields flags as one word each: `--flag value` becomes `--flag=value`."""
  args = iter(args)
  for arg in args:
    if re.fullmatch(r"--?gin_(file|bindings|search_paths)", arg):
      arg = f"{arg}={next(args, '')}"
    yield arg


def _is_left_out(flag: str, macros: Collection[str]) -> bool:
  """Returns whether only the question for advice needs a flag."""
  name, _, value = flag.partition("=")
  if name.endswith("gin_file"):
    return pathlib.PurePath(value).name == _ADVICE_FILE
  binding = re.match(r"--?gin(?:\.|_bindings=)\s*([\w./]+)", flag)
  if binding is None:
    return False
  return binding[1] in macros or binding[1].startswith(_ADVICE_PARTS)


def _quote_value(flag: str) -> str:
  """Returns a flag as a shell reads it, with quotes around its value alone."""
  name, equals, value = flag.partition("=")
  return name + equals + shlex.quote(value) if equals else shlex.quote(flag)
