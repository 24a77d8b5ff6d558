"""The program inside an output, as chat models and base models write it."""

import types

import pytest

from speccascade.tools.exchange import generations, written_programs
from speccascade.tools.exchange.written_programs import DONE, FENCE, PROSE

CODE = "def f(a):\n  return a"
TWO = f"import re\n\n\n{CODE}\n\n\nclass B:\n  x = 1"
SAYS = "This function returns its argument, e.g. f(1) is 1."
DOC = 'def f(a):\n  """As in\n\n```\nf(1)\n```\n"""\n  return a'


@pytest.mark.parametrize(
  ("text", "program", "marks"),
  [
    (CODE, CODE, {}),
    (f"{CODE}\n\n", CODE, {}),
    (DOC, DOC, {}),
    (f"```python\n{CODE}\n```\nThis works.", CODE, {FENCE}),
    (f"Here it is:\n```\n{CODE}", CODE, {FENCE}),
    (f"Here it is:\n\n```py\n{TWO}\n```\n\n```\nf(1)\n```\n", TWO, {FENCE}),
    (f"First:\n```bash\npip install a\n```\n```python\n{CODE}\n```", CODE, 0),
    (f"~~~~python3\n{DOC}\n~~~~\nGood.", DOC, {FENCE}),
    (f"```python\n{DOC}\n```\nGood.", DOC, {FENCE}),
    (f"1. So:\n   ```Python\n   {CODE[:9]}\n     return a\n   ```", CODE, 0),
    (f"{CODE}\n```\n{SAYS}", CODE, {FENCE}),
    (f"  b = a\n  return b\n```\n{SAYS}", "  b = a\n  return b", {FENCE}),
    (f"```{CODE}", f"```{CODE}", {}),
    (f"{CODE}\n[DONE]\n\nYou are an expert. {SAYS}", CODE, {DONE}),
    (f"{CODE} [DONE]", CODE, {DONE}),
    (f"{CODE}[DONE] and more", CODE, {DONE}),
    (f"{CODE}\n\nExample:\nf(1)", CODE, {PROSE}),
    (f"<think>\n```\nno\n```\n</think>\n\n{CODE}", CODE, {PROSE}),
    ('x = "so [DONE]"', 'x = "so [DONE]"', {}),
    ('x = "</think>"', 'x = "</think>"', {}),
    (f"[BEGIN]\n{CODE}\n[DONE]\n", CODE, {DONE}),
    (f"[BEGIN]\n```python\n{CODE}\n```\n[DONE]", CODE, {FENCE, DONE}),
    ('def f():\n  print("[DONE]")', 'def f():\n  print("[DONE]")', {}),
    (f"Here is the function:\n\n{CODE}\n\n{SAYS}", CODE, {PROSE}),
    (f"Sure! It is:\n{TWO}\n{SAYS}\n\nBye now.", TWO, {PROSE}),
    # Cut by the limit: not a program yet, and nothing is around it.
    ("def f(a):\n  return (a", "def f(a):\n  return (a", {}),
    (f"Here it is:\n```python\n{CODE[:-2]} (", f"{CODE[:-2]} (", {FENCE}),
    # The body of a function, whose beginning is in the prompt.
    ("    return a\n\n\ndef g(:", "    return a\n\n\ndef g(:", {}),
    ("for x in a:\n        y\n    return z\n", None, {}),
    ("return z\n  x\n\ndef main():\n  f()", None, {}),
    ("I cannot write this function.", None, {}),
    ("", "", {}),
    ("(" * 10_000, None, {}),
    ("```\n" * 3000, "", {FENCE}),
    ("x = '\0'", None, {}),
  ],
)
def test_a_program_is_found(text, program, marks):
  got, found = written_programs.extract(text)
  assert got.rstrip() == (text if program is None else program).rstrip()
  if marks != 0:
    assert found == set(marks)


def test_outputs_with_marks_are_counted():
  texts = [f"```\n{CODE}\n```", f"{CODE}\n[DONE]\n", CODE]
  answers = [
    types.SimpleNamespace(trial=0, index=i, text=text)
    for i, text in enumerate(texts)
  ]
  assert generations.notes(types.SimpleNamespace(answers=answers)) == [
    "2 of 3 outputs had more than a program, which was left out ([DONE] 1,"
    " fences 1)"
  ]
  answers[:2] = []
  assert generations.notes(types.SimpleNamespace(answers=answers)) == []
