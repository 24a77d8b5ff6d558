"""The answers of a decode as the harness of SPEED-Bench writes them.

The harness is NVIDIA's `specdec_bench`. With SPEED-Bench it writes the answers
to `specbench_responses.jsonl` and the acceptance lengths, AL, to
`specbench_results.json`.

Source: `examples/specdec_bench/specdec_bench/metrics/` of
github.com/NVIDIA/Model-Optimizer, at a2fbac7.
"""

from collections.abc import Iterator
import itertools
import json
import statistics

from speccascade.tools.exchange.decode_folder import DecodeFolder


def lines(folder: DecodeFolder) -> Iterator[str]:
  """Yields the line of each question in `specbench_responses.jsonl`.

  Raises:
    ValueError: the folder does not hold what the format has.
  """
  for trials in folder.by_question():
    # The last turn has the whole conversation.
    last = [turns[-1] for turns in trials]
    question = last[0].question
    line = {
      "question_id": question["question_id"],
      "category": question["category"],
      "turns": list(last[0].prompts),
      "choices": [
        {"index": answer.trial, "turns": [*answer.earlier, answer.text]}
        for answer in last
      ],
    }
    yield json.dumps(line, ensure_ascii=False) + "\n"


def results_text(folder: DecodeFolder) -> str:
  """Returns `specbench_results.json`.

  Raises:
    ValueError: the folder does not hold what the format has.
  """
  questions = folder.by_question()
  folder.check_lengths()
  lengths_by_id: dict[str, list[int]] = {}
  category_by_id = {}
  for trials in questions:
    # JSON has texts as keys.
    question = trials[0][0].question
    name = str(question["question_id"])
    category_by_id[name] = question["category"]
    for answer in itertools.chain(*trials):
      lengths_by_id.setdefault(name, []).extend(answer.lengths or ())
  means = {
    name: statistics.fmean(lengths) for name, lengths in lengths_by_id.items()
  }
  by_category: dict[str, list[float]] = {}
  for name, mean in means.items():
    by_category.setdefault(category_by_id[name], []).append(mean)
  values = {
    "Request_AL": means,
    "Category_AL": {
      name: statistics.fmean(each) for name, each in by_category.items()
    },
    "Average_AL": statistics.fmean(means.values()),
    **_rates([x for lengths in lengths_by_id.values() for x in lengths]),
  }
  return json.dumps(values, indent=4, ensure_ascii=False) + "\n"


def _rates(lengths: list[int]) -> dict[str, dict[str, int | float]]:
  """Returns the histogram of acceptance lengths, and the rates made from it.

  The joint rate at a length is the share of steps that are at least as long.
  The conditional rate is the joint rate over that at the next shorter length.
  Only lengths that occur have an entry.

  Args:
    lengths: the tokens of each step.

  >>> rates = _rates([1, 2, 2, 4])
  >>> rates["Joint_Acceptance_Rate"], rates["Conditional_Acceptance_Rate"]["4"]
  ({'1': 1.0, '2': 0.75, '4': 0.25}, 0.3333333333333333)
  """
  histogram, joint, conditional = {}, {}, {}
  before = 1.0
  for length in sorted(set(lengths)):
    name = str(length)
    histogram[name] = lengths.count(length)
    joint[name] = sum(x >= length for x in lengths) / len(lengths)
    conditional[name] = joint[name] / before
    before = joint[name]
  return {
    "Acceptance_Length_Histogram": histogram,
    "Conditional_Acceptance_Rate": conditional,
    "Joint_Acceptance_Rate": joint,
  }
