"""The pages as a site: all of them, with an index and search."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]

pytest.importorskip("mkdocs", reason="the extra `site` is not installed")


def test_the_site_is_built_without_a_warning(tmp_path):
  # Strict: a page that the index lacks, or a link to a section that is not
  # there, ends the build.
  command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
  done = subprocess.run(
    [*command, f"--site-dir={tmp_path}"],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
  for page in pages - {"index"}:
    assert (tmp_path / page / "index.html").is_file(), page
  index = json.loads((tmp_path / "search" / "search_index.json").read_text())
  found = {each["location"].partition("/")[0] for each in index["docs"]}
  assert pages - {"index"} <= found
  home = (tmp_path / "index.html").read_text(encoding="utf-8")
  assert "fonts.googleapis.com" not in home
