"""Successive halving over K and lenience, by SWI or by measured time.

Every candidate decodes a few examples; the best third goes on to three times as
many, until one is left. Cascades that are given by name all decode all of them,
once. Leaves in OUTPUT_DIR: `rows.jsonl` (a result row for
each candidate and round, appended as it is measured), `search.json` (what is
being searched; a later start compares itself with it), `report.md`,
`report.csv` and `best.gin`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import pathlib

import numpy as np

from speccascade.cascade_search import cascade_report
from speccascade.cascade_search.candidates import (
  Scored,
  Space,
  Study,
  baselines,
)
from speccascade.inference import inputs as sources
from speccascade.inference import pair as pairs
from speccascade.inference import results
from speccascade.inference.cascades import Cascade
from speccascade.inference.point import Point
from speccascade.models.t5.config import T5Config

OBJECTIVES = ("swi", "walltime")
_METHOD = "cascade_drafting"


def search(
  *,
  output_dir: str | os.PathLike,
  task_feature_lengths: Mapping[str, int],
  vocabulary=None,
  drafter: T5Config | Sequence[T5Config] | None = None,
  verifier: T5Config | None = None,
  drafter_checkpoint: str | Sequence[str] = (),
  verifier_checkpoint: str | None = None,
  mixture_or_task_name: str | None = None,
  split: str = "validation",
  input_file: str | None = None,
  num_examples: int = 81,
  cascades: Sequence[Cascade] | None = None,
  space: Space | None = None,
  num_candidates: int | None = 27,
  bigrams: str | os.PathLike | None = None,
  objective: str = "swi",
  costs: Sequence[float] | str = "parameters",
  first_examples: int = 9,
  eta: int = 3,
  temperature: float = 0.0,
  max_decode_len: int = 128,
  batch_size: int = 8,
  repeats: int = 3,
  seed: int = 0,
  dtype: str = "float32",
  progress: bool = True,
) -> list[Scored]:
  """Searches, writes the report, and returns the candidates, best first.

  Args:
    output_dir: a new folder, or that of the same search, which is taken up.
    task_feature_lengths: {"inputs": most tokens of a source}.
    vocabulary: as in `infer.infer`, like the models and examples below.
    drafter: architectures.
    verifier: architecture.
    drafter_checkpoint: neural drafters, largest first; () for none.
    verifier_checkpoint: path.
    mixture_or_task_name: a task, or else `input_file`.
    split: of the task.
    input_file: text or JSONL.
    num_examples: of the last round.
    cascades: compared with each other on all examples, in one round; the space
      and the rounds are then left out.
    space: what is tried; None takes the default `Space`.
    num_candidates: this many of the space, drawn by `seed`; None tries all.
      Plain speculative decoding with each drafter is always among them.
    bigrams: Max-Gram's table, or None.
    objective: "swi", calls weighed by `costs`; or "walltime", seconds at batch
      1 in turns with the verifier.
    costs: one call of each neural drafter, the verifier's being 1; or
      "parameters", the ratio of numbers of parameters; or "measured".
    first_examples: of the first round.
    eta: each round keeps 1/eta of the candidates on eta times the examples.
    temperature: 0 is greedy.
    max_decode_len: most tokens of an output.
    batch_size: rows, where time is not measured.
    repeats: how often each is timed.
    seed: of the keys, and of the candidates drawn.
    dtype: of the activations.
    progress: show a bar.

  Raises:
    ValueError: a setting, a model or an input does not fit.
  """
  _check(objective, eta, first_examples, num_examples, num_candidates)
  if cascades is not None and not cascades:
    raise ValueError("CASCADES is empty; give one or more, or None to search")
  found = sources.read(
    vocabulary,
    max_len=sources.input_length(task_feature_lengths),
    mixture_or_task_name=mixture_or_task_name,
    split=split,
    input_file=input_file,
    num_examples=num_examples,
    truncate=True,
  )
  pair = pairs.load_pair(
    drafter=drafter,
    verifier=verifier,
    drafter_checkpoint=drafter_checkpoint,
    verifier_checkpoint=verifier_checkpoint,
    dtype=dtype,
    needs_drafter=bool(drafter_checkpoint),
  )
  pairs.check_vocabulary(
    pair, found.vocabulary.vocab_size, sources.identity(found.vocabulary)
  )
  study = Study(
    pair=pair,
    vocabulary=found.vocabulary,
    examples=found.examples,
    point=Point(_METHOD, temperature=temperature),
    task=mixture_or_task_name or str(input_file),
    split=split if mixture_or_task_name else "",
    max_decode_len=max_decode_len,
    batch_size=batch_size,
    repeats=repeats,
    seed=seed,
    objective=objective,
  )
  if cascades is None:
    cascades = _candidates(
      space or Space(), len(pair.drafters), num_candidates, seed, bigrams
    )
  else:
    first_examples = len(study.examples)
  by_label = {cascade.label: cascade for cascade in cascades}
  folder = pathlib.Path(output_dir)
  asked = {
    "candidates": sorted(by_label),
    "costs": costs if isinstance(costs, str) else list(costs),
    "first_examples": first_examples,
    "eta": eta,
    "objective": objective,
    **dataclasses.asdict(study.settings("", len(study.examples))),
  }
  known = _begin(folder, asked, lambda: study.costs(costs))
  study = dataclasses.replace(study, weights=tuple(known))
  file = results.ResultFile(folder / "rows.jsonl")
  ranking = halve(
    study,
    list(by_label.values()),
    file,
    first_examples=first_examples,
    eta=eta,
    progress=progress,
  )
  cascade_report.write(folder, study, ranking)
  return ranking


def _check(objective, eta, first_examples, num_examples, num_candidates):
  if objective not in OBJECTIVES:
    raise ValueError(
      f"OBJECTIVE is {objective!r}; wanted one of {', '.join(OBJECTIVES)}"
    )
  if eta < 2:
    raise ValueError(f"ETA is {eta}; wanted 2 or more")
  if not 1 <= first_examples <= num_examples:
    raise ValueError(
      f"FIRST_EXAMPLES is {first_examples}; wanted 1 to NUM_EXAMPLES,"
      f" {num_examples}"
    )
  if num_candidates is not None and num_candidates < 1:
    raise ValueError(
      f"NUM_CANDIDATES is {num_candidates}; wanted 1 or more, or None for all"
    )


def _candidates(space, num_neural, num_candidates, seed, bigrams):
  """Plain speculative decoding, and as much of the space as was asked for."""
  how = {"bigrams": bigrams}
  tried = space.cascades(num_neural, **how)
  if num_candidates is not None and num_candidates < len(tried):
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(tried), num_candidates, replace=False)
    tried = [tried[i] for i in sorted(chosen)]
  return [*baselines(num_neural, **how), *tried]


def _begin(folder: pathlib.Path, asked: dict, make_costs) -> list[float]:
  """Writes what is being searched, or compares it; returns the costs in use."""
  path = folder / "search.json"
  asked = json.loads(json.dumps(asked))
  if path.exists():
    there = json.loads(path.read_text(encoding="utf-8"))
    for name, value in asked.items():
      if there["asked"].get(name) != value:
        raise ValueError(
          f"OUTPUT_DIR {folder} holds another search: {name} differs; give"
          " another folder, or remove that one"
        )
    return there["costs"]
  if folder.exists() and any(folder.iterdir()):
    raise ValueError(
      f"OUTPUT_DIR {folder} holds files of something else; give another folder"
    )
  costs = make_costs()
  text = json.dumps({"asked": asked, "costs": costs}, indent=2)
  results.write_whole(path, text + "\n")
  return costs


def halve(
  study: Study,
  cascades: Sequence[Cascade],
  file: results.ResultFile,
  *,
  first_examples: int,
  eta: int,
  progress: bool = True,
) -> list[Scored]:
  """Runs the rounds; returns all candidates, the later their end the better.

  Args:
    study: what they have in common.
    cascades: the candidates.
    file: where rows are kept; what stands there is not measured again.
    first_examples: of the first round.
    eta: see `search`.
    progress: show a bar.
  """
  from tqdm import tqdm

  known = {row.key: row for row in file.rows}
  ranking, going, num = [], list(cascades), first_examples
  while True:
    num = min(num, len(study.examples))
    scored = []
    desc = f"{len(going)} candidates, {num} examples"
    for cascade in tqdm(going, desc=desc, disable=not progress):
      name = study.combined(cascade).drafter_name
      key = study.settings(name, num).key
      if key not in known:
        known[key] = study.measure(cascade, num)
        file.append(known[key])
      scored.append(study.scored(cascade, known[key]))
    scored.sort(key=lambda one: -one.value)
    kept = max(1, len(scored) // eta)
    if num == len(study.examples) or len(scored) == 1:
      return scored + ranking
    ranking = scored[kept:] + ranking
    going, num = [one.cascade for one in scored[:kept]], num * eta
