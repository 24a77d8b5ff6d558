"""Values of macros and parameters that are of a wrong type, or out of range."""

from tests.audit.fuzz.case import Case

_LARGE = "99999999999999999999"
_TEXT = ("5", "None", '["a"]')
_BOOLEAN = ('"yes"', "1", "None")
_LIST_OF_TEXTS = ("5", "[5]", '["nothing"]')
_PATH = ("5", '["a"]', '"a\\x00b"', '"\\udcff"')


def _whole(*more: str, least: int = 1) -> tuple[str, ...]:
  """Values that are not a whole number of `least` or more, and some more."""
  return (str(least - 1), '"5"', "2.5", "[2]", "True", _LARGE, *more)


def _number(*more: str) -> tuple[str, ...]:
  return ('"0.5"', "[0.5]", "True", "1e999", *more)


_POINT = {
  "TOP_K": _whole(least=0),
  "TOP_P": _number("0", "1.5", "-1e-300"),
  "MIN_P": _number("-0.1", "1.5"),
  "BONUS": ('"both"', "1", "None"),
  "VERIFICATION": ('"tree"', "1", "None"),
  "TREE": ("()", "(0,)", "(2, 2.5)", "(-1, 5)", '"wide"', "3", "(99, 99)"),
  "DRAFTS": ("0", '"many"', "2.5", "5000"),
  "DRAWING": ('"greedy"', "1"),
  "DRAFT_LENGTH": (
    *('("max_prob",)', '"max_prob"', '("max_prob", 2)', "3"),
    *('("max_prob", "0.4")', '("all", 0.4)', "None"),
  ),
  "MAX_DECODE_LEN": _whole("None", "2000000000"),
  "BATCH_SIZE": _whole("None", "2000000000"),
  "LOG_PROBS": _BOOLEAN,
  "DTYPE": ('"float99"', "32", '["float32"]'),
  "KERNEL_DTYPE": ('"float99"', "None", '"int8"'),
  "DRAFTER_KERNEL_DTYPE": ('"float99"', "8"),
}
_INPUTS = {
  "MIXTURE_OR_TASK_NAME": ("5", '["a"]', '"xsum"'),
  "SPLIT": ("5", "None"),
  "INPUT_FILE": (*_PATH, '""', '"/dev/zero"', '"/nowhere"', '"@base"'),
  "VOCABULARY": (
    *("5", '"/nowhere"', '"/dev/zero"', '"@base"', '"@base/in.jsonl"', "None"),
  ),
  "DRAFTER_VOCABULARY": (*_PATH, '""', '" "', '"/nowhere"', '"/dev/zero"'),
  "DRAFT_VOCABULARY": (
    *("0", "-5", "2.5", "[]", "[-1]", "[2.5]", "True", _LARGE, '""', '" "'),
    *('"/nowhere"', '"/dev/zero"', "[3, 3]", "[99999999]", "{}"),
  ),
  "NUM_EXAMPLES": _whole(),
  "USE_CACHED_TASKS": _BOOLEAN,
}
_MEMORY = {"DEVICE_MEMORY_GB": _number("-1", "0", "[16]")}
_LENGTHS = (
  *("{}", "5", "None", '{"targets": 8}', '{"inputs": 0}', '{"inputs": 2.5}'),
  *('{"inputs": None}', '{"inputs": "8"}', '{"inputs": 2000000000}', "[16]"),
)
_VALUES = {
  "decode": {
    **_POINT,
    **_INPUTS,
    **_MEMORY,
    "TASK_FEATURE_LENGTHS": _LENGTHS,
    "TRUNCATE": _BOOLEAN,
    "METHOD": (*('"spec_decod"', "5", "None", '["spec_decode"]', '""'),),
    "RULE_PARAMETERS": ("5", "[5]"),
    "ALPHA": _number("0.3", "0"),  # spec_decode has none
    "MARKER": ('""', "()", "[-3]", "5", "[2.5]", '"x"', "True"),
    "ALPHA_PHASE": ('"during"', "5", "None", '"after"'),  # without a marker
    "OTHER_ALPHA": _number('"exakt"', "None", "0.3"),
    "GAMMA": _whole("None", "1000000"),
    "TEMPERATURE": _number("None", "-1", "1e300"),
    "SEED": _whole("None", least=0),
    "TRIALS": _whole("None"),
    "TRACE": _BOOLEAN,
    "NUM_SHOWN": _whole(least=0),
    "METRICS": _LIST_OF_TEXTS,
    "NUM_TIMED": _whole("None", least=0),
    "REPEATS": _whole("None"),
    "DRAFTER": ("5", '"small"', "[5]"),
    "VERIFIER": ("5", '"small"'),
    "DRAFTER_CHECKPOINT": ("5", "None", "[]", '"/nowhere"', '"a\\x00b"'),
    "VERIFIER_CHECKPOINT": ("5", "None", "[]", '"/nowhere"'),
    "CASCADE": ("5", '"cascade"'),
  },
  "sweep": {
    "METHODS": ("5", "[]", "[5]", '["nothing"]'),
    "ALPHAS": (
      *('"fine"', "5", "None", "[0.5]", '{"nothing": [0.5]}'),
      *('{"spec_cascade_opt": 0.5}', '{"spec_cascade_opt": ["a"]}'),
      '{"spec_cascade_opt": []}',
    ),
    "BUDGET": _whole("None"),
    "GAMMAS": ("5", "[]", '["5"]', "[0]", "[2.5]", "[1000000]", "None"),
    "TEMPERATURES": ("1.0", "[]", '["1"]', "[-1]", "[None]"),
    "SEEDS": ("0", "[]", "[-1]", f"[{_LARGE}]", '["0"]'),
    "TRIALS": ("0", "1000000000"),
    "NUM_LENGTHS": _whole(),
    "NUM_SHOWN": ("-1", "2.5"),
    "SHOWN_METHODS": ('["nothing"]', "5"),
    "NUM_TIMED": ("-1", "1.5"),
    "BATCH_SIZE": ("2000000000", '"8"'),
  },
  "cascade_search": {
    "CASCADES": ("[]", "5", "[5]"),
    "SPACE": ("5", "None"),
    "NUM_CANDIDATES": _whole(),
    "BIGRAMS": ("5", '["a"]', '"/nowhere.json"', '"@base/in.jsonl"'),
    "OBJECTIVE": ('"speed"', "5"),
    "COSTS": ('"guessed"', "5", "[-1.0]", '["a"]', "[0.1, 0.2]"),
    "REPEATS": ("0", "2.5"),
    "FIRST_EXAMPLES": _whole(),
    "ETA": ("1", "2.5", "None"),
    "candidates.Space.copied": ("4", "[]", "[-1]", '["4"]'),
    "candidates.Space.leniences": ("[0.5]", "1.0"),
  },
  "advise": {
    "MAX_LOSS": ('"a"', "True", "1e999"),
    "METHODS": ("5", '["nothing"]', '["bild"]'),
    "GAMMAS": ("5", "[]", "[0]", '["5"]', "[1000000]"),
    "NUM_DECODED": _whole(least=0),
    "DRAFT_VOCABULARIES": ("5", "[0]", '["5"]', "[2.5]", "[1000000]"),
    "NUM_COUNTED": _whole(least=0),
    "EARLY_EXITS": ("5", "[0]", '["5"]', "[2.5]", "[1000000]"),
    "ROUNDS": _whole(),
    "TIME_LIMIT_S": ("0", "-1.0", '"soon"', "None"),
    "TRIALS": ("0", "2.5"),
  },
  "advise.trees": {
    "SIZES": ("5", "[]", "[1]", '["4"]', "[1000000]"),
    "MAX_CHILDREN": _whole("1000000", least=2),
    "MAX_DEPTH": _whole("1000000"),
    "TREE_DRAWING": ('"best"', "5", "None"),
    "TREE_VERIFICATION": ('"block"', '"k_seq"', "5", "None"),
    "METHOD": ('"cascade_drafting"', '"token_cascade_chow"'),
    "TREE": ("(2, 1, 1, 1, 1)",),
    "DRAFTS": ("2",),
    "ROUNDS": _whole(),
    "TIME_LIMIT_S": ("0", "-1.0", '"soon"', "None"),
  },
  "ngrams": {
    "ORDER": _whole("1000", least=2),
    "SUCCESSORS": _whole(),
    "MIN_COUNT": _whole(),
    "VOCAB_SIZE": _whole("5"),
    "FEATURES": ("[]", '["sources"]', "5"),
    "OUTPUT_FILE": ("5", '"@work/out.txt"', '""'),
    "INPUT_FILE": ("None", "5", '"/nowhere"'),
    "NUM_EXAMPLES": ("0", "2.5"),
  },
  "train": {
    **_MEMORY,
    "MODEL": ("5", "None", '"t5"'),
    "MIXTURE_OR_TASK_NAME": ("5", "None", '"nothing"', '""'),
    "TASK_FEATURE_LENGTHS": (*_LENGTHS, '{"inputs": 8}', '{"inptus": 8}'),
    "VOCABULARY": ("5", '"/nowhere"', '"@base/in.jsonl"'),
    "USE_CACHED_TASKS": _BOOLEAN,
    "TOKEN_CACHE_DIR": ("5", '"a\\x00b"'),
    "BUCKETS": (
      *("24", "[]", "[-8, 24]", "[2.5]", '["24"]', "[24, 16]", "[(8,)]"),
      *("[(8, 8, 8)]", "[(24, -1)]", "[2000000000]"),
    ),
    "PACK": _BOOLEAN,
    "TRAIN_STEPS": _whole("None"),
    "BATCH_SIZE": _whole("None", "2000000000"),
    "MICROBATCHES": _whole("3"),  # of batches of 4
    "REMAT": ("5", '"all"', "True"),
    "OPTIMIZER": ("5", '"adam"'),
    "LEARNING_RATE": _number("None", "-1", "1e30"),
    "LABEL_SMOOTHING": _number("1.0", "-0.1"),
    "SMOOTHING_ENDS": ("-1", "2.5"),
    "Z_LOSS": _number("-1", "None"),
    "LOSS_NORMALIZING_FACTOR": ('"MEAN"', "0", "[1]"),
    "EVAL_SPLIT": ("5", "None", '"dev"'),
    "EVAL_PERIOD": _whole("None"),
    "NUM_EVAL_EXAMPLES": _whole(least=0),
    "NUM_DECODED_EXAMPLES": _whole(least=0),
    "MAX_DECODE_LEN": _whole("2000000000"),
    "CHECKPOINT_PERIOD": _whole("0.5"),
    "BEST_METRIC": ("5", '"rouge9"'),
    "LOG_PERIOD": _whole(),
    "RANDOM_SEED": _whole("None", least=0),
    "INITIAL_CHECKPOINT_PATH": ("5", '"/nowhere"', '"@base"'),
    "DROPOUT_RATE": _number("2.0", "-0.1", "None"),
    "DTYPE": ('"float99"', "None", "16"),
    "MODEL_DIR": ("5", "None"),
    "TRAIN_FILES": ("5", "None", '["a"]', '"/nowhere"', "{}", '[5, "a"]'),
    "VALIDATION_FILES": ("5", '"/nowhere"'),
    "LANGUAGES": ('("en",)', "5", '("en", 5)'),
    "PREFIX": ("5", "None", '"\\udcff"'),
  },
}
# Parameters without a macro: what the line must say, and the bindings.
_PARAMETERS = {
  "T5Config.": {
    "tiny/config.T5Config.num_encoder_layers": ("1000000000", "0", "-1"),
    "tiny/config.T5Config.num_decoder_layers": ("1000000000", '"2"'),
    "tiny/config.T5Config.emb_dim": ("2000000000", "0", "8.5", "None"),
    "tiny/config.T5Config.num_heads": ("0", _LARGE),
    "tiny/config.T5Config.vocab_size": ("2000000000", '"40"'),
    "tiny/config.T5Config.mlp_activations": ("()", "(5,)"),
    "tiny/config.T5Config.logits_via_embedding": ('"no"',),
  },
  "ModelDir.": {
    "finetune.ModelDir.keep_latest": ("0", "1.5"),
    "finetune.ModelDir.tensorboard": ('"yes"',),
  },
  "register_text_task.": {
    "tasks.register_text_task.metrics": ('["nothing"]', "5"),
    "tasks.register_text_task.extra_ids": ("-1", '"0"'),
  },
  "TextSplits.": {"tasks.TextSplits.languages": ('("en",)', "5", '"en"')},
  "adafactor.": {
    "optimizers.adafactor.decay_rate": ("2.0", '"a"'),
    "optimizers.adafactor.clipping_threshold": ("0", "-1"),
    "optimizers.adafactor.min_dim_size_to_factor": ("2.5", "-1"),
  },
}
_CASCADE = ("--gin_file=configs/runs/cascade.gin",)
_K = {"METHOD": '"cascade_drafting"', "DRAFTER_CHECKPOINT": "()"}
_K |= {"CASCADE_K": "[[2]]"}
_CASCADES = {
  "CASCADE_K": (
    *("5", "[]", "[[1, 2]]", '[["a"]]', "[[-1]]", "[[1000000]]", "[1]"),
  ),
  "CASCADE_K_MEANING": ('"sums"', "5"),
  "LENIENCE": ("0.5", '"a"', "None", "1e999"),
  "MAX_GRAM": ('"yes"', "None"),
  "BIGRAMS": ('["a", "b"]', "5", '"/nowhere.json"', '"@base/in.jsonl"'),
  "NGRAMS": ("5", '["a"]', '"/nowhere.npz"', '"@base/in.jsonl"'),
  "INNER_VERIFICATION": ('"tree"', "None"),
  "FIRST_CHILDREN": ("0", "2.5", '"a"', "None", "1000000"),
}
_SIDE_BY_SIDE = ("--gin_file=configs/runs/side_by_side.gin",)
_BESIDE = {
  "PATH_LENGTH": ("0", "2.5", '"a"', "None", "1000000"),
  "DESIGNATED_DRAFTER": ("-1", "2.5", '"a"', "True"),
}
_SCHEDULES = {
  "peak": ("-1", '"a"', "None"),
  "warmup_steps": ("-1", "2.5", "300"),
  "final_fraction": ("2", '"a"'),
  "first_step": ("-1", "5"),
  "warmup_fraction": ("2", '"a"', "None"),
}


_HUB_NAME = "google/flan-t5-small"
# What no device holds. (A decode has no more rows than examples.)
_BOTH = {"BATCH_SIZE": "65536", "MAX_DECODE_LEN": "65536"}
_LONG = {"TASK_FEATURE_LENGTHS": '{"inputs": 65536, "targets": 65536}'}
_WIDE = {"num_decoder_layers": 2**10, "emb_dim": 2**16, "mlp_dim": 2**20}
_GENERATED = {
  "MIXTURE_OR_TASK_NAME": '"speccascade_en_de"',
  "INPUT_FILE": "None",
}
_SLICES = ("test[:5", "test[5]", "test[:a]", "test[:2]+test[3:]", "test[1:2:3]")
_TOGETHER = (
  ("decode", "RULE_PARAMETERS is None", {"METHOD": '"spec_cascade_learned"'}),
  ("decode", "DRAFTS", {"DRAFTS": "1024", "GAMMA": "1024"}),
  ("decode", "DRAFTS", {"DRAFTS": "1024", "GAMMA": "3"}),
  *(
    ("decode", "a slice of one", _GENERATED | {"SPLIT": f'"{text}"'})
    for text in _SLICES
  ),
  ("decode", "/nowhere", {"GAMMA": '"auto"', "ADVICE": '"/nowhere"'}),
  ("decode", "ADVICE", {"GAMMA": '"auto"', "ADVICE": "5"}),
  ("decode", "ADVICE", {"GAMMA": '"auto"'}),
  *(
    ("decode", f"hf download {_HUB_NAME}", {name: f'"{_HUB_NAME}"'})
    for name in ("DRAFTER_CHECKPOINT", "VERIFIER_CHECKPOINT")
  ),
  ("sweep", "BATCH_SIZE", _BOTH),
  (
    *("train", "MODEL"),
    {f"tiny/config.T5Config.{name}": str(x) for name, x in _WIDE.items()},
  ),
  ("train", "BATCH_SIZE", {"BATCH_SIZE": "65536", **_LONG}),
)


def _said(name: str, value: str) -> str:
  """What a line must name: the setting, or a path where it is one."""
  if value.startswith(('"/', '"@')) and not value.endswith('.txt"'):
    return value.strip('"').replace("@base", "")
  if (name, value) == ("EVAL_SPLIT", '"dev"'):
    return "no split 'dev'"
  return ".".join(name.split(".")[-2:])


def cases() -> list[Case]:
  """Returns the cases."""
  found = [
    Case(command, _said(name, value), {name: value})
    for command, macros in _VALUES.items()
    for name, values in macros.items()
    for value in values
  ]
  found += [
    Case("train", owner + name.rpartition(".")[2], {name: value})
    for owner, parameters in _PARAMETERS.items()
    for name, values in parameters.items()
    for value in values
  ]
  found += [
    Case("decode", _said(name, value), _K | {name: value}, _CASCADE)
    for name, values in _CASCADES.items()
    for value in values
  ]
  found += [
    Case("decode", name, {name: value}, _SIDE_BY_SIDE)
    for name, values in _BESIDE.items()
    for value in values
  ]
  found += [Case(name, says, macros) for name, says, macros in _TOGETHER]
  found += [
    Case(command, name, {name: value}, ["--dry_run"])
    for command in ("decode", "train", "sweep")
    for name, values in _MEMORY.items()
    for value in values
  ]
  linear = {"LEARNING_RATE": "@optimizers.linear()"}
  linear["optimizers.linear.peak"] = "1"
  found += [
    Case("train", "linear", linear | {f"optimizers.linear.{name}": value})
    for name, values in _SCHEDULES.items()
    for value in values
  ]
  return found
