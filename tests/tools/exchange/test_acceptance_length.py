"""One acceptance length in rows and files: a cut block has no bonus token."""

import itertools
import json
import types

import pytest

import speccascade as sc
from speccascade.generate.batches import decode_counts
from speccascade.tools.exchange import speculation_profile, vllm_metrics

TEXTS = ["A clever witch sells the new car.", "The king sleeps."]


@pytest.fixture(scope="module")
def pair():
  return sc.built_in_pair()


@pytest.mark.parametrize(
  "end", [{"max_decode_len": 3}, {"stop": ["e"]}, {}], ids=str
)
def test_a_block_that_is_cut_has_no_bonus_token(pair, end):
  out = pair.generate(TEXTS, gamma=5, temperature=0.0, trace=True, **end)
  total = decode_counts.total(list(out.counts))
  by_row, num_cut = [], 0
  for counts, trace in zip(out.counts, _traces(out)):
    lengths = [len([*x]) for _, x in itertools.groupby(trace["block"])]
    by_row.append(lengths)
    # The text ends in a draft: what cut it left no place for a further token.
    is_cut = trace["source"][-1] == "draft"
    num_cut += is_cut
    assert counts.num_tokens == counts.accepted + counts.num_blocks - is_cut
  blocks = [*itertools.chain(*by_row)]
  length = sum(blocks) / len(blocks)
  assert num_cut > 0
  assert out.stats["mean_acceptance_length"] == pytest.approx(length)
  written = vllm_metrics.metrics(total)
  assert written["spec_decode_acceptance_length"] == pytest.approx(length)
  more = written["acceptance_length_with_every_bonus"] - length
  assert more == pytest.approx(num_cut / total.num_blocks)
  # The profile is of the same blocks.
  folder = _folder(out, total, by_row)
  profile = json.loads(speculation_profile.text(folder))
  assert profile["mean_accept_length"] == pytest.approx(length, abs=1e-6)


def _traces(out):
  """Returns the block and the source of each token of each row."""
  return [record["aux"]["trace"] for record in out.records]


def _folder(out, total, by_row):
  """Returns what a profile reads of the folder of a decode."""
  answers = [
    types.SimpleNamespace(lengths=tuple(x), question={}) for x in by_row
  ]
  settings = types.SimpleNamespace(
    method="spec_decode",
    drafter="small",
    verifier="large",
    task="texts",
    num_examples=len(answers),
    max_decode_len=48,
    alpha=None,
    temperature=0.0,
    dtype="float32",
    verification="token",
    block_changes={},
    phases=None,
  )
  row = types.SimpleNamespace(
    counts=total, settings=settings, label="SpecDecode", environment={}
  )
  return types.SimpleNamespace(
    row=row, answers=answers, is_timed=False, check_lengths=lambda: None
  )
