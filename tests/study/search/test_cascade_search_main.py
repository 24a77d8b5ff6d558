"""The ablation of cascades: a search over cascades of a gin file."""

import gin
import pytest

from speccascade import cli
from speccascade.cli import gin_setup
from speccascade.study.search.cascade_space import Candidates

pytestmark = pytest.mark.needs_tf


def test_every_part_is_left_out_once():
  macros = ("VERIFIER_CHECKPOINT", "BIGRAMS", "OUTPUT_DIR")
  bindings = [f"{name} = 'a'" for name in macros]
  file = "configs/experiments/cascade_drafting/ablation.gin"
  try:
    gin_setup.parse([file], bindings)
    candidates = cli.configure(Candidates)()
  finally:
    gin.clear_config()
  cascades = candidates.cascades
  assert len({cascade.label for cascade in cascades}) == 11
  assert {len(cascade.k) for cascade in cascades if cascade.max_gram} == {3}
  assert [c.bigrams for c in cascades].count("a") == 9
  assert [c.lenience for c in cascades].count(3.0) == 4
