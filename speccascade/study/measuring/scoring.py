"""Scores the outputs of a point, and makes its result row.

Outputs are scored against references, and greedy ones are compared with the
greedy verifier's outputs.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from speccascade.decoding.records import prompts
from speccascade.generate.batches import decode_counts
from speccascade.generate.batches.sources import Source
from speccascade.generate.points.call_costs import Costs
from speccascade.generate.points.point import Point
from speccascade.generate.records import Outputs
from speccascade.models.sharding.partitioning import fetch
from speccascade.study.evaluation import efficiency, lengths
from speccascade.study.evaluation.lengths import Lengths
from speccascade.study.evaluation.walltime import Latency
from speccascade.study.measuring.environment import environment
from speccascade.study.measuring.point_timing import REFERENCE
from speccascade.study.measuring.study import Study
from speccascade.study.rows.results import ResultRow
from speccascade.tasks import corpus_scores, quality

# The largest difference of two logits that count as a tie. The rounding of
# float32 sums depends on the shapes in which they are computed, and a block has
# another shape than a single token.
TIE = 1e-4


def result_row(
  study: Study,
  point: Point,
  outputs: Outputs,
  *,
  latency: Latency | None = None,
  costs: Costs | None = None,
  agreement: dict | None = None,
  exact: Lengths | None = None,
) -> ResultRow:
  """Returns the row of a point that was decoded.

  Args:
    study: the models, the examples and the settings of all points.
    point: the method and its settings.
    outputs: what the point wrote. Without references the row has no quality.
    latency: the latency of the point, or None.
    costs: the costs of the pair, or None.
    agreement: the result of `count_identical`, or None.
    exact: the lengths of the answers of the verifier alone at the point's
      sampling, by example, or None. See `exact_lengths`.
  """
  counts = decode_counts.total(outputs.counts)
  # In the order of trials and examples, so that the bootstrap resamples the
  # examples of every point alike.
  by_index = {example.index: example for example in study.examples}
  in_order = sorted(outputs.tokens)
  examples = [by_index[index] for _, index in in_order]
  texts = [
    study.session.text_of(outputs.tokens[key], example)
    for key, example in zip(in_order, examples)
  ]
  predicted_speedup = measured_speedup = seconds = relative_length = None
  own = lengths.answer_lengths(outputs.tokens)
  if point.method == REFERENCE:
    exact = own
  if exact is not None:
    relative_length = lengths.relative_length(own, exact)
  if outputs.seconds:
    seconds = float(np.mean(outputs.seconds))
  if costs is not None:
    predicted_speedup = efficiency.predicted_at(
      point, counts, costs, study.pair.num_distributions
    )
  if latency is not None:
    measured_speedup = 1 / latency.relative_latency
    seconds = latency.walltime_s
  settings = study.settings(point, trials=outputs.num_trials)
  return ResultRow(
    settings=settings,
    label=point.spec.label,
    counts=counts,
    efficiency=decode_counts.summary(counts, adaptive=point.is_adaptive),
    quality=score(study, examples, texts),
    latency=latency,
    costs=costs,
    predicted_speedup=predicted_speedup,
    measured_speedup=measured_speedup,
    agreement=agreement,
    num_truncated=study.sources.num_cut,
    environment=_environment(study),
    num_parameters=study.pair.num_parameters,
    drafter_kind=_drafter_kind(study) if settings.drafter else "",
    log_probs=efficiency.mean_log_probs(outputs.log_probs),
    sharpness=efficiency.sharpness(outputs.log_probs),
    seconds_per_answer=seconds,
    lengths=tuple(own.values()),
    relative_length=relative_length,
  )


def _drafter_kind(study: Study) -> str:
  """Returns what the drafters are; "" for language models of their own."""
  kinds = dict.fromkeys(model.kind for model in study.pair.drafters)
  return "" if {*kinds} <= {"language model"} else " and ".join(kinds)


def _environment(study: Study) -> dict:
  """Returns the environment of a row, with the commits of models of the hub."""
  found = environment(study.pair.layout)
  if revisions := study.pair.revisions:
    found["revisions"] = revisions
  return found


def exact_lengths(
  study: Study, alone: Point, outputs: Outputs, rows: Sequence[ResultRow] = ()
) -> Lengths:
  """Returns the lengths of the answers of the verifier alone, by example.

  Args:
    study: the examples and the settings of all points.
    alone: the verifier alone at the sampling in question.
    outputs: what it wrote just now, perhaps for the timed examples alone.
    rows: rows of earlier starts. The row of the verifier has the lengths for
      all examples.
  """
  written = study.verifier_outputs.get(alone, outputs)
  known = lengths.answer_lengths(written.tokens)
  indices = sorted(example.index for example in study.examples)
  if len(known) < len(indices):
    key = study.settings(alone).key
    for row in rows:
      if row.key == key and len(row.lengths) == len(indices):
        return dict(zip(indices, row.lengths))
  return known


def score(
  study: Study, examples: Sequence[Source], texts: Sequence[str]
) -> dict[str, dict]:
  """Returns the scores of texts; {} where no reference is known.

  The trials of an example are resampled together, because they are not
  independent samples. The resamples are the same for every point, so that the
  replicates of two points can be compared in pairs.

  Args:
    study: the examples, and the metrics that were chosen.
    examples: the example of each text. Trials repeat an example.
    texts: the texts of outputs.
  """
  references = [list(example.references) for example in examples]
  if not texts or not all(references):
    return {}
  indices = [example.index for example in examples]
  task, scores = study.sources.task_scores, {}
  if task is not None and study.measuring.metrics is None:
    scores = task.scores(indices, texts)
  if task is not None:
    texts = [task.prediction(i, text) for i, text in zip(indices, texts)]
  return scores | quality.evaluate(
    metrics_of(study),
    texts,
    references,
    groups=indices,
    replicates=corpus_scores.REPLICATES,
  )


def metrics_of(study: Study) -> Sequence[str]:
  """Returns the names in `quality.METRICS` that score the outputs.

  Exact match is reported beside the task's own where its targets are short.
  """
  if study.measuring.metrics is not None:
    return study.measuring.metrics
  references = [example.references for example in study.sources.examples]
  return quality.with_exact_match(study.sources.metrics, references)


def metric_names(study: Study) -> list[str]:
  """Returns the names of all metrics that score outputs, also a task's own."""
  names = list(metrics_of(study))
  if study.measuring.metrics is None and study.sources.task_scores:
    names += study.sources.task_scores.metrics.function_names
  return names


def count_identical(
  study: Study, outputs: Outputs, verifier_outputs: Outputs
) -> dict[str, int]:
  """Counts the examples for which a method wrote the verifier's tokens.

  Args:
    study: the verifier, and the examples that were decoded.
    outputs: the outputs of the method.
    verifier_outputs: the outputs of the verifier alone, decoded greedily.

  Returns:
    "identical": the number of examples with the verifier's tokens.
    "near_ties": the number of examples whose first different token is a near
      tie: after the common prefix, the verifier's logits of the two tokens
      differ by `TIE` or less.
    "num_examples": the number of all examples.
  """
  num_identical = num_ties = 0
  for example in study.examples:
    tokens = outputs.tokens[0, example.index]
    verifier_tokens = verifier_outputs.tokens[0, example.index]
    if np.array_equal(tokens, verifier_tokens):
      num_identical += 1
      continue
    length = min(len(tokens), len(verifier_tokens))
    differences = np.flatnonzero(tokens[:length] != verifier_tokens[:length])
    # Without a difference one output is the beginning of the other. No two
    # tokens can be compared then, and the example counts as different.
    if differences.size:
      place = int(differences[0])
      logits = logits_after(study, example, verifier_tokens[:place])
      gap = abs(logits[tokens[place]] - logits[verifier_tokens[place]])
      num_ties += int(gap <= TIE)
  return {
    "identical": num_identical,
    "near_ties": num_ties,
    "num_examples": len(study.examples),
  }


def logits_after(study: Study, example: Source, prefix) -> np.ndarray:
  """Returns the verifier's logits for the token after a prefix.

  Args:
    study: the verifier.
    example: the example whose input the verifier reads.
    prefix: [N] int32, the tokens that the output begins with.

  Returns:
    [V] float32.
  """
  inputs = study.session.pad_examples([example], 1)
  # One padded width for all prefixes, so that one program is compiled.
  fed = np.zeros((1, study.run.max_decode_len), np.int32)
  fed[0, 0] = prompts.start(study.pair.verifier_lm, inputs)[0]
  fed[0, 1 : 1 + len(prefix)] = prefix
  count = jnp.int32(len(prefix) + 1)
  return fetch(_logits(study.pair.verifier_lm, inputs, fed, count))[0]


@jax.jit
def _logits(model, inputs, fed, count):
  """Returns [1, V], the logits after the first `count` tokens of `fed`."""
  state = model.prefill(inputs, capacity=fed.shape[1])
  counts = jnp.full((1,), count)
  _, out = model.extend(state, fed, counts, read=counts[:, None] - 1)
  return out.logits[:, 0]
