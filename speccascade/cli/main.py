"""The start-up that train, decode, sweep and report share: flags, then gin.

Flags are T5X's: `--gin_file` may be repeated and later files win;
`--gin.NAME=VALUE` sets a macro or a parameter after all files.

  if __name__ == "__main__":
    cli.run(main, __doc__, skeleton="configs/runs/finetune.gin")
"""

import argparse
from collections.abc import Callable, Sequence
import os
import pathlib
import re
import sys
import traceback

from absl import flags, logging

from speccascade.cli import distributed, gin_setup, macros, quiet
from speccascade.cli.gin_setup import ConfigError, resolved_config
from speccascade.runtime import files, processes

_EXAMPLE = re.compile(r"--gin_file=(\S+)")
_LONG = re.compile(r"\S{300,}")  # cut in messages


def run(main, doc: str, argv: list[str] | None = None, **options):
  """Parses flags and gin, calls `main()`, and exits.

  The exit code is 0, 1 after an error of the user's (one line on stderr), 2
  after a wrong flag, 130 after an interrupt.

  Args:
    main: a function without arguments. It imports what is heavy, and gets
      the function that it calls from `configure`.
    doc: what `--help` shows above the flags; its first line is the summary. A
      main whose example there has a `--gin_file` asks for one.
    argv: the command line, program first; default `sys.argv`.
    **options: see `start`.
  """
  sys.exit(start(main, doc, sys.argv if argv is None else argv, **options))


def start(
  main,
  doc: str,
  argv: list[str],
  *,
  skeleton: str | None = None,
  preview: Callable[[], str] | None = None,
) -> int:
  """Does what `run` does, and returns the exit code.

  Args:
    main: as in `run`, like the next two.
    doc: likewise.
    argv: likewise.
    skeleton: the gin file whose macros `--help` lists, where none is given.
    preview: what `--dry_run` says below the configuration, in comments.
  """
  values = _flags()
  try:
    rest = values(rewrite_gin_args(argv))[1:]
    distributed.check(values)
  except (flags.Error, ConfigError) as error:
    return fail(str(error).replace("FATAL Flags parsing error:", ""), 2)
  if values.help:
    listed = values.get_help(include_special_flags=False)
    listed = listed.removeprefix("\nflags:\n")
    _show(f"{doc.strip()}\n\nFlags:\n{listed}")
    shown = values.gin_file or ([skeleton] if skeleton else [])
    try:
      _show(macros.help_text(shown))
    except ConfigError as error:
      return fail(str(error), 1)
    return 0
  if rest:
    return fail(f"{rest[0]!r} is no flag; --help lists them", 2)
  if line := _lacks_config(doc, values):
    return fail(line)
  flags.FLAGS.mark_as_parsed()  # for libraries that ask absl's own
  logging.use_absl_handler()
  # gin logs every folder that it looks into; what is missing is said below.
  logging.set_verbosity(logging.INFO if values.verbose else logging.FATAL)
  try:
    compilation_cache()
    with distributed.join(values):
      _configure(values)
      if not values.dry_run:
        main()
        return 0
    _show(resolved_config())
    if preview is not None:
      _show("\n".join(f"# {line}" for line in preview().splitlines()))
  except KeyboardInterrupt:
    return fail("interrupted", 130)
  except Exception as error:
    line = gin_setup.explain(error, " (--verbose shows where)")
    if line is None:
      raise
    if values.verbose:
      traceback.print_exc()
    return fail(line)
  return 0


def _lacks_config(doc: str, values: flags.FlagValues) -> str | None:
  """Returns what to say where a main's own example has a config, and no config
  is given; else None."""
  example = _EXAMPLE.search(doc)
  reads = ("include", "import", "from")
  has_read = any(each.startswith(reads) for each in values.gin_bindings)
  if values.gin_file or has_read or not example:
    return None
  return (
    f"no config is given: pass --gin_file={example[1]}, say, or a config of"
    " your own; --help shows a whole command and lists the settings"
  )


def _show(text: str):
  """Prints; a reader that has seen enough, `head` say, is no error."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _configure(values: flags.FlagValues):
  """Reads the gin files and bindings of the flags."""
  with quiet.native_logs():
    if values.tfds_data_dir or values.seqio_additional_cache_dirs:
      quiet.import_tensorflow()
      import seqio

      if values.tfds_data_dir:
        seqio.set_tfds_data_dir_override(values.tfds_data_dir)
      seqio.add_global_cache_dirs(values.seqio_additional_cache_dirs)
    gin_setup.parse(
      values.gin_file, values.gin_bindings, values.gin_search_paths
    )
  if not values.verbose:
    logging.set_verbosity(logging.WARNING)


def rewrite_gin_args(argv: list[str]) -> list[str]:
  """Returns `argv` with `--gin.NAME=VALUE` as `--gin_bindings=NAME = VALUE`.

  >>> rewrite_gin_args(["x", "--gin.ALPHA=0.3", "--dry_run"])
  ['x', '--gin_bindings=ALPHA = 0.3', '--dry_run']
  """
  rewritten = []
  for arg in argv:
    if arg.startswith("--gin."):
      name, equals, value = arg[6:].partition("=")
      if not equals:
        raise ConfigError(f"{arg}: want --gin.NAME=VALUE")
      arg = f"--gin_bindings={name} = {value}"
    rewritten.append(arg)
  return rewritten


def save_config(folder):
  """Writes the resolved configuration to `folder`/config.gin, whole."""
  if not processes.is_first():
    return
  if "://" in os.fspath(folder):
    from speccascade.checkpoints import storage

    directory = storage.Directory(folder)
    directory.write("config.gin", resolved_config().encode())
  else:
    files.write_whole(pathlib.Path(folder) / "config.gin", resolved_config())


def _flags() -> flags.FlagValues:
  values = flags.FlagValues()
  here = {"flag_values": values, "module_name": "flags"}
  flags.DEFINE_multi_string(
    "gin_file", [], "A gin file; may be repeated, later ones win.", **here
  )
  flags.DEFINE_multi_string(
    "gin_bindings",
    [],
    "A binding 'NAME = VALUE', applied after the files; may be repeated. The "
    "short form is --gin.NAME=VALUE.",
    **here,
  )
  flags.DEFINE_list(
    "gin_search_paths",
    [],
    "Folders in which gin files are looked for, after the working directory "
    "and before the configs of speccascade.",
    **here,
  )
  flags.DEFINE_string(
    "tfds_data_dir", None, "Where TensorFlow Datasets keeps its data.", **here
  )
  flags.DEFINE_list(
    "seqio_additional_cache_dirs",
    [],
    "Folders in which USE_CACHED_TASKS looks for cached tasks, as seqio's "
    "cache_tasks_main wrote them.",
    **here,
  )
  flags.DEFINE_boolean(
    "dry_run",
    False,
    "Print the resolved configuration and stop; a sweep also says its points, "
    "programs and an estimate of its time.",
    **here,
  )
  flags.DEFINE_boolean(
    "verbose",
    False,
    "Show where an error came from, and more messages.",
    short_name="v",
    **here,
  )
  distributed.define(values, **here)
  flags.DEFINE_boolean("help", False, "Show this.", short_name="h", **here)
  return values


def compilation_cache():
  """Keeps compiled programs in the user's cache directory between runs."""
  folder = str(files.cache_dir("jax"))
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder)


def path(text: str) -> pathlib.Path:
  """Returns the path that a flag gives; `--flag=~/a` no shell expands."""
  return pathlib.Path(text).expanduser()


class Parser(argparse.ArgumentParser):
  """Flags of a main without gin; a wrong one is one line, exit code 2.

  Args:
    name: of the main, as in `python -m PACKAGE.NAME`.
    doc: what `--help` shows above the flags.
    package: likewise.
  """

  def __init__(self, name: str, doc: str, package: str = "speccascade"):
    super().__init__(
      prog=f"python -m {package}.{name}",
      description=doc,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )

  def error(self, message: str):
    sys.exit(fail(message, 2))

  def add_flags(self, **flags: tuple[dict, str]):
    """Adds flags; of each, what `add_argument` takes, and its help."""
    for name, (how, text) in flags.items():
      self.add_argument(f"--{name}", help=text, **how)

  def run(
    self,
    function: Callable,
    argv: Sequence[str] | None,
    interrupted: str = "interrupted",
  ) -> int:
    """Calls a function with the flags; returns the exit code.

    Args:
      function: what it returns, if it does, is the exit code.
      argv: the command line, without the program; None takes the process's.
      interrupted: what is said of an interrupt.
    """
    flags = vars(self.parse_args(argv))
    try:
      return function(**flags) or 0
    except (ValueError, OSError) as error:
      return fail(error)
    except KeyboardInterrupt:
      return fail(interrupted, 130)


def fail(error: str | Exception, code: int = 1) -> int:
  """Prints one line on an error of the user's, and returns the exit code."""
  message = error if isinstance(error, str) else gin_setup.explain(error)
  message = _LONG.sub(lambda long: f"{long[0][:99]}...{long[0][-99:]}", message)
  print(f"error: {message.strip()}", file=sys.stderr)
  return code
