"""Wrong rows, records and folders, for the report."""

import copy
import gzip
import json

from tests.audit.fuzz.case import Case
from tests.audit.fuzz.right_files import rows

_DROP = object()
# A tree in which a draft follows itself.
_LATE = {"tokens": [5], "parents": [1], "accepted": [], "piece": ["a"]}
_HUGE = 10**400  # JSON has it, no float does
# A place in the row of the verifier, and what is there.
_CHANGES = (
  *((("schema",), value) for value in (_DROP, 2, None, "1")),
  *((("settings",), value) for value in (_DROP, None, [], "a", {})),
  *((("settings", "method"), value) for value in (_DROP, 5, None)),
  *((("settings", "temperature"), value) for value in ("1", None, -1.0)),
  (("settings", "temperature"), float("nan")),
  *((("settings", "gamma"), value) for value in ("5", 2.5, 0)),
  (("settings", "alpha"), "0.5"),
  (("settings", "num_examples"), -1),
  (("settings", "nothing"), 5),
  *((("label",), value) for value in (_DROP, 5, None)),
  *((("counts",), value) for value in (_DROP, None, [], 5)),
  *((("counts", "num_tokens"), value) for value in ("5", -1, 2.5, None)),
  *((("counts", "accepted_at"), value) for value in (5, ["a"], None)),
  *((("counts", "accepted_by_rank"), x) for x in (5, [5], [["a"]], None)),
  *((("counts", "optimal_acceptance"), x) for x in ("a", -1, None)),
  (("counts", "nothing"), 5),
  *((("efficiency",), value) for value in (_DROP, None, [], 5)),
  *((("quality",), value) for value in (_DROP, None, [], 5)),
  *((("quality", "bleu"), value) for value in (None, 5, {}, [])),
  *((("quality", "bleu", "value"), value) for value in ("60", None, [60])),
  (("quality", "bleu", "value"), float("nan")),
  *((("quality", "bleu", "low"), value) for value in ("59", [59])),
  *((("quality", "bleu", "replicates"), value) for value in (5, ["a"], "ab")),
  *((("latency",), value) for value in (5, [], {}, "a")),
  *((("latency", "relative_latency"), x) for x in (_DROP, "1", None, 0, -1)),
  *((("latency", "replicates"), value) for value in (5, ["a"], [None])),
  (("latency", "walltime_s"), 0),
  *((("costs",), value) for value in (5, [], {}, "a")),
  *((("costs", "c"), value) for value in (_DROP, "0.1", None, -1)),
  *((("costs", "v"), value) for value in (5, {"a": 1}, {"1": "a"}, None)),
  *((("costs", "heads"), value) for value in (5, {"a": 1}, {"1": "a"}, None)),
  *((("agreement",), value) for value in (5, [], {}, {"identical": 1})),
  (("agreement", "identical"), "5"),
  (("environment",), 5),
  (("predicted_speedup",), "2"),
  (("measured_speedup",), [2]),
  (("num_truncated",), "0"),
  *((("settings", name), _HUGE) for name in ("gamma", "alpha", "temperature")),
  *((("settings", name), [5]) for name in ("top_k", "task", "drafter")),
  *((("counts", "num_tokens"), value) for value in (_HUGE, True)),
  *((("latency", name), _HUGE) for name in ("walltime_s", "num_examples")),
  *((("quality", "bleu", "value"), value) for value in (_HUGE, True)),
  *((("costs", "v"), value) for value in ({"-1": 1.0}, {"1": float("nan")})),
  *((("num_parameters",), {"drafter": x}) for x in ("a", -1, 0.5, _HUGE)),
  *((("environment",), {"device": 5}), (("environment",), {"versions": "a"})),
  (("environment",), {"versions": {"jax": 5}}),
  *((("predicted_speedup",), value) for value in (-1, _HUGE)),
  (("label",), "a" * 10_000),
)


def _changed(place: tuple[str, ...], value) -> bytes:
  several = copy.deepcopy(rows())
  *parents, name = place
  part = several[1]
  for parent in parents:
    part = part[parent]
  if value is _DROP:
    del part[name]
  else:
    part[name] = value
  return "".join(json.dumps(row) + "\n" for row in several).encode()


def right() -> bytes:
  """Returns rows that make a report."""
  return _changed(("label",), "Large")


def cases() -> list[Case]:
  """Returns the cases."""
  first, second, third = right().splitlines(keepends=True)
  folder = ["--results_dir=@work"]
  of_line = "rows.jsonl line 2"
  found = [
    Case(
      *("report", of_line),
      flags=folder,
      title=f"{'.'.join(place)}={'' if value is _DROP else repr(value)[:40]}",
      files={"rows.jsonl": _changed(place, value)},
    )
    for place, value in _CHANGES
  ]
  whole = {
    "empty": (b"", "rows.jsonl"),
    "list": (first + b"[]\n", of_line),
    "number": (first + b"5\n", of_line),
    "text": (first + b"text\n", of_line),
    "blank": (first + b"\n" + second, of_line),
    "latin": (first + b'"\xe4"\n', of_line),
    "deep": (first + b"[" * 100_000 + b"\n", of_line),
    "twice": (right() + first, "rows.jsonl"),
    "surrogate": (first + second.replace(b'"Large"', b'"\\ud800"'), of_line),
    "no_quality": (
      b"".join(
        json.dumps({**json.loads(line), "quality": {}}).encode() + b"\n"
        for line in (first, second, third)
      ),
      "rows",
    ),
  }
  for title, (content, says) in whole.items():
    how = {"title": title, "files": {"rows.jsonl": content}}
    found.append(Case("report", says, flags=folder, **how))
  packed = gzip.compress(right())
  for content in (packed[:-9], packed[:30] + b"\0\0" + packed[32:], right()):
    files = {"rows.jsonl.gz": content}
    found.append(Case("report", "rows.jsonl.gz", flags=folder, files=files))
  # Two megabytes that hold gigabytes: of one line, and of many.
  for title, part in (
    ("zeros", b"0" * (1 << 24)),
    ("lines", b"\n" * (1 << 24)),
  ):
    bomb = gzip.compress(part) * 128
    for name, files in (
      ("rows.jsonl.gz", {}),
      ("metrics.json.gz", {}),
      ("examples.jsonl.gz", {"rows.jsonl": right()}),
    ):
      how = {"title": f"bomb of {title}", "files": files | {name: bomb}}
      found.append(Case("report", name, flags=folder, **how))
  record = {
    "inputs": "one",
    "prediction": "two",
    "aux": {"index": 0, "trial": 0, "tokens": [5], "counts": {}, "trace": {}},
    "settings": rows()[0]["settings"],
    "label": "a",
  }
  changes = (
    *({"aux": aux} for aux in (5, [], {}, {"trace": {}})),
    *(
      {"aux": record["aux"] | change}
      for change in (
        *({"tokens": 5}, {"trace": 5}, {"trace": {"source": 5}}),
        *({"counts": 5}, {"index": "a"}),
        *({"trace": None, "trees": x} for x in (5, [5], [{}], [_LATE])),
      )
    ),
    *({"settings": 5}, {"label": 5}, {"inputs": 5}),
  )
  shown = (
    *(b"5\n", b"[]\n", b"text\n", b"[" * 100_000 + b"\n", b"{}\n"),
    *(json.dumps(record | each).encode() + b"\n" for each in changes),
  )
  for number, content in enumerate(shown):
    files = {"rows.jsonl": right(), "examples.jsonl": content}
    how = {"files": files, "title": f"record {number}"}
    found.append(Case("report", "examples.jsonl line 1", flags=folder, **how))
  for content in (b"", b"[]", b"5", b"text", first[:50], b"[" * 100_000):
    files = {"metrics.json": content}
    found.append(Case("report", "metrics.json", flags=folder, files=files))
  for number, content in enumerate(shown[:11]):
    files = {"metrics.json": first, "predictions.jsonl": content}
    how = {"files": files, "title": f"of a decode {number}"}
    says = "predictions.jsonl line 1"
    found.append(Case("report", says, flags=folder, **how))
  writes = ["--decode_dir=@work", "--output_file=@work/new/out"]
  for form in ("spec_bench", "speed_bench", "speed_bench_results", "vllm"):
    flags = [*writes, f"--format={form}"]
    for content in (b"", b"[]", b"text", first[:50], b"[" * 100_000):
      files = {"metrics.json": content, "predictions.jsonl": shown[-1]}
      found.append(Case("exchange", "metrics.json", flags=flags, files=files))
    found.append(
      Case("exchange", "not a folder of a whole decode", flags=flags)
    )
  for number, content in enumerate(shown[:5]):
    files = {"metrics.json": third, "predictions.jsonl": content}
    how = {"files": files, "title": f"exchange {number}"}
    says = "predictions.jsonl line 1"
    flags = [*writes, "--format=speed_bench"]
    found.append(Case("exchange", says, flags=flags, **how))
  right_rows = {"rows.jsonl": right()}
  return found + [
    Case("report", says, flags=[*folder, flag], files=right_rows, code=code)
    for flag, says, code in (
      ("--metric=nothing", "nothing", 1),
      ("--cost_ratio=-1", "cost ratio", 1),
      ("--cost_ratio=nan", "cost ratio", 1),
      ("--cost_ratio=inf", "cost ratio", 1),
      ("--cost_ratio=", "cost_ratio", 2),
      ("--metric=" + "a" * 5000, "a" * 50, 1),
    )
  ]
