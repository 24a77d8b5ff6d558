"""Decodes a task's split, or a file, by one method; resumable.

Leaves in OUTPUT_DIR: `predictions.jsonl` (a line for each example and trial),
`metrics.json` (one `ResultRow`), `config.gin` (the resolved configuration) and
`run.json` (what a later start compares itself with); with a trace also
`tokens.html`, who wrote each token of the first examples.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import json
import os
import pathlib

from speccascade.evaluation import efficiency, quality, timing
from speccascade.evaluation.efficiency import Counts
from speccascade.inference import cascades, results, token_view
from speccascade.inference import inputs as sources
from speccascade.inference import pair as pairs
from speccascade.inference.batching import Batches, time_batches
from speccascade.inference.cascades import Cascade
from speccascade.inference.inputs import Example
from speccascade.inference.pair import Pair
from speccascade.inference.point import Point
from speccascade.inference.shards import Shards
from speccascade.models.t5.config import T5Config

TOKENS = "tokens.html"
_SHARD_EXAMPLES = 128


def infer(
  *,
  method: str,
  output_dir: str | os.PathLike,
  task_feature_lengths: Mapping[str, int],
  vocabulary=None,
  drafter: T5Config | Sequence[T5Config] | None = None,
  verifier: T5Config | None = None,
  drafter_checkpoint: str | Sequence[str] | None = None,
  verifier_checkpoint: str | None = None,
  cascade: Cascade | None = None,
  mixture_or_task_name: str | None = None,
  split: str = "validation",
  input_file: str | None = None,
  num_examples: int | None = None,
  alpha: float | None = None,
  gamma: int = 5,
  temperature: float = 1.0,
  top_k: int | None = None,
  top_p: float | None = None,
  bonus: str = "target",
  verification: str = "token",
  draft_length: str | tuple[str, float] = "fixed",
  max_decode_len: int = 128,
  batch_size: int = 32,
  seed: int = 0,
  trials: int = 1,
  trace: bool = False,
  num_shown: int = 20,
  dtype: str = "float32",
  metrics: Sequence[str] | None = None,
  truncate: bool = False,
  use_cached: bool = False,
  num_timed: int = 0,
  repeats: int = 3,
  progress: bool = True,
  on_start: Callable[[pathlib.Path], object] | None = None,
) -> results.ResultRow:
  """Decodes, writes, and returns the row of `metrics.json`.

  Args:
    method: name in `METHODS`.
    output_dir: a new folder, or that of the same run, which is taken up.
    task_feature_lengths: {"inputs": most tokens of a source}.
    vocabulary: path of a SentencePiece model, or a vocabulary as seqio's; None
      takes the task's own.
    drafter: architecture (several for methods that compose them); None takes
      the checkpoint's own.
    verifier: architecture, likewise.
    drafter_checkpoint: path, or several.
    verifier_checkpoint: path.
    cascade: how the drafters are combined, with others; None leaves that to the
      method.
    mixture_or_task_name: a registered seqio task; or else `input_file`.
    split: of the task.
    input_file: text lines or JSONL; see `examples.read_file`.
    num_examples: the first of them; None decodes all.
    alpha: of the rule or target; None takes the method's default.
    gamma: block size.
    temperature: 0 is greedy.
    top_k: None keeps all.
    top_p: None keeps all.
    bonus: "target" or "verifier".
    verification: "token" or "block".
    draft_length: "fixed", or (policy, threshold).
    max_decode_len: most tokens of an output, EOS counted.
    batch_size: rows decoded at once.
    seed: of the keys.
    trials: how often to decode everything, with other keys.
    trace: also record who wrote each token.
    num_shown: first examples on the page that shows it; 0 writes none.
    dtype: of the activations.
    metrics: names in `quality.METRICS`; None takes the task's, or BLEU.
    truncate: cut texts of a file that are too long instead of refusing them.
    use_cached: read the task's cached examples.
    num_timed: examples timed at batch 1 against the verifier alone; needs both
      models.
    repeats: how often each is timed.
    progress: show a bar.
    on_start: called with `output_dir` once it exists.

  Raises:
    ValueError: a setting, a model or an input does not fit; nothing is written
      before the first examples are decoded.
    NotFiniteError: a model gave no distribution; example and step are named.
  """
  point = Point(
    method=method,
    alpha=alpha,
    gamma=gamma,
    temperature=temperature,
    top_k=top_k,
    top_p=top_p,
    bonus=bonus,
    verification=verification,
    draft_length=draft_length,
  )
  _check_counts(
    batch_size=batch_size, trials=trials, max_decode_len=max_decode_len
  )
  if num_shown < 0:
    raise ValueError(f"NUM_SHOWN is {num_shown}; wanted 0 (no page) or more")
  max_len = sources.input_length(task_feature_lengths)
  found = sources.read(
    vocabulary,
    max_len=max_len,
    mixture_or_task_name=mixture_or_task_name,
    split=split,
    input_file=input_file,
    num_examples=num_examples,
    truncate=truncate,
    use_cached=use_cached,
  )
  vocabulary = found.vocabulary
  for name in metrics or ():
    quality.metric(name)
  pair = pairs.load_pair(
    drafter=drafter,
    verifier=verifier,
    drafter_checkpoint=drafter_checkpoint,
    verifier_checkpoint=verifier_checkpoint,
    dtype=dtype,
    needs_drafter=point.spec.needs_drafter or num_timed > 0,
    needs_verifier=point.spec.needs_verifier or num_timed > 0,
  )
  pairs.check_vocabulary(
    pair, vocabulary.vocab_size, sources.identity(vocabulary)
  )
  if cascade is not None:
    identity = sources.identity(vocabulary) or {}
    pair = cascades.combine(pair, cascade, point.spec, identity.get("sha256"))
  examples = found.examples
  settings = point.settings(
    max_decode_len=max_decode_len,
    task=mixture_or_task_name or str(input_file),
    split=split if mixture_or_task_name else "",
    num_examples=len(examples),
    drafter=pair.drafter_name,
    verifier=pair.verifier_name,
    seed=seed,
    trials=trials,
    dtype=dtype,
  )
  per_shard = batch_size * -(-_SHARD_EXAMPLES // batch_size)
  jobs = [
    (trial, examples[start : start + per_shard])
    for trial in range(trials)
    for start in range(0, len(examples), per_shard)
  ]
  run = {
    **dataclasses.asdict(settings),
    "inputs_sha256": sources.fingerprint(examples),
    "trace": trace,
    "batch_size": batch_size,
  }
  shards = Shards(output_dir, run, len(jobs))
  shards.check()
  batches = Batches(
    pair,
    point,
    vocabulary,
    lengths=sources.buckets(max_len),
    batch_size=batch_size,
    max_decode_len=max_decode_len,
    seed=seed,
    trace=trace,
  )
  with _bar(len(examples) * trials, progress, point.spec.label) as bar:
    missing = set(shards.missing())
    for number, (trial, part) in enumerate(jobs):
      if number not in missing:
        bar.update(len(part))
        continue
      lines = batches.decode(part, trial, bar)
      shards.open()
      shards.write(number, lines)
  shards.open()
  if on_start is not None:
    on_start(pathlib.Path(output_dir))
  shards.merge()
  if trace and num_shown:
    shown = list(itertools.islice(shards.records(), num_shown))
    page = token_view.page_html(shown, _title(settings, point))
    results.write_whole(pathlib.Path(output_dir) / TOKENS, page)
  path = pathlib.Path(output_dir) / results.METRICS
  if path.exists():
    return results.ResultRow.from_json(path.read_text(encoding="utf-8"))
  row = summarise(
    shards.records(), settings, point, metrics or found.metrics, found.num_cut
  )
  if num_timed:
    row = with_latency(
      row, pair, point, examples[:num_timed], batches, repeats=repeats
    )
  results.write_whole(path, json.dumps(json.loads(row.to_json()), indent=2))
  return row


def _check_counts(**values):
  for name, value in values.items():
    if value < 1:
      raise ValueError(f"{name.upper()} is {value}; wanted 1 or more")


def _title(settings: results.Settings, point: Point) -> str:
  """The heading of the page of tokens."""
  parts = [point.spec.label]
  for name in ("alpha", "gamma", "temperature"):
    value = getattr(settings, name)
    if value is not None:
      parts.append(f"{name} {value:g}")
  parts.append(f"{settings.task} {settings.split}".rstrip())
  return ", ".join(parts)


def _bar(total: int, progress: bool, label: str):
  from tqdm import tqdm

  return tqdm(total=total, unit="ex", desc=label, disable=not progress)


def summarise(
  lines, settings, point: Point, metrics: Sequence[str], num_cut: int
) -> results.ResultRow:
  """Returns the row of a run from its records.

  Trials of an example are resampled together.
  """
  counts, predictions, references, indices = [], [], [], []
  for record in lines:
    counts.append(Counts.from_dict(record["aux"]["counts"]))
    predictions.append(record["prediction"])
    references.append(record.get("targets", []))
    indices.append(record["aux"]["index"])
  total = efficiency.total(counts)
  scores = {}
  if all(references):
    scores = quality.evaluate(metrics, predictions, references, groups=indices)
  return results.ResultRow(
    settings=settings,
    label=point.spec.label,
    counts=total,
    efficiency=efficiency.summary(total),
    quality=scores,
    num_truncated=num_cut,
    environment=results.environment(timing.device_name()),
  )


def with_latency(
  row: results.ResultRow,
  pair: Pair,
  point: Point,
  examples: Sequence[Example],
  like: Batches,
  *,
  repeats: int,
) -> results.ResultRow:
  """Returns the row with wall-clock at batch 1 against the verifier alone.

  Sources are padded to one length, so that nothing compiles while the clock
  runs.

  Args:
    row: of the same point.
    pair: both models.
    point: what is timed.
    examples: the timed ones.
    like: settings of the run.
    repeats: how often each is timed.
  """
  longest = max(len(example.tokens) for example in examples)
  length = sources.bucket_of(longest, like.lengths)
  alone = dataclasses.replace(point, method="verifier", alpha=None)
  runs = {
    name: Batches(
      pair,
      one,
      like.vocabulary,
      lengths=[length],
      batch_size=1,
      max_decode_len=like.max_decode_len,
      seed=like.seed,
    )
    for name, one in (("own", point), ("verifier", alone))
  }
  seconds = time_batches(runs, examples, repeats=repeats)
  latency = timing.latency(seconds["own"], seconds["verifier"])
  costs = None
  if len(pair.drafters) == 1 and pair.composed is None:
    costs = timing.measure_costs(
      pair.drafter_lm,
      pair.verifier_lm,
      sources.pad_batch(examples[:1], 1, [length])[0],
      point.sampling,
      max_decode_len=like.max_decode_len,
      widths=[point.verify_width],
    )
  predicted = costs and point.predicted_speedup(row.counts, costs)
  return dataclasses.replace(
    row,
    latency=latency,
    costs=costs,
    predicted_speedup=predicted,
    measured_speedup=1 / latency.relative_latency,
  )
