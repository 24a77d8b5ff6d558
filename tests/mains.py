"""Runs a main in this process, with gin files and macros."""

from speccascade import cli

# What only the user can say, where it is no text.
_GIVEN = {
  **{"BATCH_SIZE": 2, "CASCADE_K": [[2]], "TRAIN_STEPS": 1},
  "TASK_FEATURE_LENGTHS": {"inputs": 8, "targets": 8},
}


def start(main, capsys, *files, flags=(), **macros):
  """Returns (exit code, stdout, stderr).

  Args:
    main: the module of the main.
    capsys: pytest's.
    *files: gin files, in order.
    flags: further ones.
    **macros: by name; `...` leaves one out.
  """
  capsys.readouterr()
  argv = ["main", *(f"--gin_file={file}" for file in files), *flags]
  argv += [
    f"--gin.{name}={value!r}"
    for name, value in macros.items()
    if value is not ...
  ]
  try:
    code = cli.start(main.main, main.__doc__, argv)
  except SystemExit as stop:
    code = stop.code
  return code, *capsys.readouterr()


def resolve(flags, capsys) -> tuple[dict, str]:
  """Dry-runs a main of gin, giving it what it asks for.

  Returns:
    ({macro that it lacked: what was given}, stdout of the last run).
  """
  missing = {}
  while True:
    bindings = [f"--gin.{name}={value!r}" for name, value in missing.items()]
    code = cli.start(None, "", ["main", *flags, *bindings, "--dry_run"])
    out, err = capsys.readouterr()
    if code == 0:
      return missing, out
    names, asks, _ = err.removeprefix("error: ").partition(" must be given")
    asked = {name: _GIVEN.get(name, "text") for name in names.split(", ")}
    assert asks, err
    assert not asked.keys() <= missing.keys(), err
    missing |= asked
