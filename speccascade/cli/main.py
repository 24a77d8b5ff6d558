"""Starts the mains that gin configures: reads flags, then gin files.

The flags have T5X's names. `--gin_file` may be repeated, and a later file wins.
`--gin.NAME=VALUE` sets a macro or a parameter after all files.

  if __name__ == "__main__":
    cli.run(main, __doc__, skeleton="configs/runs/finetune.gin")
"""

from collections.abc import Callable
import os
import pathlib
import re
import sys
import traceback

from absl import flags, logging

from speccascade.cli import distributed, gin_setup, macros, quiet
from speccascade.cli.gin_setup import ConfigError, resolved_config
from speccascade.runtime import (
  command_line,
  files,
  processes,
  signals,
  standard_error,
  standard_output,
)

_FLAGS, _JOB = "Flags", "Flags of a job of several processes"  # in `--help`
_EXAMPLE = re.compile(r"--gin_file=(\S+)")  # in the text of a main


def run(main, doc: str, argv: list[str] | None = None, **options):
  """Parses flags and gin files, calls `main()`, and exits.

  The exit code is 0, or 1 after an error that the user can fix (one line on
  stderr says which), 2 after a wrong flag, and 130 after an interrupt.

  Args:
    main: a function without arguments. It imports heavy modules itself, and
      gets the function that it calls from `configure`.
    doc: the text that `--help` shows above the flags; its first line is the
      summary. If the example in the text has a `--gin_file`, the main does not
      run without a config.
    argv: the command line, the program first. None takes `sys.argv`.
    **options: options of `start`.
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
  """Does the work of `run`, and returns the exit code.

  Args:
    main: a function without arguments, as in `run`.
    doc: the text that `--help` shows above the flags.
    argv: the command line, the program first.
    skeleton: the gin file whose macros `--help` lists if the command line names
      no file.
    preview: returns the text that `--dry_run` prints after the configuration,
      as comments.
  """
  standard_error.make_safe()
  standard_output.make_safe()
  code = _start(main, doc, argv, skeleton, preview)
  return command_line.finish(code)


def _start(main, doc: str, argv: list[str], skeleton, preview) -> int:
  """Does the work of `start` up to the end of standard output."""
  values = _flags()
  try:
    arguments = values(rewrite_gin_args(argv))[1:]
    distributed.check(values)
  except (flags.Error, ConfigError) as error:
    return fail(str(error).replace("FATAL Flags parsing error:", ""), 2)
  if values.help:
    return _show_help(values, doc, skeleton)
  if arguments:
    return fail(f"{arguments[0]!r} is not a flag; --help lists them", 2)
  if message := _missing_config(doc, values):
    return fail(message)
  flags.FLAGS.mark_as_parsed()  # for libraries that read absl's own flags
  logging.use_absl_handler()
  # gin logs every folder that it looks into. A missing file is an error below.
  logging.set_verbosity(logging.INFO if values.verbose else logging.FATAL)
  try:
    compilation_cache()
    # The other processes of a job must be joined before anything asks for the
    # devices, and gin files may import modules that do.
    with distributed.join(values):
      _configure(values)
      if not values.dry_run:
        main()
        return 0
    _show_plan(preview)
  except KeyboardInterrupt as stop:
    code = stop.exit_code if isinstance(stop, signals.Interrupted) else 130
    return fail(str(stop) or "interrupted", code)
  except Exception as error:
    message = gin_setup.explain(error, " (--verbose shows where)")
    if message is None:  # a bug, which keeps its traceback
      raise
    if values.verbose:
      traceback.print_exc()
    return fail(message)
  return 0


def _show_help(values: flags.FlagValues, doc: str, skeleton: str | None) -> int:
  """Prints a main's text, its flags and settings, and the flags of a job."""
  default_files = [skeleton] if skeleton else []
  try:
    settings = macros.help_text(values.gin_file or default_files)
    parts = [doc, values.module_help(_FLAGS), settings]
    parts.append(values.module_help(_JOB))
    _show("\n\n".join(part.strip() for part in parts if part))
  except (ConfigError, OSError) as error:
    return fail(error)
  return 0


def _show_plan(preview: Callable[[], str] | None):
  """Prints the configuration, and the preview as comments below it."""
  _show(resolved_config())
  if preview is not None:
    _show("\n".join(f"# {line}" for line in preview().splitlines()))


def _missing_config(doc: str, values: flags.FlagValues) -> str | None:
  """Returns a message if a main needs a config and no config is given."""
  # A main needs a config if the example in its text has one. A binding that
  # includes a file or imports a module may be the config too.
  example = _EXAMPLE.search(doc)
  statements = ("include", "import", "from")
  has_statement = any(
    binding.startswith(statements) for binding in values.gin_bindings
  )
  if values.gin_file or has_statement or not example:
    return None
  return (
    f"no config is given: pass --gin_file={example[1]}, say, or a config of"
    " your own; --help shows a whole command and lists the settings"
  )


def _show(text: str):
  """Prints a string; ignores a reader that stops reading, such as `head`."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    standard_output.drop()


def _configure(values: flags.FlagValues):
  """Reads the gin files and bindings of the flags."""
  with standard_error.native_logs():
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

  Raises:
    ConfigError: an argument `--gin.NAME` has no value.

  >>> rewrite_gin_args(["x", "--gin.ALPHA=0.3", "--dry_run"])
  ['x', '--gin_bindings=ALPHA = 0.3', '--dry_run']
  """
  rewritten = []
  for arg in argv:
    if arg.startswith("--gin."):
      name, equals, value = arg.removeprefix("--gin.").partition("=")
      if not equals:
        raise ConfigError(f"{arg}: want --gin.NAME=VALUE")
      rewritten.append(f"--gin_bindings={name} = {value}")
    else:
      rewritten.append(arg)
  return rewritten


def save_config(folder):
  """Writes the resolved configuration to `folder`/config.gin.

  The file is written whole or not at all, by the first process of a job.

  Args:
    folder: a local folder, or one on gs://.
  """
  if not processes.is_first():
    return
  if "://" in os.fspath(folder):
    from speccascade.checkpoints import storage  # which needs tensorstore

    directory = storage.Directory(folder)
    directory.write("config.gin", resolved_config().encode())
  else:
    files.write_whole(pathlib.Path(folder) / "config.gin", resolved_config())


def _flags() -> flags.FlagValues:
  """Returns the flags of the mains, apart from absl's own `flags.FLAGS`."""
  values = flags.FlagValues()
  options = {"flag_values": values, "module_name": _FLAGS}
  flags.DEFINE_multi_string(
    "gin_file", [], "A gin file; may be repeated, later ones win.", **options
  )
  flags.DEFINE_multi_string(
    "gin_bindings",
    [],
    "A binding 'NAME = VALUE', applied after the files; may be repeated. The "
    "short form is --gin.NAME=VALUE.",
    **options,
  )
  flags.DEFINE_list(
    "gin_search_paths",
    [],
    "Folders in which gin files are looked for, after the working directory "
    "and before the configs of speccascade.",
    **options,
  )
  flags.DEFINE_string(
    "tfds_data_dir",
    None,
    "Where TensorFlow Datasets keeps its data.",
    **options,
  )
  flags.DEFINE_list(
    "seqio_additional_cache_dirs",
    [],
    "Folders in which USE_CACHED_TASKS looks for cached tasks, as seqio's "
    "cache_tasks_main wrote them.",
    **options,
  )
  flags.DEFINE_boolean(
    "dry_run",
    False,
    "Print the resolved configuration and stop; a sweep also says its points, "
    "programs and an estimate of its time.",
    **options,
  )
  flags.DEFINE_boolean(
    "verbose",
    False,
    "Show where an error came from, and more messages.",
    short_name="v",
    **options,
  )
  distributed.define(values, module_name=_JOB)
  flags.DEFINE_boolean("help", False, "Show this.", short_name="h", **options)
  return values


def compilation_cache():
  """Makes JAX keep compiled programs in the user's cache folder between runs.

  A folder that the environment names already is left as it is.
  """
  folder = str(files.cache_dir("jax"))
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder)


def fail(error: str | Exception, code: int = 1) -> int:
  """Prints one line about an error that the user can fix.

  Args:
    error: the error, or the line.
    code: the exit code.

  Returns:
    The exit code.
  """
  if not isinstance(error, str):
    error = gin_setup.explain(error)
  return command_line.fail(error, code)
