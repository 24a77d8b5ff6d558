"""Records parts of one version: the package that is found as `speccascade`.

python -m tests.audit.recording.side FOLDER PART [PART ...]
"""

import pathlib
import sys
import time

from tests.audit.recording import chains, files, networks
from tests.audit.recording.record import Record

PARTS = {**chains.PARTS, **networks.PARTS, **files.PARTS}


def main(folder: str, *names: str):
  """Writes the record of each part to a folder of its name."""
  for name in names:
    record, start_s = Record(), time.process_time()
    PARTS[name](record)
    record.write(pathlib.Path(folder) / name)
    took_s = time.process_time() - start_s
    num = len(record.arrays) + len(record.texts)
    print(f"{name}: {num} values in {took_s:.0f} s of CPU", flush=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
