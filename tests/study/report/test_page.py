"""The page in a browser: nothing else is asked for, nothing sticks out."""

import re

import pytest

from speccascade.generate import token_view
from speccascade.study.report import plots, writing
from speccascade.study.report.shown_examples import ShownExamples
from tests import browser
from tests.generate import test_token_view
from tests.study.report import synthetic

WIDTHS = (375, 500, 1440)
OPEN_ALL = "for (const x of document.querySelectorAll('details')) x.open = true"


def traced() -> ShownExamples:
  records = [test_token_view.record() for _ in range(3)]
  records[2]["inputs"] = "Another source"
  for each, label in zip(records, ("SpecDecode", "Lossy <b>", "SpecDecode")):
    each["label"] = label
  return ShownExamples(records, "3 of 9.")


@pytest.fixture(scope="module")
def text() -> str:
  methods = ["verifier", "spec_decode", "spec_cascade_opt"]
  methods.append("token_cascade_chow")
  rows = synthetic.rows(gammas=(3, 5), overhead=1.2, methods=methods)
  return writing.page(writing.sections_of(rows), traced())


@pytest.fixture(scope="module")
def url(text, tmp_path_factory) -> str:
  path = tmp_path_factory.mktemp("page") / "index.html"
  path.write_text(text, encoding="utf-8")
  return path.as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
  path = browser.find()
  if path is None:
    pytest.skip("no Chromium: install it, or set CHROMIUM to its path")
  opened = browser.Browser(path, tmp_path_factory.mktemp("profile"))
  yield opened
  opened.close()


def test_nothing_outside_is_named(text):
  addresses = set(re.findall(r'(?:src|href)="([^"]*)"', text))
  # Beside it are its tables and figures; nothing else is asked for.
  here = r"(#|data:)|[\w.-]+\.(csv|md|png|svg)$"
  assert all(re.match(here, url) for url in addresses)
  linked = {url[1:] for url in addresses if url.startswith("#")}
  ids = re.findall(r'\bid="([^"]*)"', text)
  assert len(set(ids)) == len(ids)
  assert linked <= set(ids)
  assert "@import" not in text
  assert text.count("<script") == 1


def test_what_the_page_says(text):
  for part in (
    "Findings",
    "Figure 1, gamma 5",
    "Figure 2, gamma 5: quality against speed, measured wall-clock",
    "Figure 2, gamma 5: quality against speed, modelled",
    "Table 2, measured wall-clock",
    "Table 2, modelled: a block costs one step, c = 0.12",
    "<summary>Figures at gamma 3</summary>",
    "Where speculation loses",
    "was not timed",
    "Who wrote each token",
    "Lossy &lt;b&gt;",
    token_view.STYLE,
  ):
    assert part in text
  assert "Lossy <b>" not in text


def test_without_losses_and_examples():
  rows = synthetic.rows(methods=["drafter", "verifier", "token_cascade_chow"])
  bare = writing.page(writing.sections_of(rows), ShownExamples())
  assert 'class="notice"' not in bare
  assert "Who wrote each token" not in bare


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_and_can_be_read(chromium, url, width, scheme):
  """Figures of 900 pixels, or of the narrow window, with readable letters."""
  chromium.open(url, width=width, scheme=scheme)
  assert chromium.requests == [url]
  assert chromium.errors == []
  size = "document.documentElement.scroll"
  assert chromium.evaluate("innerWidth") == width
  assert chromium.evaluate(f"{size}Height") > 2000
  ground = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
  light = sum(map(int, re.findall(r"\d+", ground)[:3])) > 3 * 128
  assert light == (scheme == "light")
  images = chromium.evaluate("""
    [...document.querySelectorAll("figure img")].filter(
      x => x.checkVisibility()).map(x => [x.complete, x.naturalWidth,
        x.getBoundingClientRect().width, x.currentSrc == x.src])
  """)
  assert len(images) > 5
  for is_there, inner, shown, is_wide in images:
    assert is_there
    assert inner > 0
    assert is_wide == (width == 1440)
    inches = plots.WIDTH if is_wide else plots.NARROW
    assert 7 * shown / (72 * inches) >= 8  # pixels of the smallest letters
    assert shown == 900 if is_wide else shown <= width
  assert chromium.evaluate(f"{size}Width") == width
  chromium.evaluate(OPEN_ALL)
  assert chromium.evaluate(f"{size}Width") == width


@pytest.mark.parametrize("width", [500, 1440])
def test_the_first_screen_tells_it(chromium, url, width):
  """What pair, one sentence, the figure; with the facts that they rest on."""
  chromium.open(url, width=width)
  tops, bottoms = chromium.evaluate("""
    ["top", "bottom"].map(side => [".about", ".lead", "figure img"].map(
      x => document.querySelector(x).getBoundingClientRect()[side]))
  """)
  assert bottoms == sorted(bottoms)
  # In a narrow window the panels of the figure are stacked.
  last = bottoms[-1] if width == 1440 else tops[-1] + 300
  assert last <= chromium.evaluate("innerHeight")
  shown = chromium.evaluate("document.querySelector('section').innerText")
  assert "12.3 million parameters, 9.4 ms a text (0.47 a token) greedy" in shown
  assert "gamma 3, 5" in shown
  assert re.search(r"^T = 1: .* times as fast", shown, re.M)
  assert 'METHOD = "' in shown


@pytest.mark.parametrize("width", [375, 1000, 1440])
def test_no_table_is_clipped(chromium, url, width):
  chromium.open(url, width=width)
  widths = chromium.evaluate("""
    [...document.querySelectorAll(".whole")].map(
      x => [x.scrollWidth - x.clientWidth, x.scrollHeight - x.clientHeight])
  """)
  assert widths == [[0, 0]] * len(widths)
  first = "document.querySelector('h3[id$=tables] ~ .with-table .whole')"
  assert "interpolated" in chromium.evaluate(f"{first}.innerText")


def test_a_table_is_copied(chromium, url):
  chromium.open(url, width=1440)
  chromium.evaluate("navigator.clipboard.writeText = x => { copied = x }")
  chromium.evaluate("document.querySelector('.copy').click()")
  head, *lines = chromium.evaluate("copied").split("\n")
  titles = head.split("\t")
  assert titles[:2] == ["method", "T"]
  assert {len(line.split("\t")) for line in lines} == {len(titles)}


def test_tokens_open_their_cards_by_keyboard(chromium, url):
  chromium.open(url, width=375)
  # A pointer that an earlier test left over a token would hide all other cards.
  chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
  chromium.call("Emulation.setFocusEmulationEnabled", enabled=True)
  cards = chromium.evaluate("""
    [...document.querySelectorAll(".sc-text .sc-token")]
      .filter(token => token.checkVisibility()).map(token => {
        token.focus();
        const card = token.querySelector(".sc-card");
        const box = card.getBoundingClientRect();
        return [card.checkVisibility({visibilityProperty: true}),
          box.left, box.right, card.textContent];
      })
  """)
  assert len(cards) == 2 * len(test_token_view.PIECES)  # of the open source
  for is_shown, left, right, card_text in cards:
    assert is_shown
    assert 0 <= left < right <= 375
    assert "TV(p, q)" in card_text


def test_it_is_read_without_its_script(chromium, text, tmp_path):
  bare = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
  path = tmp_path / "bare.html"
  path.write_text(bare, encoding="utf-8")
  chromium.open(path.as_uri(), width=375)
  seen = chromium.evaluate("document.body.innerText")
  assert "Table 2, measured wall-clock" in seen
  assert chromium.evaluate("document.querySelectorAll('figure img').length")
