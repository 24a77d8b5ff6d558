"""The token view: what it shows, that it is HTML, and that nothing gets out."""

import dataclasses
import html
import html.parser
import re

import pytest

from speccascade.generate import token_view
from speccascade.generate.batches.decode_counts import Counts

STYLE = token_view.STYLE
SOURCES = "draft,draft,residual,bonus,sequential q,sequential p,draft,draft"
PIECES = ["▁Der", "<script>", "▁a&b", "<0xC3>", "<unk>", "", "\u2581", "</s>"]
COUNTS = {
  "num_tokens": len(PIECES),
  "num_blocks": 3,
  "examined": 6,
  "accepted": 4,
  "drafter_calls": 9,
  "verifier_extends": 3,
}


def record(**counts) -> dict:
  """A record of eight tokens, one of each kind at least."""
  num = len(PIECES)
  trace = {
    "source": SOURCES.split(","),
    "writer": [0, 0, -1, -1, 0, -1, 1, -1],
    "deferred": [False, True, *[False] * 6],
    "left": [0.25, 0.25, None, 0.5, 0.5, 0.5, 0.5, 0.5],
    "right": [0.5, 0.75, None, 0.5, 0.5, 0.5, 0.5, 0.5],
    "tv": [0.125, None, *[0.5] * 6],
    "block": [0, 0, 0, 1, 1, 2, 2, 2],
    "piece": PIECES,
    "q_top": [[5, 6]] * num,
    "q_prob": [[0.625, 0.375]] * (num - 1) + [[None, None]],
    "q_top_piece": [["▁Der", "<b>"]] * num,
    "p_top": [[6, 5]] * num,
    "p_prob": [[0.8125, 0.1875]] * num,
    "p_top_piece": [["<b>", "▁Der"]] * num,
  }
  return {
    "inputs": 'One "<i>" & two',
    "targets": ["Zwei <hr>"],
    "aux": {
      "tokens": [5, 7, 8, 198, 2, 300, 9, 1],
      "counts": dataclasses.asdict(Counts(**{**COUNTS, **counts})),
      "trace": trace,
    },
  }


class Page(html.parser.HTMLParser):
  """Elements as (tag, attributes); text; and whether tags nest."""

  def __init__(self, text):
    super().__init__()
    self.open, self.elements, self.text = [], [], []
    self.feed(text)
    self.close()
    assert self.open == []

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))
    if tag != "meta":
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if "style" not in self.open:
      self.text.append(data)

  def with_class(self, name):
    every = (attrs for _, attrs in self.elements)
    return [attrs for attrs in every if name in attrs.get("class", "").split()]


@pytest.mark.parametrize("num_blocks", [0, 3])
def test_every_token_has_its_kind_block_and_card(num_blocks):
  page = Page(token_view.tokens_html(record(num_blocks=num_blocks)))
  tokens = page.with_class("sc-token")
  kinds = [token["class"].removeprefix("sc-token sc-") for token in tokens]
  assert kinds == [
    "draft",
    "kept",
    "residual",
    "bonus",
    "seq-q",
    "seq-p",
    "draft",
    "copy",
  ]
  assert {token["tabindex"] for token in tokens} == {"0"}
  assert len(page.with_class("sc-card")) == len(PIECES)
  assert len(page.with_class("sc-here")) == 2  # token 5, in both lists
  blocks = [block["data-block"] for block in page.with_class("sc-block")]
  assert blocks == ["0", "1", "2"][:num_blocks]


def test_a_forced_token_has_a_kind_of_its_own():
  shown = record()
  shown["aux"]["trace"]["source"][7] = "forced"
  page = Page(token_view.tokens_html(shown))
  last = page.with_class("sc-token")[-1]
  assert last["class"] == "sc-token sc-forced"
  assert token_view.kinds([shown])[-1] == "forced"
  assert ".sc-forced{" in STYLE


# The drafts 0, 2 and 5 were accepted; 1 repeats 0, and 3 and 4 follow 2.
TREE = {
  "tokens": [5, 5, 6, 7, 7, 8, 9],
  "parents": [0, 0, 1, 1, 1, 3, 4],
  "accepted": [0, 2, 5],
  "piece": ["▁a", "▁a", "b", "<i>", "<i>", "c", "d"],
}


def test_drafts_that_lost_are_listed_by_depth():
  lost = token_view.losing_drafts(TREE)
  assert lost == [
    [],
    [(7, ("<i>", True), True)],
    [(9, ("d", False), False)],
  ]
  some = record()
  assert "<details" not in token_view.tokens_html(some)
  some["aux"]["trees"] = [TREE, {**TREE, "accepted": [], "parents": [0] * 7}]
  page = Page(token_view.tokens_html(some))
  text = "".join(page.text)
  assert "block 0: 2: <i>; 3: d" in text
  assert "block 1: 1:  a b <i> c d" in text
  marked = [attrs for tag, attrs in page.elements if tag == "u"]
  assert len(marked) == 1 + 5
  token_view.check_tree(TREE)
  for wrong, message in (
    ({"piece": []}, "one entry for each draft"),
    ({"parents": [1, *TREE["parents"][1:]]}, "follows a later one"),
    ({"accepted": [7]}, "not there"),
  ):
    with pytest.raises(ValueError, match=message):
      token_view.check_tree(TREE | wrong)


def test_what_a_card_says():
  text = "\n".join(Page(token_view.tokens_html(record())).text)
  for part in (
    "draft, kept although the rule deferred",
    "9 passes of the small model and 3 of the large model",
    "id 5, token 1, block 0",
    "rule: 0.25 ≥ 0.5, not deferred",
    "rule: 0.25 < 0.75, deferred",
    "rule: none read here",
    "TV(p, q) 0.125",
    "TV(p, q) –",
    "0.625",
    "0.812",
    "8 tokens, 3 blocks, 2.67 tokens a block",
    "4 of 6 drafts accepted",
  ):
    assert part in text
  assert text.count("not asked") == 1  # the drafter's q at the last token
  assert "by model" not in text
  cascaded = token_view.tokens_html(record(calls_by_model=(5, 4)))
  text = "\n".join(Page(cascaded).text)
  assert text.count("accepted; by model 1 of 2") == 1
  assert text.count("accepted; by model 2 of 2") == 1


def test_source_and_reference_are_once_above_the_texts_of_an_example():
  other = record()
  other["inputs"], other["targets"] = "Another", ["first", "second"]
  view = token_view.view_html([record(), record(), other])
  assert len(Page(view).with_class("sc-record")) == 3
  texts = "\n".join(Page(view).text)
  assert texts.count("reference: Zwei <hr>") == 1
  assert texts.count("reference (the first of 2): first") == 1
  assert [x["class"] for x in Page(view).with_class("sc-source")] == (
    ["sc-source"] * 2
  )
  parts = ('class="sc-source"', "Zwei", 'class="sc-record"')
  places = [view.index(part) for part in parts]
  assert places == sorted(places)
  del other["targets"]
  assert token_view.reference_html(other) == ""


def test_the_legend_explains_every_kind_in_a_sentence():
  items = html.unescape(token_view.legend_html()).split("<li>")[1:]
  assert len(items) == len(token_view._KINDS) + 1
  for kind, item in zip(token_view._KINDS.values(), items):
    assert f"<b>{kind.name}.</b> {kind.meaning}</li>" in item
    assert re.fullmatch(r"[A-Z][^.]*\.", kind.meaning), kind.meaning
  assert "min(1, pi(x) / q(x))" in token_view._KINDS[token_view.KEPT].meaning


def test_everything_is_escaped_and_nothing_is_loaded():
  whole = token_view.page_html([record()], "A <title> & more")
  assert not re.search(r"https?:|url\(|@import|<script|src=|\bon\w+=", whole)
  page = Page(whole)
  tags = [tag for tag, _ in page.elements]
  assert "hr" not in tags
  assert tags.count("title") == 1
  assert tags.count("i") == len(PIECES)  # the cards' own
  assert tags.count("b") == len(PIECES) + 7  # and the names in the legend
  text = "".join(page.text)
  for shown in ('One "<i>" & two', "Zwei <hr>", " a&b", "A <title> & more"):
    assert shown in text


def test_pieces():
  plain = {"▁Haus": " Haus", "a▁b": "a b", "<0x41>": "A", "<0x0A>": "↵"}
  special = {"<0xC3>": "0xC3", "<unk>": "<unk>", "<32100>": "<32100>"}
  for piece, shown in {**plain, "<": "<"}.items():
    assert token_view._readable(piece, 77) == (shown, False)
  for piece, shown in {**special, "": "<77>"}.items():
    assert token_view._readable(piece, 77) == (shown, True)


def test_controls_do_not_get_into_the_page():
  changed = record()
  changed["inputs"] = "a\x00b\x1b[31m\nc"
  html_text = token_view.source_html(changed)
  html_text += token_view.tokens_html(changed)
  assert not re.search(r"[\x00-\x1f]", html_text)


def test_the_legend_names_what_there_is():
  some = record()
  some["aux"]["trace"]["source"] = ["draft"] * len(PIECES)
  kinds = ["draft", token_view.KEPT, token_view.COPY]
  assert token_view.kinds([some]) == kinds
  some["aux"]["trace"]["writer"] = [0] * len(PIECES)
  assert token_view.kinds([some]) == kinds[:2]
  legend = Page(token_view.legend_html(token_view.kinds([some])))
  assert len(legend.with_class("sc-token")) == 2
  assert len(Page(token_view.legend_html()).with_class("sc-token")) == 8


def test_cards_of_the_last_record_open_over_the_legend():
  view = token_view.view_html([record()])
  assert view.rindex("sc-record") < view.index('class="sc-legend"')
  # What is below is the legend, and no room of its own.
  (view_rule,) = re.findall(r"^\.sc-view\{(.*?)\}", STYLE, re.M | re.S)
  assert "padding-bottom" not in view_rule
  assert ".sc-view>.sc-legend:last-child{min-height:14em" in STYLE


def test_kinds_differ_without_colour():
  """Underline, outline or weight distinguish any two kinds."""
  underlines = re.findall(r"border-bottom:(.*?) var\(--sc-[\w-]+-line", STYLE)
  assert len(underlines) == len(token_view._KINDS)
  # draft and kept share one; kept has an outline and is bold.
  assert len(set(underlines)) == len(underlines) - 1
  assert ".sc-kept{outline" in STYLE


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_on_every_ground(theme):
  """WCAG's contrast of 4.5 for text, 3 for what marks it."""
  light, dark = re.findall(r":root\{(.*?)\}", STYLE, re.DOTALL)[:2]
  text = light if theme == "light" else dark
  plain = dict(re.findall(r"--sc-([\w-]+):(#\w{6})", text))
  kinds = [kind.css_class for kind in token_view._KINDS.values()]
  for name in kinds:
    assert _contrast(plain["ink"], plain[name]) >= 4.5, name
    assert _contrast(plain[f"{name}-line"], plain["ground"]) >= 3, name
  for ground in ("ground", "card", "bar"):
    assert _contrast(plain["ink"], plain[ground]) >= 4.5
  assert _contrast(plain["dim"], plain["ground"]) >= 4.5
  assert _contrast(plain["dim"], plain["card"]) >= 4.5


def _contrast(ink, ground) -> float:
  def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
      c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear))

  high, low = sorted((luminance(ink), luminance(ground)), reverse=True)
  return (high + 0.05) / (low + 0.05)


def test_a_record_without_trace():
  plain = record()
  del plain["aux"]["trace"]
  with pytest.raises(ValueError, match="has no trace; decode with TRACE"):
    token_view.tokens_html(plain)
