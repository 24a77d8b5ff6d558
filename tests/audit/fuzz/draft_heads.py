"""Draft heads: their settings, and pairs that they cannot be part of."""

from collections.abc import Mapping

from tests.audit.fuzz.case import Case

_LARGE = "99999999999999999999"
_NO_SIZE = ("0", "-1", '"4"', "2.5", "[2]", "True", "None", _LARGE)
_TRAINED = {
  "HEAD_DECAY": ("0", "-1", '"0.8"', "[0.8]", "True", "None", "1e999"),
  "NUM_HEADS": (*_NO_SIZE, "65"),
  "HEAD_MLP_DIM": (*_NO_SIZE, "2000000000"),
  "VERIFIER_TUNING": ("5", '"yes"', "True"),
  "TEACHER_CHECKPOINT": ("None", "5", '"/nowhere"', '"@base/heads"'),
  "STUDENT_TEXT": ("0.5",),
  "EARLIER_DRAFTERS": ('["@base/small"]',),
}
_TUNING = {"VERIFIER_TUNING": "@verifier_tuning.VerifierTuning()"}
_TUNED = {
  "HEADS_WEIGHT": ("0", "-1", '"0.2"', "None", "1e999"),
  "VERIFIER_RATE": ("-0.1", "1.5", '"0.2"', "None"),
  "HEADS_ONLY_STEPS": ("-1", "2.5", '"5"', "None"),
}
_SAYS = {
  '"/nowhere"': "/nowhere",
  '"@base/heads"': "has draft heads; wanted a language model",
}
_DECODED: tuple[tuple[str, str, Mapping[str, str]], ...] = (
  ("decode", "set gamma to 2 or less", {"GAMMA": "3"}),
  ("decode", "trained for another verifier", {"DRAFTER_CHECKPOINT": "foreign"}),
  ("decode", "must be a language model", {"VERIFIER_CHECKPOINT": "heads"}),
  ("decode", "wants a language model", {"METHOD": '"token_cascade_chow"'}),
  ("decode", "draft heads", {"METHOD": '"drafter"'}),
  (
    "decode",
    "draft heads draft whole blocks",
    {"DRAFT_LENGTH": '("max_prob", 0.4)'},
  ),
  (
    *("decode", "where a block begins"),
    {
      "METHOD": '"spec_cascade_opt"',
      "ALPHA": "0.3",
      "VERIFICATION": '"block"',
    },
  ),
  (
    *("sweep", "wants a language model"),
    {"METHODS": '["spec_decode", "token_cascade_chow"]', "GAMMAS": "[2]"},
  ),
  ("sweep", "wants a language model", {"METHODS": '["drafter"]'}),
  (
    *("sweep", "set gamma to 2 or less"),
    {"METHODS": '["spec_decode"]', "GAMMAS": "[2, 3]"},
  ),
  ("advise", "name a gamma of 1 to 2", {"GAMMAS": "[3, 5]"}),
  ("advise.trees", "drafts no trees", {"METHOD": '"token_cascade_chow"'}),
  (
    *("advise", "name a gamma of 1 to 2"),
    {"DRAFTER_CHECKPOINT": "lookahead", "GAMMAS": "[3, 5]"},
  ),
  (
    *("advise.trees", "drafts no trees"),
    {"DRAFTER_CHECKPOINT": "lookahead", "METHOD": '"token_cascade_chow"'},
  ),
  (
    *("sweep", "set gamma to 2 or less"),
    {
      "DRAFTER_CHECKPOINT": "lookahead",
      "METHODS": '["spec_decode"]',
      "GAMMAS": "[2, 3]",
    },
  ),
  *(
    ("decode", says, {"DRAFTER_CHECKPOINT": "lookahead", **macros})
    for says, macros in (
      ("set gamma to 2 or less", {"GAMMA": "3"}),
      ("wants a language model", {"METHOD": '"token_cascade_chow"'}),
      ("draft whole blocks", {"DRAFT_LENGTH": '("max_prob", 0.4)'}),
      ("must be a language model", {"VERIFIER_CHECKPOINT": "lookahead"}),
    )
  ),
)
_PATHS = {
  "foreign": '"@base/foreign_heads"',
  "heads": '"@base/heads"',
  "lookahead": '"@base/lookahead"',
}


def cases() -> list[Case]:
  """Returns the cases."""
  heads = ("--gin_file=configs/models/blockwise_heads.gin",)
  right = {
    "TEACHER_CHECKPOINT": '"@base/large"',
    "NUM_HEADS": "2",
    "BEST_METRIC": "None",
  }
  found = [
    Case("train", _SAYS.get(value, name), right | {name: value}, heads)
    for name, values in _TRAINED.items()
    for value in values
  ]
  found += [
    Case("train", name, right | _TUNING | {name: value}, heads)
    for name, values in _TUNED.items()
    for value in values
  ]
  # Of look-ahead embeddings, and of a language model; a dry run refuses it too.
  ahead = ("--gin_file=configs/models/lookahead_heads.gin",)
  for flags in ((), ("--dry_run",)):
    found += [
      Case("train", "VERIFIER_TUNING", right | _TUNING, (*ahead, *flags)),
      Case("train", "VERIFIER_TUNING", _TUNING, flags),
    ]
  heads_alone = {"DRAFTER_CHECKPOINT": '"@base/heads"'}
  for command, says, macros in _DECODED:
    macros = {name: _PATHS.get(x, x) for name, x in macros.items()}
    # Searches have block sizes of their own, or begin with one draft.
    gammas = {"decode": "2", "sweep": None}
    drafts = heads_alone | {"GAMMA": gammas.get(command, "1")}
    found.append(Case(command, says, drafts | macros))
  return found
