"""Trains a small pair on the built-in task and measures every method with it.

All of it is a function of a `Recipe`. What is done already is found in the
output folder and used again: checkpoints, and the rows of measured points.
"""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import dataclasses
import functools
import pathlib
import threading

import jax
import numpy as np

from speccascade.data import arrays, batches, generated
from speccascade.data.generated import vocabulary as generated_vocabulary
from speccascade.evaluation import quality
from speccascade.inference import inputs as sources
from speccascade.inference import measure, pair, results
from speccascade.models.t5.config import T5Config
from speccascade.models.t5_lm import T5LM
from speccascade.training import checkpointing, loop, optimizers

TASK = "speccascade_en_de"


@dataclasses.dataclass(frozen=True)
class Size:
  """A model of the pair.

  Attributes:
    emb_dim: model width; four heads share it, the MLP is twice as wide.
    num_encoder_layers: as it says.
    num_decoder_layers: likewise. Time at batch 1 goes into decoder steps, and
      speculation saves those alone.
    steps: of training. Steps and not seconds, or the picture would change with
      the machine.
  """

  emb_dim: int
  num_encoder_layers: int
  num_decoder_layers: int
  steps: int


@dataclasses.dataclass(frozen=True)
class Recipe:
  """What the quick start does; the defaults take minutes on two cores.

  Attributes:
    drafter: size of the small model.
    verifier: size of the large one.
    max_tokens: longest source and target, EOS counted; longer pairs are left
      out, in training and in testing.
    num_train: training pairs.
    positions: padded positions a side of a training batch.
    widths: of training batches.
    peak: learning rate of Adafactor, relative to each array's scale.
    warmup_steps: of the learning rate.
    seed: of everything.
    gamma: block size.
    num_test: test sentences decoded by every method.
    num_timed: how many of them are timed.
    repeats: how often each is timed.
    methods: names; None takes all of the table.
  """

  drafter: Size = Size(64, 1, 1, 600)
  verifier: Size = Size(192, 1, 6, 500)
  max_tokens: int = 40
  num_train: int = 48_000
  positions: int = 1024
  widths: tuple[int, ...] = (16, 28, 40)
  peak: float = 0.06
  warmup_steps: int = 60
  seed: int = 0
  gamma: int = 5
  num_test: int = 64
  num_timed: int = 16
  repeats: int = 2
  methods: tuple[str, ...] | None = None

  def config(self, size: Size) -> T5Config:
    """Returns the architecture of a size."""
    return T5Config(
      vocab_size=generated_vocabulary.SIZE,
      emb_dim=size.emb_dim,
      num_heads=4,
      num_encoder_layers=size.num_encoder_layers,
      num_decoder_layers=size.num_decoder_layers,
      head_dim=size.emb_dim // 4,
      mlp_dim=2 * size.emb_dim,
      dropout_rate=0.0,
    )

  def points(self) -> list[measure.Point]:
    """Returns what is measured."""
    return [
      point
      for point in measure.all_points((0.0, 1.0), gamma=self.gamma)
      if self.methods is None or point.method in self.methods
    ]


# Seconds instead of minutes; the models learn nothing. For tests.
FAST = Recipe(
  drafter=Size(8, 1, 1, 3),
  verifier=Size(16, 1, 1, 3),
  max_tokens=16,
  num_train=400,
  positions=64,
  widths=(16,),
  warmup_steps=1,
  gamma=2,
  num_test=3,
  num_timed=1,
  repeats=1,
  methods=("drafter", "verifier", "spec_decode", "spec_cascade_token_v3"),
)


class Vocabulary:
  """The built-in task's vocabulary, as decoding wants it."""

  eos_id = generated_vocabulary.EOS
  vocab_size = generated_vocabulary.SIZE

  @property
  def tokenizer(self):
    return generated_vocabulary.load()

  @functools.cached_property
  def path(self) -> str:
    return str(generated_vocabulary.model_path())

  @functools.cached_property
  def identity(self) -> dict:
    from speccascade.checkpoints import orbax_io

    return orbax_io.vocabulary_identity(self.path)

  def encode(self, text: str) -> list[int]:
    return self.tokenizer.encode(text)

  def decode(self, ids: Sequence[int]) -> str:
    return self.tokenizer.decode(list(ids))


def encoded_pairs(
  split: str, max_tokens: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields (index, source ids, target ids) of the pairs that are short enough.

  Args:
    split: "train", "validation" or "test".
    max_tokens: most ids of either, EOS counted.
  """
  start, chunk = 0, 1000
  while True:
    texts = [generated.pair(split, start + i) for i in range(chunk)]
    inputs = generated.encode([text for text, _ in texts])
    targets = generated.encode([text for _, text in texts])
    for i, (source, target) in enumerate(zip(inputs, targets)):
      if max(len(source), len(target)) <= max_tokens:
        yield start + i, source, target
    start += chunk


def _first(iterator: Iterator, num: int, what: str, progress: bool) -> list:
  from tqdm import trange

  bar = trange(num, desc=what, unit="pair", disable=not progress, delay=1)
  return [next(iterator) for _ in bar]


def training_arrays(recipe: Recipe, progress: bool) -> arrays.TokenArrays:
  """Returns the training pairs, tokenized."""
  found = encoded_pairs("train", recipe.max_tokens)
  pairs = _first(found, recipe.num_train, "generate", progress)
  return arrays.TokenArrays.of([pair[1:] for pair in pairs])


def test_examples(recipe: Recipe) -> list[sources.Example]:
  """Returns the first test sentences, with up to 8 right renderings each."""
  found = encoded_pairs("test", recipe.max_tokens)
  examples = []
  for index, source, _ in _first(found, recipe.num_test, "test", False):
    made = generated.example("test", index)
    examples.append(
      sources.Example(index, made.inputs, source, tuple(made.references))
    )
  return examples


def score(
  examples: Sequence[sources.Example], texts: Sequence[str]
) -> dict[str, dict]:
  """Returns BLEU, and `valid`: the share of texts that are right renderings."""
  scores = measure.bleu(examples, texts)
  references = [example.references for example in examples]
  (share,) = quality.exact_match(texts, references, name="valid")
  scores[share.name] = measure.score_entry(share, examples)
  return scores


def train(
  recipe: Recipe,
  size: Size,
  folder: pathlib.Path,
  data: Callable[[], arrays.TokenArrays],
  progress: bool,
):
  """Trains one model into `folder`, unless its last checkpoint is there.

  Args:
    recipe: how.
    size: which.
    folder: of the run; a run that was killed goes on from its checkpoint.
    data: gives the training pairs when they are needed.
    progress: show a bar.
  """
  config = recipe.config(size)
  saver = checkpointing.Checkpoints(
    folder, config, vocabulary=Vocabulary().identity
  )
  if saver.latest() == size.steps:
    return
  optimizer = optimizers.adafactor(
    optimizers.linear(
      recipe.peak, size.steps, recipe.warmup_steps, final_fraction=0.02
    )
  )
  start = saver.start(optimizer, seed=recipe.seed)
  made = batches.train_batches(
    data(),
    batch_size=recipe.positions // recipe.widths[-1],
    seed=recipe.seed,
    buckets=recipe.widths,
  )
  state = loop.fit(
    config,
    made.iterator,
    steps=size.steps,
    state=start.state,
    first_step=start.first_step,
    optimizer=optimizer,
    seed=recipe.seed,
    progress=progress,
    name=f"train {folder.name}",
  )
  saver.save(state, first_step=start.first_step)
  saver.close()


def study(
  recipe: Recipe, models: pair.Pair, examples: Sequence[sources.Example]
) -> measure.Study:
  """Returns what all points have in common."""
  return measure.Study(
    pair=models,
    vocabulary=Vocabulary(),
    examples=examples,
    task=TASK,
    split="test",
    max_decode_len=recipe.max_tokens + 8,
    num_timed=recipe.num_timed,
    repeats=recipe.repeats,
    seed=recipe.seed,
    score=score,
  )


def _random_pair(recipe: Recipe) -> pair.Pair:
  """Returns untrained models of the pair's architectures, to compile with."""
  small, large = (
    pair.Model(T5LM.init(recipe.config(size), jax.random.key(0)), "", "")
    for size in (recipe.drafter, recipe.verifier)
  )
  return pair.Pair((small,), large)


def trained_pair(
  folder: pathlib.Path,
  recipe: Recipe = Recipe(),
  *,
  progress: bool = True,
  say: Callable[[str], None] = print,
  meanwhile: Callable[[], object] = lambda: None,
) -> pair.Pair:
  """Returns the pair of a recipe; trains what `folder` does not hold yet.

  The two models train side by side.

  Args:
    folder: of the checkpoints, in `small` and `large`.
    recipe: what to train.
    progress: show bars.
    say: told what happens.
    meanwhile: called as soon as the small model is ready.
  """
  folders = {"small": recipe.drafter, "large": recipe.verifier}
  for name, size in folders.items():
    say(
      f"{name}: width {size.emb_dim}, {size.num_encoder_layers} +"
      f" {size.num_decoder_layers} layers, {size.steps} steps"
    )
  lock = threading.Lock()
  made = functools.cache(lambda: training_arrays(recipe, progress))

  def data():
    with lock:
      return made()

  with concurrent.futures.ThreadPoolExecutor(1) as side:
    large = side.submit(
      train, recipe, folders["large"], folder / "large", data, progress
    )
    train(recipe, folders["small"], folder / "small", data, progress)
    meanwhile()
    large.result()
  return pair.load_pair(
    drafter_checkpoint=str(folder / "small"),
    verifier_checkpoint=str(folder / "large"),
  )


def run(
  folder: pathlib.Path,
  recipe: Recipe = Recipe(),
  *,
  progress: bool = True,
  say: Callable[[str], None] = print,
) -> list[results.ResultRow]:
  """Trains, decodes and measures; returns a row for each point.

  What decoding needs is compiled as soon as the small model is ready; nothing
  else runs while decoding is timed.

  Args:
    folder: where everything is kept.
    recipe: what to do.
    progress: show bars.
    say: told what happens.
  """
  file = results.ResultFile(folder / results.FILE_NAME)
  examples = test_examples(recipe)
  points = recipe.points()

  def compile_all():
    draft = study(recipe, _random_pair(recipe), examples)
    measure.warm_up(draft, points)

  models = trained_pair(
    folder, recipe, progress=progress, say=say, meanwhile=compile_all
  )
  return measure.measure(
    study(recipe, models, examples), points, file, progress=progress
  )
