"""The records of settings: what equals what, and who inherits them."""

import typing

import pytest

from speccascade.decoding import METHODS, Decoder
from speccascade.decoding.laws.sampling import SamplingSettings
from speccascade.decoding.loops.execution import LoopSettings
from speccascade.decoding.records.decode_settings import (
  BlockShape,
  DraftLength,
  Records,
  ReviewSettings,
  Verification,
)
from speccascade.decoding.verification import steps
from speccascade.settings.fields import names_of, values_of


@pytest.mark.parametrize(
  ("settings", "sampled"),
  [
    ({}, (1.0, None, None)),
    ({"temperature": 0.5, "top_k": 3, "top_p": 0.9}, (0.5, 3, 0.9)),
    # Numbers that keep every token.
    ({"top_k": 0, "top_p": 1}, (1.0, None, None)),
    # Nothing is filtered from an arg-max.
    ({"temperature": 1e-4, "top_k": 3, "top_p": 0.9}, (0.0, None, None)),
  ],
)
def test_settings_that_draw_alike_are_equal(settings, sampled):
  values = SamplingSettings(**settings).sampled
  names = ("temperature", "top_k", "top_p")
  assert tuple(values[name] for name in names) == sampled


def test_a_draft_length_is_what_a_configuration_writes():
  assert DraftLength.parse("fixed") == DraftLength()
  assert DraftLength.parse(("max_prob", 0.4)) == DraftLength("max_prob", 0.4)


def test_verifier_steps_have_the_names_of_the_setting():
  assert typing.get_args(Verification) == tuple(steps.VERIFY)


def test_a_decoder_and_its_loop_have_all_settings():
  settings = {"gamma": 3, "bonus": "verifier", "log_probs": True}
  decoder = Decoder(
    METHODS["spec_decode"], max_decode_len=4, eos_id=1, **settings
  )
  shape = values_of(decoder, BlockShape)
  assert BlockShape(**shape) == BlockShape(gamma=3, bonus="verifier")
  assert Records(**values_of(decoder, Records)) == Records(log_probs=True)
  names = {*names_of(ReviewSettings), *names_of(Records)}
  assert names <= {*names_of(LoopSettings)}
