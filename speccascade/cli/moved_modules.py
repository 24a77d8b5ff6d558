"""Modules that moved, for gin files that import them from their old place."""

# Old name -> new name. A module that moves gets a line here.
MOVED = (
  {
    f"speccascade.{old}": f"speccascade.study.search.{new}"
    for old, new in (
      *((f"advise.{name}", name) for name in ("advisor", "effort", "wanted")),
      ("advise.tree_search", "tree_search"),
      ("cascade_search.candidates", "cascade_space"),
      ("cascade_search.search", "halving"),
      *((f"sweep.{name}", name) for name in ("plans", "shown")),
      ("sweep.sweep", "sweeps"),
    )
  }
  | {
    f"speccascade.decoding.{old}": f"speccascade.decoding.{new}"
    for old, new in (
      ("block_records", "records.block_records"),
      ("decode_settings", "records.decode_settings"),
      ("drafting.cascade", "nested.cascade"),
      ("drafting.draft_tree", "records.draft_tree"),
      ("drafting.drafter", "records.drafter"),
      ("drafting.feeding", "records.feeding"),
      ("drafting.vertical", "nested.vertical"),
      ("loops.emission", "records.token_buffers"),
      ("loops.prompts", "records.prompts"),
      ("types", "records.language_model"),
    )
  }
  | {
    "speccascade.tasks.generated.vocabulary": (
      "speccascade.tasks.generated.task_pieces"
    ),
    "speccascade.generate.pair.side_by_side": (
      "speccascade.generate.pair.cascades"
    ),
    "speccascade.generate.points.settings": "speccascade.generate.run",
    "speccascade.learned_rule.learn": "speccascade.training.rule_learning",
    "speccascade.ngrams.ngram_files": "speccascade.training.ngram_files",
  }
)


def import_line(old: str) -> str | None:
  """Returns the line that imports a module from its new place.

  A module whose own name changed keeps the old one as an alias, so that the
  bindings of a file stay as they are.

  Args:
    old: full name of the module, as a gin file has it.

  Returns:
    The line; None for a module that did not move.

  >>> import_line("speccascade.decoding.types")
  'from speccascade.decoding.records import language_model as types'
  """
  if old not in MOVED:
    return None
  package, _, name = MOVED[old].rpartition(".")
  old_name = old.rpartition(".")[2]
  alias = "" if name == old_name else f" as {old_name}"
  return f"from {package} import {name}{alias}"
