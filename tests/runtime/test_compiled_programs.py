"""Compiled programs are kept where no other folder is named."""

import jax
import pytest

from speccascade.runtime import compiled_programs, files

NAME = "jax_compilation_cache_dir"


@pytest.fixture(autouse=True)
def config():
  before = jax.config.jax_compilation_cache_dir
  yield
  jax.config.update(NAME, before)


def test_a_folder_that_is_named_stays(tmp_path):
  jax.config.update(NAME, str(tmp_path))
  compiled_programs.keep()
  assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_the_user_s_cache_folder_is_taken_otherwise(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  jax.config.update(NAME, None)
  compiled_programs.keep()
  assert jax.config.jax_compilation_cache_dir == str(files.cache_dir("jax"))
  assert files.cache_dir("jax").is_relative_to(tmp_path)
