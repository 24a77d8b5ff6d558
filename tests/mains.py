"""Runs a main in this process, with gin files and macros."""

from speccascade import cli


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
