"""A case: a command line, files that it reads, and what its line must say."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[3]

# Macros of a command that would run, as gin reads them; "@base" and "@work" are
# folders.
_DECODER = {
  "DRAFTER_CHECKPOINT": '"@base/small"',
  "VERIFIER_CHECKPOINT": '"@base/large"',
  "VOCABULARY": '"@base/words.model"',
  "INPUT_FILE": '"@base/in.jsonl"',
  "TASK_FEATURE_LENGTHS": '{"inputs": 16}',
  "MAX_DECODE_LEN": "4",
  "BATCH_SIZE": "2",
  "OUTPUT_DIR": '"@work/out"',
}
_COMMANDS = {
  "train": (
    ("@base/train.gin",),
    {
      "MODEL_DIR": '"@work/out"',
      "TRAIN_FILES": '"@base/data"',
      "VALIDATION_FILES": '"@base/data"',
      "VOCABULARY": '"@base/words.model"',
    },
  ),
  "decode": (("configs/runs/decode.gin",), {"METHOD": '"spec_decode"'}),
  "sweep": (("configs/runs/sweep.gin",), {"NUM_TIMED": "1"}),
  "cascade_search": (("configs/runs/cascade_search.gin",), {}),
  "advise": (("configs/runs/decode.gin", "configs/runs/advise.gin"), {}),
  "advise.trees": (
    ("configs/runs/decode.gin", "configs/runs/advise_trees.gin"),
    {"METHOD": '"spec_decode"'},
  ),
  "ngrams": (
    ("configs/runs/ngrams.gin",),
    {
      "OUTPUT_FILE": '"@work/out.npz"',
      **{name: _DECODER[name] for name in ("VOCABULARY", "INPUT_FILE")},
    },
  ),
}
_COMMANDS |= {
  name: (files, _DECODER | macros)
  for name, (files, macros) in _COMMANDS.items()
  if name in ("decode", "sweep", "cascade_search", "advise", "advise.trees")
}


@dataclasses.dataclass(frozen=True)
class Case:
  """A wrong input.

  Attributes:
    command: name of a main, as in `python -m speccascade.NAME`.
    says: what the line must hold: the setting or the file.
    macros: values as gin reads them, by name, over those of a right command;
      None leaves one out.
    flags: further arguments; of commands without gin, all.
    files: what the folder of the case holds, by name.
    code: the exit code.
    is_bare: whether the gin files and macros of a right command are left out.
    title: of the case, where all else is the same as in other cases.
  """

  command: str
  says: str
  macros: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
  flags: Sequence[str] = ()
  files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
  code: int = 1
  is_bare: bool = False
  title: str = ""

  @property
  def name(self) -> str:
    """The case in a line."""
    parts = [f"{name}={value}" for name, value in self.macros.items()]
    parts = [self.command, self.title, *parts, *self.flags, *self.files]
    line = " ".join(parts)
    return ascii(line if len(line) < 120 else f"{line[:117]}...")[1:-1]

  def argv(self, base: pathlib.Path, work: pathlib.Path) -> list[str]:
    """Returns the command line.

    Args:
      base: the folder of right files.
      work: the folder of the case.
    """
    files, macros = (), {}
    if not self.is_bare:
      files, macros = _COMMANDS.get(self.command, (files, macros))
    args = [f"--gin_file={file}" for file in files]
    args += [
      f"--gin.{name}={value}"
      for name, value in (macros | self.macros).items()
      if value is not None
    ]
    places = {"@base": str(base), "@work": str(work)}
    put = lambda arg: re.sub("@(base|work)", lambda m: places[m[0]], arg)
    return [self.command, *map(put, (*args, *self.flags))]
