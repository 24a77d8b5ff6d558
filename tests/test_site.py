"""The pages as a site: all of them, with an index, search and a reference."""

import html.parser
import json
import pathlib
import subprocess
import sys
import urllib.parse

import pytest

import speccascade

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}

for module in ("mkdocs", "mkdocstrings_handlers.python"):
  pytest.importorskip(module, reason="the extra `docs` is not installed")


class Page(html.parser.HTMLParser):
  """What a page links, and what links may name of it."""

  def __init__(self, path: pathlib.Path):
    super().__init__()
    self.links, self.ids = [], set()
    self.feed(path.read_text(encoding="utf-8"))

  def handle_starttag(self, tag, attributes):
    values = dict(attributes)
    self.ids |= {values[name] for name in ("id", "name") if name in values}
    self.links += [values[name] for name in ("href", "src") if name in values]


def broken_links(site: pathlib.Path) -> list[tuple[str, str]]:
  """Returns (page, link) of each link of a site that leads nowhere in it."""
  pages = {path: Page(path) for path in site.rglob("*.html")}
  broken = []
  for path, page in pages.items():
    for link in page.links:
      parts = urllib.parse.urlsplit(link)
      # (The page for a wrong address is read at any address.)
      if parts.scheme or parts.netloc or path.name == "404.html":
        continue
      place = path
      if parts.path:
        place = (path.parent / urllib.parse.unquote(parts.path)).resolve()
      place = place / "index.html" if place.is_dir() else place
      anchor = urllib.parse.unquote(parts.fragment)
      is_there = place.is_file() and place.is_relative_to(site)
      if not is_there or (anchor and anchor not in pages[place].ids):
        broken.append((path.relative_to(site).as_posix(), link))
  return broken


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  """The folder of the site. A page that the index lacks, or a link to what is
  not there, ends the build."""
  folder = tmp_path_factory.mktemp("site").resolve()
  command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
  done = subprocess.run(
    [*command, f"--site-dir={folder}"],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return folder


def test_every_page_is_there_and_is_found(site):
  for page in PAGES:
    assert (site / page / "index.html").is_file(), page
  index = json.loads((site / "search" / "search_index.json").read_text())
  found = {each["location"].partition("/")[0] for each in index["docs"]}
  assert PAGES | {"CONTRIBUTING", "CHANGELOG"} <= found
  home = (site / "index.html").read_text(encoding="utf-8")
  assert "fonts.googleapis.com" not in home


def test_every_link_leads_to_what_is_there(site):
  assert not broken_links(site)


def test_a_broken_link_is_seen(tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "index.html").write_text('<h1 id="x"></h1>')
  links = ("a/", "a/#x", "a/#y", "b/", "../", "#z", "https://a.b/c")
  text = "".join(f'<a href="{link}"></a>' for link in links)
  (tmp_path / "index.html").write_text(text)
  broken = [link for _, link in broken_links(tmp_path.resolve())]
  assert broken == ["a/#y", "b/", "../", "#z"]


def test_the_reference_has_every_public_name(site):
  page = Page(site / "reference" / "index.html")
  for name, module in speccascade._PUBLIC.items():
    if name != "METHODS":  # of which methods.md is the reference
      assert f"{module}.{name}" in page.ids, name
  text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
  assert "`sc.METHODS`" in text
  # Settings are listed once, as `help` lists them; no section was left as text.
  html_text = (site / "reference" / "index.html").read_text(encoding="utf-8")
  generate, found, others = html_text.partition(
    'id="speccascade.generate.api.Pair.compare"'
  )
  assert found
  assert "the likeliest token is taken" in generate
  assert "the likeliest token is taken" not in others
  assert "Args:" not in html_text
  assert "Annotated[" not in html_text
