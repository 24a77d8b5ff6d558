"""Speculative cascades: exact distributions, measured speed, trade-off curves.

A public name is imported when it is first used. `import speccascade.decoding`
therefore imports neither TensorFlow nor the command-line parts.
"""

import importlib
import sys

if sys.argv[:1] == ["-m"]:  # a command, before its modules are imported
  from speccascade.runtime import extras

  extras.explain_at_exit()

__version__ = "0.2.0"

# Public name -> the module that defines it.
_PUBLIC = {
  "METHODS": "speccascade.decoding",
  "Mesh": "speccascade.models.sharding.meshes",
  "ByPhase": "speccascade.generate.points.alpha_phases",
  "Chat": "speccascade.generate.api",
  "Comparison": "speccascade.study.comparison",
  "EarlyExit": "speccascade.generate.pair.early_exit",
  "Generation": "speccascade.generate.api",
  "Pair": "speccascade.generate.api",
  "LlamaConfig": "speccascade.models",
  "LlamaLM": "speccascade.models",
  "PromptLookup": "speccascade.generate.pair.prompt_lookup",
  "Sampling": "speccascade.decoding",
  "StateReader": "speccascade.models",
  "StateReaderConfig": "speccascade.models",
  "Sweep": "speccascade.study.pair_sweep",
  "T5Config": "speccascade.models",
  "T5GemmaConfig": "speccascade.models",
  "T5GemmaLM": "speccascade.models",
  "T5LM": "speccascade.models",
  "built_in_examples": "speccascade.tasks.generated",
  "built_in_pair": "speccascade.generate.api",
  "decoder": "speccascade.decoding",
  "gpu_kernels": "speccascade.native",
  "load_pair": "speccascade.generate.api",
  "row_keys": "speccascade.decoding",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name):
  """Imports a public name; Python calls this for names that are not here."""
  if name in _PUBLIC:
    try:
      value = getattr(importlib.import_module(_PUBLIC[name]), name)
    except ModuleNotFoundError as error:
      from speccascade.runtime import extras

      if (message := extras.line(error)) is None:
        raise
      raise ModuleNotFoundError(message, name=error.name) from error
    globals()[name] = value  # The next access does not come here.
    return value
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
  return sorted(__all__)
