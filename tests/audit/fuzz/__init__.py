"""Wrong input for every command: each must end soon, in one line.

  python -m tests.audit.fuzz [--only TEXT] [--every N] [--list]

A case is a command line and perhaps files. It is right if the command ends
within seconds, with an exit code that is not 0, by one line on stderr that
names the setting or file, leaves nothing behind and stays under 2 GB. A table
is a module with `cases()`, listed in `tables.py`.
"""
