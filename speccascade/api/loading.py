"""A pair of models in a program or a notebook; see docs/api.md.

import speccascade as sc

pair = sc.load_pair(drafter=SMALL, verifier=LARGE)
out = pair.generate("A text.", method="spec_cascade_opt", alpha=0.3)
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from types import MappingProxyType

from speccascade.api import comparison, generation, model_sources
from speccascade.api.comparison import Comparison
from speccascade.api.conversation import Chat
from speccascade.api.generation import Generation
from speccascade.api.model_sources import ModelSource
from speccascade.api.text_stream import TextStream
from speccascade.data.prompting import Prompting
from speccascade.inference.batches import padding
from speccascade.inference.batches.sources import (
  InputError,
  Sources,
  sources_of_texts,
)
from speccascade.inference.measuring import measure
from speccascade.inference.measuring.study import Study
from speccascade.inference.pair import pairs, shared_tokens
from speccascade.inference.pair.pair_checks import PairError
from speccascade.inference.pair.pairs import ModelPair
from speccascade.inference.points import advice_files
from speccascade.inference.points.point import Point
from speccascade.inference.points.settings import Measuring, Run
from speccascade.models.parameters import KERNEL_DTYPES
from speccascade.models.sharding.meshes import Mesh
from speccascade.settings.fields import at_least, fit, one_of

__all__ = [
  "Chat",
  "Comparison",
  "Generation",
  "Pair",
  "PairError",
  "TextStream",
  "load_pair",
]

DTYPES = ("float32", "bfloat16")
LOSSLESS = "spec_decode"  # which uses every setting but alpha
COMPARED = (
  "verifier",
  "drafter",
  "spec_decode",
  "token_cascade_chow",
  "spec_cascade_token_v3",
)


def load_pair(
  *unnamed: ModelSource,
  drafter: ModelSource | list[ModelSource] | None = None,
  verifier: ModelSource | None = None,
  vocabulary=None,
  drafter_vocabulary=None,
  dtype: str = "float32",
  kernel_dtype: str = "float32",
  mesh: Mapping[str, int] | Mesh | None = None,
) -> "Pair":
  """Reads a drafter and a verifier that decode together.

  Nothing is downloaded from a hub: what is given lies in a folder here, or on
  gs://.

  Args:
    *unnamed: none; models are given by name, so that the two are not confused.
    drafter: the path of a checkpoint in any layout that `checkpoints.load`
      reads; (path, architecture); a model in memory; or a list of these,
      largest first, for methods that compose several. None leaves only the
      verifier alone. T5X's checkpoints do not say their architecture: it is
      read off the arrays, with the activations of T5 1.0 or 1.1.
    verifier: likewise, one. None leaves only the drafter alone.
    vocabulary: path of a SentencePiece model or of a Hugging Face directory, or
      an object with `encode(text) -> ids`, `decode(ids) -> text`, `eos_id` and
      `vocab_size`. None takes the one that lies beside a checkpoint, in its
      MODEL_DIR or Hugging Face directory, or else at the path that the
      checkpoint was trained with.
    drafter_vocabulary: of a drafter that has another one than the verifier,
      likewise, to draft what both have; see docs/decoder_only.md.
    dtype: of the activations, "float32" or "bfloat16"; models in memory keep
      their own.
    kernel_dtype: of the kernels, likewise; "bfloat16" halves what a CPU reads,
      with float32 activations; "bfloat16_products" rounds those, too, where
      they are multiplied.
    mesh: {"data": 2, "model": 4}, or a `Mesh`, which says more; as MESH in
      docs/meshes.md. A model in memory must lie on it.

  Raises:
    PairError: a model or the vocabulary lacks, or they do not fit together.
    CheckpointError: a checkpoint cannot be read or is not of its architecture.
    FileNotFoundError: there is no vocabulary where it should be.
    ValueError: there are fewer devices, or the mesh does not divide a model.
  """
  if unnamed:
    models = ", ".join(f"{source!r:.60}" for source in unnamed)
    raise PairError(
      f"load_pair({models}) does not say which model is which; want"
      " load_pair(drafter=SMALL, verifier=LARGE), of which each is a folder or"
      " gs:// path of a checkpoint"
    )
  dtypes = {"dtype": dtype, "kernel_dtype": kernel_dtype}
  one_of(DTYPES, error=PairError, dtype=dtype)
  one_of(KERNEL_DTYPES, error=PairError, kernel_dtype=kernel_dtype)
  if drafter is None and verifier is None:
    raise PairError(
      "load_pair got no model; give drafter, verifier or both: paths of"
      " checkpoints, (path, architecture), or models in memory"
    )
  models = model_sources.read_models(drafter, verifier, mesh, **dtypes)
  vocabulary = model_sources.read_vocabulary(vocabulary, models)
  if drafter_vocabulary is not None and models.drafters:
    name = "drafter_vocabulary"
    theirs = model_sources.read_vocabulary(drafter_vocabulary, models, name)
    models = shared_tokens.share_tokens(models, vocabulary, theirs)
  pairs.check_models(models)
  pairs.check_vocabulary(models, vocabulary)
  return Pair(models, vocabulary)


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
  """Models and their vocabulary; make one with `load_pair`.

  A program is compiled for each method with its gamma and other fixed settings,
  for each of a few padded lengths, at 1, 8 or batch_size rows. Another alpha,
  temperature, top_p or seed, and other texts, compile nothing.

  Attributes:
    models: the `inference.pair.ModelPair`.
    vocabulary: for texts and EOS.
  """

  models: ModelPair
  vocabulary: object

  def __repr__(self) -> str:
    models = self.models
    names = {"drafter": models.drafter_name, "verifier": models.verifier_name}
    said = [f"{role} {name}" for role, name in names.items() if name]
    return f"Pair of {', '.join(said)}"

  def generate(
    self,
    texts: str | Sequence,
    method: str = "spec_decode",
    *,
    alpha: float | None = None,
    gamma: int | str = 5,
    advice: str | os.PathLike | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    bonus: str = "target",
    verification: str = "token",
    draft_length: str | tuple[str, float] = "fixed",
    max_decode_len: int = 128,
    max_input_len: int = 512,
    truncate: bool = False,
    prompt: str | None = None,
    chat_variables: Mapping = MappingProxyType({}),
    batch_size: int = 32,
    seed: int = 0,
    trace: bool = True,
    log_probs: bool = False,
  ) -> Generation:
    """Returns what a method writes for each text.

    Args:
      texts: the source or prompt, or several; a conversation is a list of
        {"role", "content"}. Draws depend on a text's place among them, and not
        on the other texts.
      method: name in `METHODS`.
      alpha: of the rule or target; None takes the method's default.
      gamma: block size; "auto" takes it from `advice`.
      advice: OUTPUT_DIR of `speccascade.advise`.
      temperature: 0 is greedy.
      top_k: None keeps all.
      top_p: None keeps all.
      bonus: "target" or "verifier".
      verification: "token" or "block".
      draft_length: "fixed", or (policy, threshold); see `DraftLength`.
      max_decode_len: most tokens of an output, EOS counted.
      max_input_len: most tokens of a source, EOS counted.
      truncate: cut longer sources, and say how many, instead of refusing them.
      prompt: of decoder-only models: "chat", "text", or None, which takes
        "chat" where the tokenizer has a template; see `Prompting`.
      chat_variables: what the template reads besides the messages.
      batch_size: most rows decoded at once.
      seed: of the keys.
      trace: record who wrote each token, which the view in a notebook shows.
        Turn it off where only texts matter: see docs/api.md for its cost.
      log_probs: record how likely the target, the verifier and the drafter
        found each token; see docs/definitions.md.

    Raises:
      ValueError: a setting is unknown or out of range, the method needs a model
        that the pair lacks, or a text does not fit.
      NoDistributionError: a model gave none; text and step are named.
    """
    point = self._point(
      method,
      alpha=alpha,
      gamma=gamma,
      advice=advice,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      bonus=bonus,
      verification=verification,
      draft_length=draft_length,
    )
    at_least(1, batch_size=batch_size)
    sources = self._sources(
      texts, max_input_len, truncate, prompt, chat_variables
    )
    rows = generation.rows_for(
      len(sources.examples), batch_size, self.models.layout
    )
    records = {"trace": trace, "log_probs": log_probs}
    run = Run(None, max_decode_len, batch_size=rows, seed=seed, **records)
    return generation.generate(Study(self.models, sources, run), point)

  def compare(
    self,
    texts: str | Sequence,
    methods: str | Sequence[str | tuple[str, float]] = COMPARED,
    *,
    max_decode_len: int = 128,
    max_input_len: int = 512,
    truncate: bool = False,
    prompt: str | None = None,
    chat_variables: Mapping = MappingProxyType({}),
    seed: int = 0,
    repeats: int = 3,
    **settings,
  ) -> Comparison:
    """Returns methods side by side: time at batch 1, calls, texts.

    Args:
      texts: as in `generate`.
      methods: names, or (name, alpha); the verifier alone comes first anyway.
      max_decode_len: as in `generate`, like what follows.
      max_input_len: likewise.
      truncate: likewise.
      prompt: likewise.
      chat_variables: likewise.
      seed: likewise.
      repeats: how often each is timed.
      **settings: gamma, advice, temperature, top_k, top_p, bonus, verification
        and draft_length, for all methods that use them.

    Raises:
      ValueError: as `generate`.
    """
    named = [methods] if isinstance(methods, str) else methods
    kind = Sequence[str | tuple[str, float | None]]
    named = fit("methods", named, kind)
    chosen = [(m, None) if isinstance(m, str) else m for m in named]
    common = Point(LOSSLESS, alpha=None, **settings)
    chosen = [(measure.REFERENCE, None), *chosen]
    common.check_shared(name for name, _ in chosen)
    points = [
      self._checked(common.of(name, alpha=alpha), alpha)
      for name, alpha in chosen
    ]
    sources = self._sources(
      texts, max_input_len, truncate, prompt, chat_variables
    )
    run = Run(None, max_decode_len, batch_size=1, seed=seed)
    measuring = Measuring(num_timed=len(sources.examples), repeats=repeats)
    study = Study(self.models, sources, run, measuring)
    return comparison.compare(study, points)

  def stream(
    self, text, method: str = "spec_decode", *, rounds: int = 1, **settings
  ) -> TextStream:
    """Yields what a method writes for one text, as it is decoded.

    Joined, the pieces are what `generate` writes for it.

    Args:
      text: as in `generate`, but one; a list may hold it.
      method: of those that run as one loop: not the sequence cascades.
      rounds: blocks, or tokens of methods without blocks, between two pieces.
      **settings: as in `generate`; no batch_size or trace. With `log_probs`
        the stream has those of its tokens so far.

    Raises:
      ValueError: as `generate`.
    """
    at_least(1, rounds=rounds)
    settings, point = self._streamed(method, settings)
    return TextStream(self._study(text, **settings), point, rounds)

  def chat(
    self,
    method: str = "spec_decode",
    *,
    system: str | None = None,
    rounds: int = 1,
    room: int = 2048,
    **settings,
  ) -> Chat:
    """Returns a conversation by the tokenizer's chat template.

    Args:
      method: as in `stream`.
      system: the system's message, if there is to be one.
      rounds: likewise.
      room: tokens of answers and questions after the first that the caches
        hold; where they are full, the whole conversation is read again.
      **settings: as in `stream`, but no prompt; of each turn.

    Raises:
      ValueError: as `stream`, or the pair has no chat: its models are
        encoder-decoders, or its tokenizer has no chat template.
    """
    at_least(1, rounds=rounds, room=room)
    self._check_chats()
    if (prompt := settings.get("prompt")) not in (None, "chat"):
      raise ValueError(
        f"prompt is {prompt!r}; a chat has 'chat': leave it out, or use stream"
      )
    settings, point = self._streamed(method, {**settings, "prompt": "chat"})
    variables = settings.get("chat_variables", {})
    prompting = Prompting(self.vocabulary, "chat", variables)

    def start(messages, turn: int) -> TextStream:
      study = self._study([messages], **settings)
      most = max(room, study.run.max_decode_len)
      return TextStream(study, point, rounds, most, turn)

    widths = padding.buckets(settings.get("max_input_len", 512))
    said = [{"role": "system", "content": system}] if system else []
    return Chat(start, prompting, widths, said)

  def _check_chats(self):
    """Raises PairError where the pair knows no conversation."""
    name, lack = self.models.models[-1].name, ""
    if not self.models.prompted:
      lack = f"{name} is an encoder-decoder, and a T5 has no chat"
    elif getattr(self.vocabulary, "chat_template", None) is None:
      lack = f"the tokenizer of {name} has no chat template"
    if lack:
      raise PairError(f"{lack}; use stream, or generate, with a text")

  def _point(
    self, method: str, *, alpha: float | None = None, **settings
  ) -> Point:
    """Returns a point that this pair is to decode, checked."""
    return self._checked(Point(method, alpha=alpha, **settings), alpha)

  def _checked(self, point: Point, alpha: float | None) -> Point:
    """Returns a point that this pair is to decode; `alpha` as it was asked."""
    if alpha is not None:
      point.check_alpha_is_used()
    return advice_files.resolved(point, self.models)

  def _streamed(self, method: str, settings: dict) -> tuple[dict, Point]:
    """Returns the settings of a `_study`, and the point of the others."""
    names = settings.keys() & Point.__dataclass_fields__.keys()
    point = self._point(method, **{name: settings.pop(name) for name in names})
    return settings, point

  def _study(
    self,
    texts,
    *,
    max_decode_len: int = 128,
    seed: int = 0,
    log_probs: bool = False,
    **how,
  ) -> Study:
    """Returns the study of a text that is decoded alone; see `generate`."""
    sources = self._sources(texts, **how)
    if (num := len(sources.examples)) > 1:
      raise InputError(
        f"stream takes one text; {num} were given: call it for each of them, or"
        " generate for all"
      )
    run = Run(
      None, max_decode_len, batch_size=1, seed=seed, log_probs=log_probs
    )
    measuring = Measuring(num_timed=1)
    return Study(self.models, sources, run, measuring)

  def _sources(
    self,
    texts,
    max_input_len: int = 512,
    truncate: bool = False,
    prompt: str | None = None,
    chat_variables: Mapping = MappingProxyType({}),
  ) -> Sources:
    """Returns what is decoded; how many were cut is printed."""
    at_least(1, max_input_len=max_input_len)
    if prompt is None and not self.models.prompted:
      prompt = "source"
    elif prompt is None and not hasattr(self.vocabulary, "prompted"):
      prompt = "text"
    prompting = Prompting(self.vocabulary, prompt, chat_variables)
    sources = sources_of_texts(
      texts, prompting, max_len=max_input_len, truncate=truncate
    )
    if sources.num_cut:
      num = f"{sources.num_cut} of {len(sources.examples)}"
      print(f"{num} texts cut to {max_input_len} tokens")
    return sources
