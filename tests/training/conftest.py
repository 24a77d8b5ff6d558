"""A tiny model, random batches, and steps that compile in half the time."""

import contextlib
import functools
from unittest import mock

import jax
import numpy as np
import pytest

from speccascade.models import T5Config


def random_batch(seed, rows=4, source=7, target=6, vocab_size=40):
  """Returns a batch of random sentences with ragged lengths and EOS."""
  rng = np.random.default_rng(seed)

  def sentences(length):
    tokens = rng.integers(2, vocab_size, (rows, length)).astype(np.int32)
    ends = rng.integers(1, length, rows)
    column = np.arange(length)
    tokens = np.where(column < ends[:, None], tokens, 0)
    return np.where(column == ends[:, None], 1, tokens).astype(np.int32)

  return {
    "encoder_input_tokens": sentences(source),
    "decoder_target_tokens": sentences(target),
  }


# Dropout is on, so that its keys are under test too.
TINY = T5Config(
  vocab_size=40,
  emb_dim=16,
  num_heads=2,
  num_encoder_layers=1,
  num_decoder_layers=1,
  head_dim=8,
  mlp_dim=32,
  dropout_rate=0.1,
)


@pytest.fixture(scope="session")
def tiny_config():
  return TINY


@contextlib.contextmanager
def quick_compiles():
  """Leaves out LLVM's optimisations: tiny steps need none."""
  quick = functools.partialmethod(
    jax.stages.Lowered.compile,
    compiler_options={"xla_backend_optimization_level": 0},
  )
  with mock.patch.object(jax.stages.Lowered, "compile", quick):
    yield


@pytest.fixture(scope="session", autouse=True)
def _quick_compiles():
  with quick_compiles():
    yield
