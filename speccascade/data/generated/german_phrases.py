"""German phrases without clauses in them: nouns with their words, adverbials.

Every function takes `g`, one of the two readings of `lattice`.
"""

from speccascade.data.generated import german
from speccascade.data.generated.determiners import THE, Determiner
from speccascade.data.generated.lexicon import Choice

# Elsewhere the contraction is the rule; these two also stand apart.
_CONTRACT = {
  "ans": Choice((0.6, 0.4), ("an das", "ans")),
  "vom": Choice((0.85, 0.15), ("vom", "von dem")),
}
_TO = Choice((0.65, 0.35), (True, False))
# One goes into or onto these; to the other places just up to them.
_ENTERED = {"market", "farm", "island"}


def same(text: str) -> str:
  """The text itself, for choices among texts."""
  return text


def _article(determiner: Determiner, case: str, column: str) -> str:
  if determiner.endings == "der":
    return german.DEFINITE[case, column]
  if determiner.endings == "":
    return ""
  table = german.EIN if determiner.endings == "ein" else german.DIESER
  return determiner.stem + table[case, column]


def adjectives(g, phrase, declension: str, case: str, column: str):
  """The adjectives of an AP node, all with the same ending."""
  _, degree, quality, colour = phrase
  if quality is None and colour is None:
    return ""

  def inflected(form):
    return german.adjective(form[1], declension, case, column)

  return g.seq(
    g.alt(degree.german, same) if degree else "",
    g.alt(quality.german, inflected) if quality else "",
    g.alt(colour.german, inflected) if colour else "",
  )


def determined(
  g, determiner, phrase, noun, number, case, preposition, contracts
):
  """[preposition] determiner adjectives noun.

  The determiner is a `Determiner` or the `Word` of a number.
  """
  column = noun.column(number)
  if isinstance(determiner, Determiner):
    head = _article(determiner, case, column)
    declension = determiner.declension
    if preposition:
      if determiner is THE and contracts:
        head = german.contract(preposition, head)
        if head in _CONTRACT:
          head = g.alt(_CONTRACT[head], same)
      else:
        head = g.seq(preposition, head)
  else:
    head = g.seq(preposition, g.alt(determiner.german, same))
    declension = "strong"
  return g.seq(
    head,
    adjectives(g, phrase, declension, case, column),
    noun.forms[case, number],
  )


def quantity(g, tree, case):
  """Three bottles of cold milk: "drei Flaschen kalte Milch"."""
  _, count, measure, phrase, word = tree
  (noun,) = word.german.values
  content = g.seq(
    adjectives(g, phrase, "strong", case, noun.gender), noun.forms[case, "s"]
  )
  if count is None:
    unit = measure.german.values[0]
    one = "ein" + german.EIN[case, unit.gender]
    return g.seq(one, unit.forms[case, "s"], content)
  many = g.alt(measure.german, lambda unit: unit.forms[case, "p"])
  return g.seq(g.alt(count.german, same), many, content)


def time(g, tree):
  """When: "am Montag um halb sieben", "vor drei Wochen"; "" without a tree."""
  if tree is None:
    return ""
  if tree[0] == "time":
    return g.seq(*[g.alt(word.german, same) for word in tree[1:]])
  _, kind, count, word = tree
  (unit,) = word.german.values
  case = "acc" if kind == "for" else "dat"
  if count is None:
    text = g.seq("ein" + german.EIN[case, unit.gender], unit.forms[case, "s"])
  else:
    text = g.seq(g.alt(count.german, same), unit.forms[case, "p"])
  if kind == "for":
    return g.seq(text, "lang")
  return g.seq("vor" if kind == "ago" else "in", text)


def place(g, tree):
  """Where: "im alten Garten"; "" without a tree."""
  if tree is None:
    return ""
  if tree[0] == "at":
    _, determiner, phrase, word = tree
    preposition, case = word.extra[2], "dat"
  else:
    _, around, determiner, phrase, word = tree
    preposition, case = around.german.values[0], around.extra[0]
  (noun,) = word.german.values
  return determined(g, determiner, phrase, noun, "s", case, preposition, True)


def direction(g, tree):
  """Where to: "in die Küche" or "zur Küche"."""
  _, determiner, phrase, word = tree
  (noun,) = word.german.values
  home = word.extra[2]

  def build(enters):
    preposition, case = (home, "acc") if enters else ("zu", "dat")
    return determined(g, determiner, phrase, noun, "s", case, preposition, True)

  if home == "in" or word.text in _ENTERED:
    return g.alt(_TO, build)
  return build(False)


_PRICE_AND = Choice((0.7, 0.3), ("Euro und", "Euro"))


def price(g, tree):
  """How much: "drei Euro fünfzig" or "drei Euro und fünfzig Cent"."""
  _, euros, cents = tree
  amount = g.alt(euros.german, same)
  if cents is None:
    return g.seq(amount, "Euro")
  joined = g.alt(
    _PRICE_AND,
    lambda link: g.seq(
      link, g.alt(cents.german, same), "Cent" if "und" in link else ""
    ),
  )
  return g.seq(amount, joined)
