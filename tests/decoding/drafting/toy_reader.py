"""State readers that are tables or that count, over toy verifiers."""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from speccascade.decoding.records.block_records import Output
from speccascade.models import tree_windows
from tests import toy


@struct.dataclass
class ReadState:
  """What a toy reader remembers: how many tokens it was fed."""

  length: jax.Array
  offset: jax.Array


class Reading:
  """What toy reading models share: a subclass has `look_up`."""

  def prefill(self, inputs, seen, *, capacity):
    length = jnp.zeros(inputs.shape[:1], jnp.int32)
    if seen is None:
      return ReadState(length, length), jnp.zeros((len(inputs), 2))
    offset, last = seen
    return ReadState(length, offset), last

  def extend(
    self,
    state,
    tokens,
    count,
    *,
    states,
    read=None,
    depth=None,
    ancestors=None,
  ):
    tree_windows.check(tokens, depth, ancestors)
    place = (state.offset + state.length)[:, None]
    if depth is None:
      place = place + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    else:
      num = tokens.shape[1]
      place = tree_windows.first_slot(place[:, 0], num, depth)[:, None]
      place = place + tree_windows.depth_of_fed(depth, num)
    logits, hidden = self.look_up(tokens, states, place)
    if read is not None:
      logits, hidden = (
        jnp.take_along_axis(x, read[..., None], axis=1)
        for x in (logits, hidden)
      )
    state = state.replace(length=state.length + count)
    return state, Output(logits=logits, hidden=hidden)

  def states_of(self, hidden):
    return hidden

  def rewind(self, state, length):
    return state.replace(length=jnp.minimum(state.length, length))


@struct.dataclass
class StatesLM(toy.WholeLM):
  """A `WholeLM` that hands out the number of its prompts."""

  def prefill_with_states(self, inputs, *, capacity, reader):
    state = self.prefill(inputs, capacity=capacity)
    slots = jnp.arange(state.tokens.shape[1])[None]
    is_text = slots < state.offset[:, None]
    number = jnp.where(is_text, self.weigh(state.tokens, slots), 0).sum(1)
    last = (number % self.table.shape[0])[:, None].astype(jnp.float32)
    return state, (state.offset, last)


@struct.dataclass
class Counting(Reading):
  """Knows a `StatesLM`: it goes on with the number that it reads.

  Attributes:
    verifier: whose laws it has.
    blur: whether its laws are flatter than the verifier's.
  """

  verifier: StatesLM
  blur: float = struct.field(pytree_node=False, default=1.0)

  @property
  def vocab_size(self):
    return self.verifier.vocab_size

  @property
  def prompted(self):
    return self.verifier.prompted

  def prefill(self, inputs, seen, *, capacity):
    state, last = super().prefill(inputs, seen, capacity=capacity)
    return state, last[:, :1]

  def look_up(self, tokens, states, place):
    table = self.verifier.table
    number = states[..., 0].astype(jnp.int32)
    number += self.verifier.weigh(tokens, place)
    number = number % table.shape[0]
    logits = self.blur * table[number]
    return logits, number[..., None].astype(jnp.float32)


@struct.dataclass
class CountingReader:
  """A state reader that knows the `StatesLM` that it drafts for."""

  vocab_size: int = struct.field(pytree_node=False)
  prompted: bool = struct.field(pytree_node=False)
  blur: float = struct.field(pytree_node=False, default=1.0)

  def reading_model(self, verifier):
    return Counting(verifier, self.blur)

  def verifier_read(self, verifier):
    return verifier


@struct.dataclass
class TableReading(Reading):
  """A law for each pair of a state and a token; its own states have others.

  Attributes:
    table: [2, V, V, V] float logits: whether the state is its own, the token of
      the state, the token, and the token after it. The verifier is a chain of
      order 1, whose states are (source, token).
  """

  table: jax.Array
  prompted: bool = struct.field(pytree_node=False, default=False)

  @property
  def vocab_size(self):
    return self.table.shape[-1]

  def look_up(self, tokens, states, place):
    del place
    own, last = (states[..., i].astype(jnp.int32) for i in range(2))
    hidden = jnp.stack([jnp.ones_like(tokens), tokens], axis=-1)
    return self.table[own, last, tokens], hidden.astype(jnp.float32)


@struct.dataclass
class TableReader:
  """A state reader of the laws of a `TableReading`."""

  table: jax.Array
  prompted: bool = struct.field(pytree_node=False, default=False)

  @property
  def vocab_size(self):
    return self.table.shape[-1]

  def reading_model(self, verifier):
    del verifier
    return TableReading(self.table, self.prompted)

  def verifier_read(self, verifier):
    return verifier


@struct.dataclass
class ThreeStates:
  """A language model that hands out three states at a token, side by side.

  Attributes:
    model: whose states these are, as they are, plus 1, and twice.
  """

  model: Any

  @property
  def vocab_size(self):
    return self.model.vocab_size

  @property
  def prompted(self):
    return self.model.prompted

  def prefill(self, inputs, *, capacity):
    return self.model.prefill(inputs, capacity=capacity)

  def extend(self, state, tokens, count, **options):
    state, out = self.model.extend(state, tokens, count, **options)
    x = out.hidden
    x = jnp.concatenate([x, x + 1, 2 * x], axis=-1)
    return state, out.replace(hidden=x)

  def rewind(self, state, length):
    return self.model.rewind(state, length)

  def keep(self, state, start, path, count):
    return self.model.keep(state, start, path, count)


@struct.dataclass
class FusedTableReading(TableReading):
  """A `TableReading` that makes its state of a `ThreeStates`' states."""

  def states_of(self, hidden):
    first, second, third = jnp.split(hidden, 3, axis=-1)
    return (second - 1 + third - first) / 2


@struct.dataclass
class FusedTableReader(TableReader):
  """A `TableReader` of a verifier's three states."""

  def reading_model(self, verifier):
    del verifier
    return FusedTableReading(self.table, self.prompted)

  def verifier_read(self, verifier):
    return ThreeStates(verifier)


READERS = {"last state": TableReader, "three states": FusedTableReader}
