"""Examples in batches of one size, decoded or timed by one point."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from speccascade.decoding import Decoded, row_keys
from speccascade.evaluation import timing
from speccascade.inference import inputs as sources
from speccascade.inference import records
from speccascade.inference.inputs import Example
from speccascade.inference.pair import Pair
from speccascade.inference.point import Point


class NotFiniteError(ValueError):
  """A model gave NaN, +inf, or no finite logit at all."""


class Batches:
  """Decodes examples in batches of one size, by one point.

  Args:
    pair: the models.
    point: method and settings.
    vocabulary: for texts and EOS.
    lengths: bucket lengths of sources, ascending.
    batch_size: rows.
    max_decode_len: most tokens, EOS counted.
    seed: of the keys.
    trace: whether to record it.
    shared: whether the methods of a family share a program; see `Decoder`.
  """

  def __init__(
    self,
    pair: Pair,
    point: Point,
    vocabulary,
    *,
    lengths: Sequence[int],
    batch_size: int,
    max_decode_len: int,
    seed: int = 0,
    trace: bool = False,
    shared: bool = False,
  ):
    self.pair = pair
    self.point = point
    self.vocabulary = vocabulary
    self.lengths = list(lengths)
    self.batch_size = batch_size
    self.max_decode_len = max_decode_len
    self.seed = seed
    self.decoder = point.decoder(
      max_decode_len=max_decode_len,
      eos_id=vocabulary.eos_id,
      trace=trace,
      shared=shared,
    )
    self.sampling = point.sampling

  def prepare(self, batch: Sequence[Example], trial: int = 0) -> tuple:
    """Returns what `call` takes for up to `batch_size` examples: all that need
    not be timed."""
    inputs, indices = sources.pad_batch(batch, self.batch_size, self.lengths)
    return jnp.asarray(inputs), row_keys(self.seed, trial, indices)

  def call(self, prepared: tuple) -> Decoded:
    """Decodes what `prepare` made; padded rows too, and unchecked."""
    inputs, keys = prepared
    return self.decoder(
      self.pair.drafter_lm,
      self.pair.verifier_lm,
      inputs,
      keys,
      self.point.alpha,
      self.sampling,
    )

  def check(self, decoded: Decoded, batch: Sequence[Example]):
    """Raises NotFiniteError where a model gave no distribution."""
    bad = np.asarray(decoded.bad_step)[: len(batch)]
    for row in np.flatnonzero(bad >= 0):
      text = batch[row].text
      raise NotFiniteError(
        f"a model gave NaN, +inf or no finite logit at step {bad[row]} of"
        f" example {batch[row].index} ({text[:40]!r}); check the checkpoint, or"
        " set DTYPE = 'float32'"
      )

  def run(self, batch: Sequence[Example], trial: int = 0) -> Decoded:
    """Returns the `Decoded` of up to `batch_size` examples, padded rows too.

    Raises:
      NotFiniteError: a model gave no distribution.
    """
    decoded = self.call(self.prepare(batch, trial))
    self.check(decoded, batch)
    return decoded

  def decode(self, part: Sequence[Example], trial: int, bar=None) -> list[str]:
    """Returns the lines of a shard, in order; like lengths go together."""
    order = sorted(part, key=lambda example: len(example.tokens))
    made = []
    for start in range(0, len(order), self.batch_size):
      batch = order[start : start + self.batch_size]
      decoded = self.run(batch, trial)
      made += records.records(decoded, batch, self.vocabulary, trial)
      if bar is not None:
        bar.update(len(batch))
    made.sort(key=lambda record: record["aux"]["index"])
    return [records.to_line(record) for record in made]


def time_batches(
  runs: Mapping, examples: Sequence[Example], *, repeats: int, **settings
) -> dict:
  """Times `Batches` of one row in turns; see `timing.interleaved`.

  Args:
    runs: by any name; all pad to one length.
    examples: what to decode.
    repeats: how often.
    **settings: further ones of `interleaved`; results are checked first.
  """
  like = next(iter(runs.values()))
  prepared = [like.prepare([example]) for example in examples]
  on_result = settings.pop("on_result", lambda name, index, result: None)

  def checked(name, index, decoded):
    runs[name].check(decoded, [examples[index]])
    on_result(name, index, decoded)

  return timing.interleaved(
    {
      name: lambda index, run=run: run.call(prepared[index])
      for name, run in runs.items()
    },
    range(len(examples)),
    repeats=repeats,
    on_result=checked,
    **settings,
  )
