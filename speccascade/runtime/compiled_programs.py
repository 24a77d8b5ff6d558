"""Keeps compiled programs between processes."""

from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from speccascade.runtime import files


def keep() -> None:
  """Makes JAX keep compiled programs in the user's cache folder.

  The next process then reads a program in place of compiling it. A folder that
  JAX_COMPILATION_CACHE_DIR or `jax.config` names already is left as it is, and
  JAX_ENABLE_COMPILATION_CACHE=false keeps no program.
  """
  config: Any = jax.config  # (its types leave the name out)
  if config.jax_compilation_cache_dir is None:
    config.update("jax_compilation_cache_dir", str(files.cache_dir("jax")))
    compilation_cache.reset_cache()  # JAX may have noted that there was none
