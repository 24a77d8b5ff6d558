"""What the code writes today, so that a refactoring can show it changed none.

  python -m tests.recording.record --write FILE
  python -m tests.recording.record --compare FILE

Records tokens, lengths, stats and trace of every method on chains and on a tiny
T5, and the predictions, rows and tables of whole runs. Numbers that are whole
are exact; floats hold to a relative 1e-4, as processors differ. Nothing is
timed. It goes when the refactoring is done.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import gzip
import hashlib
import itertools
import json
import math
import multiprocessing
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from speccascade.cascade_search.candidates import Candidates
from speccascade.cascade_search.search import Rounds, search
from speccascade.decoding import (
  METHODS,
  DraftLength,
  MaxGramDrafter,
  Sampling,
  cascade_drafter,
  row_keys,
)
from speccascade.inference.cascades import Cascade
from speccascade.inference.infer import infer
from speccascade.inference.inputs import Inputs
from speccascade.inference.pair import PairSpec
from speccascade.inference.point import Point
from speccascade.inference.settings import Measuring, Run
from speccascade.models import T5LM
from speccascade.report import writing
from speccascade.sweep.plan import Plan
from speccascade.sweep.shown import Shown
from speccascade.sweep.sweep import sweep
from tests import conftest, toy
from tests.inference import tiny
from tests.report import synthetic

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "tiny_a"
ROWS = 12
ALPHAS = (0.1, 0.5)
_TOLERANCE = 1e-4
_MOST_INTS, _MOST_FLOATS = 160, 24  # longer arrays are digested
# Of rows and metrics: what differs from machine to machine, or by name alone.
_LEFT_OUT = {"environment", "key", "schema", "latency", "costs"}


# --- Adapters: what a refactoring renames. ---


def _settings(folder, drafters="small", **settings) -> dict:
  """The objects of an entry point, by their names; what is left over too."""
  return tiny.objects(
    {
      "output_dir": folder,
      "task_feature_lengths": {"inputs": 8},
      "vocabulary": tiny.Vocabulary(),
      "drafter_checkpoint": drafters,
      "verifier_checkpoint": "large",
      "input_file": "in.jsonl",
      "max_decode_len": 10,
      "batch_size": 4,
      "progress": False,
      **settings,
    },
    **{"pair": PairSpec, "inputs": Inputs, "point": Point, "run": Run},
  )


def run_report(folder: str):
  """Writes rows that are made up, and the report on them."""
  names = ("verifier", "spec_decode", "spec_decode_lossy", "spec_cascade_opt")
  rows = synthetic.rows(
    temperatures=(0.0, 1.0), gammas=(3, 5), methods=(*names, "drafter")
  )
  pathlib.Path(folder).mkdir()
  text = "".join(row.to_json() + "\n" for row in rows)
  pathlib.Path(folder, "rows.jsonl").write_text(text, encoding="utf-8")
  writing.from_folder(pathlib.Path(folder), progress=False)


def decode(name, models, inputs, alpha, temperature, filters=(), **settings):
  """Returns the arrays of a decode by name; see `METHODS`.

  Args:
    name: of the method.
    models: (drafter, verifier); of several drafters it takes what it needs.
    inputs: [B, S].
    alpha: as a user gives it.
    temperature: of the `Sampling`.
    filters: the rest of it.
    **settings: of the `Decoder`.
  """
  drafters, verifier = models
  if isinstance(drafters, tuple) and METHODS[name].num_drafters == 1:
    drafters = drafters[0]
  out = toy.decode(
    name,
    (drafters, verifier),
    alpha,
    Sampling.create(temperature, **dict(filters)),
    inputs=inputs,
    keys=row_keys(3, 0, jnp.arange(len(inputs))),
    **settings,
  )
  arrays = {"tokens": out.tokens, "lengths": out.lengths, "bad": out.bad_step}
  arrays |= {f"stats.{name}": x for name, x in vars(out.stats).items()}
  if out.trace is not None:
    arrays |= {f"trace.{name}": x for name, x in vars(out.trace).items()}
  return arrays


# --- Cases. ---


@functools.cache
def chains() -> tuple:
  """Returns (((larger, smaller drafter), verifier), inputs), tables by row."""
  larger, verifier = toy.sources(64)
  smaller, _ = toy.sources(63)
  rng = np.random.default_rng(0)
  inputs = rng.integers(2, 7, (ROWS, 6))
  inputs[:, 0] = np.arange(ROWS)
  inputs[np.arange(6) >= rng.integers(1, 7, (ROWS, 1))] = 0
  return ((larger, smaller), verifier), jnp.asarray(inputs, jnp.int32)


@functools.cache
def tiny_t5() -> tuple:
  """Returns the same of T5s: random ones, sharpened so that rules differ."""

  def model(seed, emb_dim):
    lm = T5LM.init(tiny.config(emb_dim, 20), jax.random.key(seed))
    sharper = lambda x: x * 3.0 if x.ndim > 1 else x
    return T5LM.create(lm.module.config, jax.tree.map(sharper, lm.params))

  rng = np.random.default_rng(1)
  inputs = rng.integers(2, 20, (4, 6))
  inputs[np.arange(6) >= np.array([[6], [3], [1], [5]])] = 0
  inputs = jnp.asarray(inputs, jnp.int32)
  return ((model(0, 8), model(1, 8)), model(2, 12)), inputs


def _forms(method, temperature):
  """The (bonus, verification) of a method that differ."""
  yield "target", "token"
  if method.has_blocks:
    yield "verifier", "token"
  if method.has_blocks and temperature:
    yield "target", "block"
    if method.target is METHODS["spec_decode"].target:
      yield "verifier", "block"


def methods():
  """Yields (case, arrays) of every method on chains, with its trace."""
  models, inputs = chains()
  for name, method in METHODS.items():
    for temperature in (0.0, 1.0):
      if method.greedy_only and temperature:
        continue
      for bonus, verification in _forms(method, temperature):
        how = {"bonus": bonus, "verification": verification}
        for alpha in ALPHAS if method.uses_alpha else ALPHAS[:1]:
          case = (
            f"chain {name} T={temperature:g} {bonus} {verification} {alpha}"
          )
          how |= {"trace": True, "shared": True}
          yield case, decode(name, models, inputs, alpha, temperature, **how)


def networks():
  """Yields cases of random T5s."""
  models, inputs = tiny_t5()
  for name, temperature in (
    *(("verifier", 0.0), ("spec_decode", 1.0), ("spec_cascade_opt", 0.0)),
    *(("spec_cascade_opt", 1.0), ("spec_cascade_token_v3", 1.0)),
    *(("token_cascade_chow", 1.0), ("seq_cascade_chow", 1.0), ("bild", 0.0)),
    *(("oracle_cascade_diff", 1.0), ("spec_cascade_opt_three", 1.0)),
  ):
    arrays = decode(name, models, inputs, 0.05, temperature, trace=True)
    yield f"t5 {name} T={temperature:g}", arrays


def options():
  """Yields cases of settings that few methods or points have."""
  models, inputs = chains()
  run = functools.partial(decode, models=models, inputs=inputs, alpha=0.1)
  for name in (  # a program for itself, without a trace
    *("verifier", "spec_decode", "mentored", "seq_cascade_chow"),
    *("token_cascade_chow_log", "oracle_cascade_opt", "cascade_drafting"),
  ):
    yield f"alone {name}", run(name, alpha=0.3, temperature=0.7)
  for name in ("spec_cascade_opt", "oracle_cascade_diff"):
    for filters in ({"top_k": 2}, {"top_p": 0.8}, {"top_k": 4, "top_p": 0.7}):
      label = " ".join(f"{key}={value}" for key, value in filters.items())
      arrays = run(name, temperature=0.8, filters=filters, trace=True)
      yield f"{label} {name}", arrays
  for policy, bonus, threshold in itertools.product(
    ("max_prob", "token_prob"), ("target", "verifier"), (0.3, 0.6)
  ):
    length = DraftLength(policy, threshold)
    how = {"draft_length": length, "bonus": bonus, "trace": True}
    arrays = run("spec_cascade_opt", temperature=1.0, **how)
    yield f"{policy} {threshold} {bonus}", arrays
  for threshold in (0.2, 0.5):
    length = DraftLength("max_prob", threshold)
    arrays = run("bild", temperature=0.0, draft_length=length)
    yield f"bild fallback {threshold}", arrays
  for gamma in (1, 5):
    for name in ("spec_decode", "spec_cascade_token_v3"):
      yield f"gamma={gamma} {name}", run(name, temperature=1.0, gamma=gamma)


def cascades():
  """Yields cases of composed drafters."""
  (drafters, verifier), inputs = chains()
  table = jnp.asarray([2, 3, 4, 5, 6, 2, 3], jnp.int32)
  bottom = MaxGramDrafter.create(table, width=1, vocab_size=7)
  for label, num, with_copier, matrix in (
    ("neural", 2, False, [[2, 2], [0, 2]]),
    ("vertical", 2, True, [[3, 0, 0], [0, 2, 0], [0, 0, 2]]),
    ("all", 2, True, [[2, 1, 2], [0, 1, 2], [0, 0, 2]]),
    ("copier", 0, True, [[4]]),
  ):
    parts = drafters[:num], bottom if with_copier else None, matrix
    for lenience in (1.0, 3.0):
      models = cascade_drafter(*parts, lenience=lenience), verifier
      for temperature in (0.0, 1.0) if lenience > 1 else (1.0,):
        how = {"bonus": "target" if temperature else "verifier"}
        how["trace"] = label == "all"
        yield (
          f"cascade {label} l={lenience:g} T={temperature:g}",
          decode("cascade_drafting", models, inputs, 0.0, temperature, **how),
        )
  models = cascade_drafter((), bottom, [[4]]), verifier
  for name in ("spec_cascade_token_v3", "spec_cascade_typical"):
    arrays = decode(name, models, inputs, 0.3, 1.0, trace=True)
    yield f"cascade copier {name}", arrays


def golden():
  """Yields cases of the tiny T5 that T5X wrote, for both of a pair."""
  lm = T5LM.create(*conftest.read_golden(GOLDEN))
  with np.load(GOLDEN / "golden.npz") as arrays:
    inputs = jnp.asarray(arrays["in/encoder_input_tokens"], jnp.int32)
  drafter = lm.replace(params=jax.tree.map(lambda x: x * 0.9, lm.params))
  for temperature in (0.0, 1.0):
    for name in ("spec_decode", "spec_cascade_opt", "verifier"):
      arrays = decode(name, (drafter, lm), inputs, 0.1, temperature, trace=True)
      yield f"golden {name} T={temperature:g}", arrays


def outer():
  """Yields (case, content) of the files that whole runs leave."""
  texts = ["one two", "three", "four five six", "seven", "eight nine", "zero"]
  lines = [
    json.dumps({"inputs": text, "targets": f"{text} nine"}) for text in texts
  ]
  pathlib.Path("in.jsonl").write_text("\n".join(lines) + "\n")
  for name, seed, emb_dim in (("small", 0, 8), ("medium", 1, 8)):
    tiny.save(name, seed, emb_dim=emb_dim)
  tiny.save("large", 2, emb_dim=12)
  two = {"drafters": ["small", "medium"]}
  matrix = ((2, 1, 2), (0, 1, 2), (0, 0, 2))
  for folder, settings in {
    "decode": {"method": "spec_cascade_opt", "alpha": 0.1, "gamma": 3},
    "decode_greedy": {"method": "bild", "alpha": 2.0, "temperature": 0.0},
    "decode_trace": {"method": "spec_decode", "trace": True, "top_k": 5},
    "decode_trials": {"method": "spec_decode_lossy", "trials": 2, "seed": 1},
    "decode_three": {"method": "spec_cascade_opt_three", **two},
    "decode_cascade": {
      **{"method": "cascade_drafting", **two},
      "cascade": Cascade(k=matrix, lenience=3.0),
    },
  }.items():
    infer(**_settings(folder, **settings))
    yield f"{folder} predictions", _lines(folder, "predictions.jsonl")
    yield f"{folder} metrics", _json(folder, "metrics.json")
  alphas = {"seq_cascade_chow": [0.2, 0.9]}
  for folder, plan, num_shown in (
    ("sweep", Plan(["spec_decode", *alphas], alphas, gammas=[2]), 1),
    (
      "adaptive",
      Plan(["seq_cascade_chow_norm"], "adaptive", 4, temperatures=[1.0]),
      0,
    ),
  ):
    objects = _settings(folder, method="verifier", num_lengths=1)
    common, shown = objects.pop("point"), Shown(num_shown)
    more = {"measuring": Measuring(), "shown": shown, **objects}
    sweep(plan=plan, common=common, **more)
    yield f"{folder} rows", _lines(folder, "rows.jsonl")
    if num_shown:
      yield f"{folder} examples", _lines(folder, "examples.jsonl")
  settings = {"num_examples": 6, "truncate": True, "temperature": 0.0, **two}
  other = Cascade(k=((2, 0, 1), (0, 1, 1), (0, 0, 2)), lenience=3.0)
  search(
    candidates=Candidates([Cascade(k=matrix, lenience=1.0), other]),
    rounds=Rounds(2),
    **_settings("search", method="cascade_drafting", **settings),
  )
  yield "search rows", _lines("search", "rows.jsonl")
  yield "search report", pathlib.Path("search/report.csv").read_text()
  yield "search best", pathlib.Path("search/best.gin").read_text()
  run_report("report")
  for path in sorted(pathlib.Path("report/report").glob("*.csv")):
    yield f"report {path.name}", _table(path.read_text())
  yield "report.md", pathlib.Path("report/report/report.md").read_text()


def _json(folder, name):
  return _without(json.loads(pathlib.Path(folder, name).read_text()))


def _lines(folder, name):
  text = pathlib.Path(folder, name).read_text()
  return [_without(json.loads(line)) for line in text.splitlines()]


def _without(record: dict) -> dict:
  return {k: v for k, v in record.items() if k not in _LEFT_OUT}


def _table(text: str) -> list:
  """The cells of a CSV, numbers as such."""

  def cell(text):
    with contextlib.suppress(ValueError):
      return float(text)
    return text

  return [[cell(part) for part in line.split(",")] for line in text.split("\n")]


# --- Digests and comparisons. ---


def digest(values):
  """Returns JSON of arrays and nested values; long runs of numbers as a few.

  Whole numbers become their hash, floats the hash of where they are finite, and
  three projections on fixed directions, which any change moves.
  """
  if isinstance(values, dict):
    return {key: digest(value) for key, value in values.items()}
  if isinstance(values, list) and not _is_numbers(values):
    return [digest(value) for value in values]
  if isinstance(values, str | bool | None | int | float):
    return _plain(values)
  array = np.asarray(values)
  is_float = array.dtype.kind == "f"
  if array.size <= (_MOST_FLOATS if is_float else _MOST_INTS):
    return [_plain(x) for x in array.reshape(-1).tolist()]
  if not is_float:
    array = array.astype(np.int64)
    return {"shape": list(array.shape), "sha": _sha(array)}
  array = array.astype(np.float64)
  finite = np.isfinite(array)
  whole = np.where(finite, array, 0).reshape(-1)
  rng = np.random.default_rng(array.size)
  sides = rng.uniform(0.5, 1.5, (3, array.size))
  return {
    "shape": list(array.shape),
    "sha": _sha(finite),
    "projections": [_plain(float(side @ whole)) for side in sides],
  }


def _is_numbers(values: list) -> bool:
  kinds = (int, float)
  return bool(values) and all(
    isinstance(x, kinds) and not isinstance(x, bool) for x in values
  )


def _sha(array) -> str:
  return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def _plain(x):
  if isinstance(x, float):
    return float(f"{x:.6g}") if math.isfinite(x) else repr(x)
  return x


def differences(wanted, got, path=""):
  """Yields a line for each place where two digests differ."""
  if isinstance(wanted, dict) and isinstance(got, dict):
    for key in sorted(set(wanted) | set(got)):
      if key not in wanted or key not in got:
        yield f"{path}.{key}: only {'recorded' if key in wanted else 'now'}"
      else:
        yield from differences(wanted[key], got[key], f"{path}.{key}")
  elif isinstance(wanted, list) and isinstance(got, list):
    if len(wanted) != len(got):
      yield f"{path}: {len(wanted)} recorded, {len(got)} now"
      return
    for i, pair in enumerate(zip(wanted, got)):
      yield from differences(*pair, f"{path}[{i}]")
  elif isinstance(wanted, float) or isinstance(got, float):
    kinds = (int, float)
    if not (isinstance(wanted, kinds) and isinstance(got, kinds)) or not (
      math.isclose(wanted, got, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    ):
      yield f"{path}: {wanted} recorded, {got} now"
  elif wanted != got:
    yield f"{path}: {str(wanted)[:200]!r} recorded, {str(got)[:200]!r} now"


PARTS = {
  part.__name__: part
  for part in (methods, networks, options, cascades, golden, outer)
}


def record_part(name: str) -> dict:
  """Returns the digest of every case of a part, made in an empty folder."""
  jax.config.update("jax_disable_most_optimizations", True)  # compile sooner
  cases = {}
  with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    for case, values in tqdm.tqdm(PARTS[name](), name, unit=" cases"):
      if case in cases:
        raise ValueError(f"two cases are called {case!r}")
      cases[case] = digest(values)
  return json.loads(json.dumps(cases))


def record(parts) -> dict:
  """Returns the digests of cases by part, a process for each part.

  One process alone would hold more compiled programs than it may map.
  """
  spawn = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(
    1, spawn, max_tasks_per_child=1
  ) as pool:
    return dict(zip(parts, pool.map(record_part, parts)))


def main(argv=None) -> int:
  """Writes or compares a recording; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__)
  group = parser.add_mutually_exclusive_group(required=True)
  group.add_argument("--write", type=pathlib.Path)
  group.add_argument("--compare", type=pathlib.Path)
  parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
  args = parser.parse_args(argv)
  path = args.write or args.compare
  recorded = {}
  if path.exists():
    recorded = json.loads(gzip.decompress(path.read_bytes()))
  cases = record(args.parts)
  if args.write:  # other parts stay
    kept = {part: recorded[part] for part in recorded if part not in args.parts}
    text = json.dumps(kept | cases, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{path.stat().st_size} bytes")
    return 0
  num = 0
  for part in args.parts:
    old, new = recorded[part], cases[part]
    for name in sorted(set(old) | set(new)):
      lines = list(differences(old.get(name), new.get(name)))
      num += bool(lines)
      for line in lines[:8]:
        print(f"{name}: {line}")
      if len(lines) > 8:
        print(f"{name}: and {len(lines) - 8} more")
  print(f"{num} of {sum(map(len, cases.values()))} cases differ")
  return int(num > 0)


if __name__ == "__main__":
  sys.exit(main())
