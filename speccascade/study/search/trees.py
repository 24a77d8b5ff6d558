"""Says which tree of drafts pays for a pair on this machine, if any does.

  python -m speccascade.advise.trees \\
    --gin_file=configs/quickstart/decode.gin \\
    --gin_file=configs/runs/advise_trees.gin \\
    --gin.OUTPUT_DIR='"/tmp/trees"'

Takes the config of a decode with one drafter or with draft heads: its METHOD,
ALPHA and sampling are what the tree is for. Leaves trees.md, trees.json and
trees.gin, which is to be added to a decode, in OUTPUT_DIR.
"""

from speccascade import cli


def main():
  """Measures the pair that gin configured, and prints the advice."""
  from speccascade.study.search import tree_page, tree_search

  advice = cli.configure(tree_search.search)(on_start=cli.save_config)
  print(tree_page.write(advice))


if __name__ == "__main__":
  cli.run(main, __doc__, skeleton="configs/runs/advise_trees.gin")
