"""A model of NVIDIA's harness `specdec_bench`: `SpeccascadeModel`.

The harness asks questions one after another, and measures acceptance lengths
and times. Its `run.py` finds a model class by the name of an engine; two lines
add this one:

  from speccascade.tools.exchange.specdec_bench import SpeccascadeModel
  engines_available["SPECCASCADE"] = SpeccascadeModel

Source: the interface of `examples/specdec_bench/specdec_bench/models/base.py`
and `run.py` of github.com/NVIDIA/Model-Optimizer, at a2fbac7.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
import time
from typing import Any

import numpy as np

from speccascade.generate.api.loading import load_pair
from speccascade.generate.batches import padding
from speccascade.generate.batches.batching import Batches
from speccascade.generate.batches.sources import Source, Sources
from speccascade.generate.pair.prompt_lookup import PromptLookup
from speccascade.generate.points.alpha_phases import PhaseSettings
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.generate.session import Session
from speccascade.generate.turns.text_stream import TokenStream
from speccascade.settings.fields import values_of
from speccascade.text.prompting import eos_ids

# Names of --speculative_algorithm that this class knows.
ALGORITHMS = ("DRAFT_TARGET", "NGRAM", "NONE")
# Arguments of the harness that say nothing to this class.
_UNUSED = (
  "moe_expert_parallel_size",
  "parallel_drafting",
  "speculative_num_draft_tokens",
  "tokenizer_path",
  "trust_remote_code",
)
_NO_END = -1  # the harness's id for: nothing ends an output


class SpeccascadeModel:
  """Answers one request at a time by a method of `METHODS`.

  The turns of a request continue in the caches of the turns before, where the
  prompt of a turn begins with the tokens that the caches hold.

  Args:
    model_dir: the verifier, as `load_pair` takes it.
    max_concurrent_requests: 1.
    sampling_kwargs: "temperature", 1 by default; "top_p" and "top_k".
    speculative_algorithm: "DRAFT_TARGET", a small model drafts; "NGRAM", drafts
      are copied; "NONE", the verifier alone.
    draft_model_dir: the drafter of "DRAFT_TARGET".
    speculative_num_steps: gamma.
    tensor_parallel_size: the devices that each model is sharded over.
    method: a name in `METHODS`.
    dtype: the dtype of the activations; see `load_pair`.
    max_input_len: the most tokens of a prompt.
    room: the tokens of answers, and of questions after the first, that caches
      hold.
    **settings: other fields of `Point`, such as alpha; and arguments of the
      harness that have no meaning here.

  Raises:
    ValueError: a setting is unknown or out of range.
  """

  def __init__(
    self,
    model_dir: str,
    max_concurrent_requests: int,
    sampling_kwargs: Mapping[str, Any],
    *,
    speculative_algorithm: str = "NONE",
    draft_model_dir: str | None = None,
    speculative_num_steps: int = 3,
    tensor_parallel_size: int = 1,
    method: str = "spec_decode",
    dtype: str = "float32",
    max_input_len: int = 4096,
    room: int = 2048,
    **settings: Any,
  ):
    if max_concurrent_requests != 1:
      raise ValueError(
        f"--concurrency is {max_concurrent_requests}, and requests are answered"
        " one at a time: give --concurrency 1"
      )
    if speculative_algorithm not in ALGORITHMS:
      raise ValueError(
        f"--speculative_algorithm is {speculative_algorithm}; wanted one of"
        f" {', '.join(ALGORITHMS)}, with engine_args: method for others than"
        " spec_decode"
      )
    if "gamma" in settings or not isinstance(speculative_num_steps, int):
      raise ValueError(
        f"--draft_length is {speculative_num_steps!r}; wanted a number, which"
        " is gamma: leave gamma out of engine_args"
      )
    drafter: Any = draft_model_dir
    if speculative_algorithm == "NONE":
      drafter, method = None, "verifier"
    elif speculative_algorithm == "NGRAM":
      drafter = PromptLookup(speculative_num_steps)
    mesh = None
    if tensor_parallel_size > 1:
      mesh = {"data": 1, "model": tensor_parallel_size}
    self._pair = load_pair(
      drafter=drafter, verifier=model_dir, dtype=dtype, mesh=mesh
    )
    self._point = Point(
      method,
      gamma=speculative_num_steps,
      temperature=sampling_kwargs.get("temperature", 1.0),
      top_p=sampling_kwargs.get("top_p"),
      top_k=sampling_kwargs.get("top_k") or None,
      **{name: x for name, x in settings.items() if name not in _UNUSED},
    )
    self._max_input_len, self._room = max_input_len, room
    self._widths = padding.buckets(max_input_len)
    # The stream of the last request, what decodes it, the prompt that it began
    # with, and the tokens that its caches hold.
    self._stream: TokenStream | None = None
    self._decodes: Batches | None = None
    self._begun: list[int] = []
    self._held: list[int] = []
    # What decodes answers of some length and end, and what was compiled.
    self._batches: dict[tuple[int, int], Batches] = {}
    self._met: set[tuple] = set()

  async def run(
    self,
    prompt_ids: Sequence[int],
    max_length: int,
    end_id: int,
    request_id: int = 0,
    turn_id: int = 0,
  ) -> dict[str, Any]:
    """Answers a turn of a request.

    Args:
      prompt_ids: the tokens of the conversation, up to the answer.
      max_length: the most tokens of an answer.
      end_id: an id that ends an answer; -1 lets nothing end it.
      request_id: the number of the request.
      turn_id: the number of the turn, from 0.

    Returns:
      "output_ids": the tokens of each step, in a list of one beam, without the
      id that ended the answer. "token_times": the wall-clock seconds at the
      beginning, and after each step. "output_logits": None.
    """
    key = max_length, end_id
    if key not in self._batches:
      self._batches[key] = self._make_batches(*key)
    batches = self._batches[key]
    prompt, held = list(prompt_ids), self._held
    stream = None
    continues = turn_id and self._decodes is batches
    if continues and prompt[: len(held)] == held:
      stream = self._turn(batches, prompt[len(held) :], turn_id)
    if stream is None:
      stream = self._begin(batches, prompt, request_id, turn_id)
    while not stream.ended:
      stream.advance()
    self._stream, self._decodes = stream, batches
    self._held = prompt + stream.tokens.tolist()
    return _output(stream, np.atleast_1d(batches.decoder.eos_id).tolist())

  def _begin(
    self, batches: Batches, prompt: list[int], request_id: int, turn_id: int
  ) -> TokenStream:
    """Returns a stream that read a whole prompt."""
    source = Source(request_id, "", np.array(prompt, np.int32))
    room = max(self._room, batches.run.max_decode_len)
    open_stream = functools.partial(
      TokenStream, batches, source, 1, room, turn_id
    )
    stream = open_stream()
    if self._is_new(batches, False, stream.width):
      if not stream.ended:
        stream.advance()
      stream = open_stream()  # what was compiled under the clock, again
    self._begun = prompt
    return stream

  def _turn(
    self, batches: Batches, new: list[int], turn_id: int
  ) -> TokenStream | None:
    """Returns the stream after a further turn; None where it does not fit."""
    stream = self._stream
    padded = None if stream is None else stream.pad_turn(new, self._widths)
    if padded is None:
      return None
    if self._is_new(batches, True, len(padded)):
      begun = self._begin(batches, self._begun, 0, 0)
      if begun.fits(len(padded)):
        begun.turn(padded, 0)
    stream.turn(padded, turn_id)
    return stream

  def _is_new(self, batches: Batches, is_turn: bool, width: int) -> bool:
    """Returns whether a program is not compiled yet, and counts it as it is."""
    program = batches.decoder, is_turn, width
    is_new = program not in self._met
    self._met.add(program)
    return is_new

  def _make_batches(self, max_length: int, end_id: int) -> Batches:
    """Returns what decodes answers of some length, up to some end."""
    run = Run(
      max_decode_len=max_length, batch_size=1, ignore_eos=end_id == _NO_END
    )
    sources = Sources(
      [Source(0, "", np.zeros(1, np.int32))],
      self._pair.vocabulary,
      self._max_input_len,
      prompted=True,
    )
    batches = Session(self._pair.models, sources, run).batches(
      self._point, shared=False
    )
    ends = run.end_ids(eos_ids(self._pair.vocabulary))
    if end_id != _NO_END:
      ends = tuple(dict.fromkeys([*np.atleast_1d(ends).tolist(), end_id]))
    decoder = dataclasses.replace(batches.decoder, eos_id=ends)
    return dataclasses.replace(batches, decoder=decoder, lengths=self._widths)

  def get_serving_config(self) -> dict[str, Any]:
    """Returns the settings, for the harness's record of a run."""
    models, point = self._pair.models, self._point
    phases = values_of(point, PhaseSettings) if point.has_phases else {}
    return {
      "engine": "speccascade",
      "verifier": models.verifier_name,
      "drafter": models.drafter_name,
      "method": point.method,
      "alpha": point.alpha,
      **phases,
      "gamma": point.gamma,
      **point.sampled,
      "max_input_len": self._max_input_len,
      "room": self._room,
    }

  def stop(self):
    """Drops the caches."""
    self._stream = None


def _output(stream: TokenStream, ends: Sequence[int]) -> dict[str, Any]:
  """Returns the steps of an answer, as the harness reads them."""
  read_s, calls = stream.calls[0][1], stream.steps()
  times_s = np.cumsum([read_s, *(seconds for _, seconds in calls)])
  places = [0, *(length for length, _ in calls)]
  tokens = stream.tokens.tolist()
  chunks = [tokens[x:y] for x, y in itertools.pairwise(places)]
  times_s = [0.0, *times_s[1:].tolist()]
  if tokens and tokens[-1] in ends:
    chunks[-1].pop()
    if not chunks[-1]:  # a step that wrote nothing else
      chunks.pop()
      times_s.pop()
  # The clock of now, less what the answer took.
  start_s = time.perf_counter() - sum(seconds for _, seconds in stream.calls)
  return {
    "output_ids": [chunks],
    "output_logits": None,
    "token_times": [start_s + second for second in times_s],
  }
