"""Says which install brings a package that is missing."""

import pathlib
import sys
from typing import Any

# The packages that an extra of setup.py brings, by their names in imports.
EXTRAS = {
  "lab": (
    *("clu", "gin", "matplotlib", "pandas", "rouge_score", "sacrebleu"),
    *("seqio", "tensorboard", "tensorflow", "tensorflow_datasets"),
  ),
  "t5x": ("cached_property", "chex", "fiddle", "grain", "jaxtyping"),
  "smollm": ("gguf",),
  "hub": ("huggingface_hub",),
  "notebook": ("huggingface_hub", "matplotlib", "pandas", "sacrebleu"),
  "grammar": ("outlines_core",),
  "tpu-compiler": ("libtpu",),
}
# Those that come with the base install.
BASE = (
  *("absl", "flax", "jax", "jaxlib", "jinja2", "ml_dtypes", "msgpack"),
  *("numpy", "optax", "orbax", "platformdirs", "safetensors", "scipy"),
  *("sentencepiece", "tensorstore", "tokenizers", "tqdm"),
)
_ENVIRONMENT = pathlib.Path(".venv/bin/activate")  # as the launch scripts make


def line(error: BaseException) -> str | None:
  """Returns how to install what an import did not find.

  Args:
    error: any error.

  Returns:
    One line; None if the error is not about a package that setup.py names.

  >>> line(ModuleNotFoundError(name="gin")).partition(",")[0]
  "gin is not installed here: pip install -c constraints.txt -e '.[lab]'"
  """
  if not isinstance(error, ModuleNotFoundError) or not error.name:
    return None
  package = error.name.partition(".")[0]
  extra = next((name for name in EXTRAS if package in EXTRAS[name]), None)
  if extra is None and package not in BASE:
    return None
  target = f"'.[{extra}]'" if extra else "."
  message = (
    f"{package} is not installed here: pip install -c constraints.txt -e"
    f" {target}"
  )
  environment = _ENVIRONMENT.parents[1].resolve()
  if _ENVIRONMENT.exists() and environment != pathlib.Path(sys.prefix):
    message += f", or use the environment that is here: . {_ENVIRONMENT}"
  return message


def explain_at_exit() -> None:
  """Makes Python end with one line where a package is missing."""
  before = sys.excepthook

  def explain(
    kind: type[BaseException], error: BaseException, trace: Any
  ) -> None:
    if (message := line(error)) is None:
      before(kind, error, trace)
    else:
      print(f"error: {message}", file=sys.stderr)

  sys.excepthook = explain
