"""Says which method, alpha, gamma and drafter to use, or that nothing pays.

  python -m speccascade.advise --gin_file=configs/quickstart/decode.gin \\
    --gin_file=configs/runs/advise.gin --gin.OUTPUT_DIR='"/tmp/advice"'

Takes the config of a decode, and looks at a few dozen of its examples. Leaves
advice.md, advice.json, which GAMMA = "auto" reads, and advice.gin, to be added
to a decode, in OUTPUT_DIR.
"""

import sys

from speccascade import cli
from speccascade.study import search as _library

# Python finds `speccascade.advise.trees` and the like here.
__path__ = _library.__path__


def main():
  """Measures the pair that gin configured, and prints the advice."""
  from speccascade.study.search import advice_page, advisor

  advice = cli.configure(advisor.advise)(on_start=cli.save_config)
  print(advice_page.write(advice, sys.argv))


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/advise.gin")
