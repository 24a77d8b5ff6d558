"""German for the trees of `english_grammar`.

Every function takes `g`, one of the two readings of `lattice`: the same code
draws a rendering and lists them all.

Style: the past is the perfect (of "be" and the modals the preterite),
relative clauses stay beside their noun, adverbials go time, manner, place.
"""

from speccascade.data.generated import german
from speccascade.data.generated.determiners import THE, Determiner
from speccascade.data.generated.lexicon import Choice

# Genitive attribute, or "von" behind the noun.
_APART = Choice((0.75, 0.25), (False, True))
# Elsewhere the contraction is the rule; these two also stand apart.
_CONTRACT = {
  "ans": Choice((0.6, 0.4), ("an das", "ans")),
  "vom": Choice((0.85, 0.15), ("vom", "von dem")),
}
_TO = Choice((0.65, 0.35), (True, False))
# One goes into or onto these; to the other places just up to them.
_ENTERED = {"market", "farm", "island"}


def _same(text: str) -> str:
  return text


# ---- noun phrases --------------------------------------------------------


def _article(determiner: Determiner, case: str, column: str) -> str:
  if determiner.endings == "der":
    return german.DEFINITE[case, column]
  if determiner.endings == "":
    return ""
  table = german.EIN if determiner.endings == "ein" else german.DIESER
  return determiner.stem + table[case, column]


def _adjectives(g, phrase, declension: str, case: str, column: str):
  """The adjectives of an AP node, all with the same ending."""
  _, degree, quality, colour = phrase
  if quality is None and colour is None:
    return ""

  def inflected(form):
    return german.adjective(form[1], declension, case, column)

  return g.seq(
    g.alt(degree.german, _same) if degree else "",
    g.alt(quality.german, inflected) if quality else "",
    g.alt(colour.german, inflected) if colour else "",
  )


def _phrase(g, determiner, phrase, noun, number, case, preposition, contracts):
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
          head = g.alt(_CONTRACT[head], _same)
      else:
        head = g.seq(preposition, head)
  else:
    head = g.seq(preposition, g.alt(determiner.german, _same))
    declension = "strong"
  return g.seq(
    head,
    _adjectives(g, phrase, declension, case, column),
    noun.forms[case, number],
  )


def _nouns(prefix, word) -> Choice:
  """The renderings of a noun, behind its compound prefix if it has one."""
  return word.german if prefix is None else word.extra[0]


def noun_phrase(g, tree, case: str, preposition: str = "", contracts=True):
  """A noun phrase in its case, the preposition in front of it.

  Args:
    g: a reading of `lattice`.
    tree: np, named, name, pronoun, both or quantity node.
    case: of the phrase.
    preposition: "" for none.
    contracts: whether preposition and article may become one word.
  """
  kind = tree[0]
  if kind == "np":
    _, determiner, phrase, prefix, word, number, owner, relative = tree

    def build(noun):
      if prefix is not None:
        noun = noun.behind(prefix.german.values[0])
      # "in dem Garten, der": singled out by a clause, the article stays whole.
      base = _phrase(
        g,
        determiner,
        phrase,
        noun,
        number,
        case,
        preposition,
        contracts and relative is None,
      )
      if owner is not None:
        return g.alt(
          _APART,
          lambda apart: g.seq(
            base,
            noun_phrase(g, owner, "dat", "von")
            if apart
            else noun_phrase(g, owner, "gen"),
          ),
        )
      if relative is not None:
        return g.seq(base, _relative(g, relative, noun.column(number)))
      return base

    return g.alt(_nouns(prefix, word), build)
  if kind == "named":
    return _named(g, tree, case, preposition, contracts)
  if kind == "name":
    return g.seq(preposition, tree[1].text)
  if kind == "pronoun":
    return g.seq(preposition, getattr(tree[1], case))
  if kind == "both":
    # One contraction cannot serve two articles: "von dem König und der ...".
    return g.seq(
      noun_phrase(g, tree[1], case, preposition, contracts=False),
      "und",
      noun_phrase(g, tree[2], case),
    )
  return _quantity(g, tree, case)


def _named(g, tree, case, preposition, contracts):
  """Anna's hat: "Annas Hut" or "der Hut von Anna"."""
  _, name, phrase, prefix, word, number = tree

  def build(noun):
    if prefix is not None:
      noun = noun.behind(prefix.german.values[0])

    def possessed(apart):
      if apart:
        owned = _phrase(
          g, THE, phrase, noun, number, case, preposition, contracts
        )
        return g.seq(owned, "von", name.text)
      column = noun.column(number)
      return g.seq(
        preposition,
        name.text + "s",
        _adjectives(g, phrase, "strong", case, column),
        noun.forms[case, number],
      )

    return g.alt(_APART, possessed)

  return g.alt(_nouns(prefix, word), build)


def _quantity(g, tree, case):
  """Three bottles of cold milk: "drei Flaschen kalte Milch"."""
  _, count, measure, phrase, word = tree
  (noun,) = word.german.values
  content = g.seq(
    _adjectives(g, phrase, "strong", case, noun.gender), noun.forms[case, "s"]
  )
  if count is None:
    unit = measure.german.values[0]
    one = "ein" + german.EIN[case, unit.gender]
    return g.seq(one, unit.forms[case, "s"], content)
  many = g.alt(measure.german, lambda unit: unit.forms[case, "p"])
  return g.seq(g.alt(count.german, _same), many, content)


_OBJECT_CASES = {"thing": "acc", "living": "acc", "any": "acc", "dative": "dat"}


def _relative(g, tree, column: str):
  """A relative clause between its commas."""
  if tree[0] == "rel_subject":
    pronoun = german.RELATIVE["nom", column]
    person = "p" if column == "p" else "3s"
    body = _verb_phrase(g, tree[1], "final", pronoun, person, "sich", True)
    return g.seq(",", body, ";")
  _, subject, agreement, frame, mood, word = tree
  person = "p" if agreement == "pl" else "3s"
  if frame == "preposition":
    preposition, case, reflexive = word.extra
    head = f"{preposition} {german.RELATIVE[case, column]}"
  else:
    head = german.RELATIVE[_OBJECT_CASES[frame], column]
    reflexive = False
  oneself = _oneself(subject, person) if reflexive else ""
  body = g.alt(
    word.german,
    lambda verb: _arrange(
      g,
      "final",
      _complex(verb, mood, person),
      noun_phrase(g, subject, "nom"),
      oneself,
      "",
      subject[0] == "pronoun",
    ),
  )
  return g.seq(",", head, body, ";")


# ---- adverbials ----------------------------------------------------------


def _time(g, tree):
  if tree is None:
    return ""
  if tree[0] == "time":
    return g.seq(*[g.alt(word.german, _same) for word in tree[1:]])
  _, kind, count, word = tree
  (unit,) = word.german.values
  case = "acc" if kind == "for" else "dat"
  if count is None:
    text = g.seq("ein" + german.EIN[case, unit.gender], unit.forms[case, "s"])
  else:
    text = g.seq(g.alt(count.german, _same), unit.forms[case, "p"])
  if kind == "for":
    return g.seq(text, "lang")
  return g.seq("vor" if kind == "ago" else "in", text)


def _place(g, tree):
  if tree is None:
    return ""
  if tree[0] == "at":
    _, determiner, phrase, word = tree
    preposition, case = word.extra[2], "dat"
  else:
    _, around, determiner, phrase, word = tree
    preposition, case = around.german.values[0], around.extra[0]
  (noun,) = word.german.values
  return _phrase(g, determiner, phrase, noun, "s", case, preposition, True)


def _direction(g, tree):
  _, determiner, phrase, word = tree
  (noun,) = word.german.values
  home = word.extra[2]

  def build(enters):
    preposition, case = (home, "acc") if enters else ("zu", "dat")
    return _phrase(g, determiner, phrase, noun, "s", case, preposition, True)

  if home == "in" or word.text in _ENTERED:
    return g.alt(_TO, build)
  return build(False)


# ---- verbs ---------------------------------------------------------------


def _complex(verb, mood: str, person: str, modal=None):
  """(finite form, what closes a main clause, what closes a final one)."""
  if mood == "pres":
    finite = verb.finite[person]
    return finite, verb.prefix, verb.prefix + finite
  if mood == "modal":
    return _around(modal[person], verb.infinitive)
  if mood == "past":
    auxiliary = german.HABEN if verb.auxiliary == "haben" else german.SEIN
    return _around(auxiliary[person], verb.participle)
  if mood == "inf":
    return "", "", verb.zu
  raise ValueError(f"unknown mood {mood!r}")


def _around(finite: str, closing: str):
  return finite, closing, f"{closing} {finite}"


def _oneself(subject, person: str) -> str:
  """The reflexive pronoun (accusative) that goes with a subject."""
  if subject[0] == "pronoun" and subject[1].nom in ("ich", "wir"):
    return subject[1].acc
  return "sich"


_PRONOUN_FIRST = Choice((0.65, 0.35), (True, False))


def _arrange(g, layout, complex_, subject, oneself, middle, light):
  """Puts a clause in order.

  Args:
    g: a reading of `lattice`.
    layout: "v2" subject first, "inv" verb first (something stands before
      it), "final" verb last, "zu" infinitive clause.
    complex_: what `_complex` gives.
    subject: text, "" in infinitive clauses.
    oneself: reflexive or object pronoun, or "".
    middle: the rest.
    light: whether the subject is a pronoun: then nothing goes before it.
  """
  finite, tail, final = complex_
  if layout == "v2":
    return g.seq(subject, finite, oneself, middle, tail)
  if layout == "zu":
    return g.seq(oneself, middle, final)
  # "sie" in front of a noun would be taken for the subject.
  if oneself and not light and oneself != "sie":
    subject = g.alt(
      _PRONOUN_FIRST,
      lambda first: (
        g.seq(oneself, subject) if first else g.seq(subject, oneself)
      ),
    )
  else:
    subject = g.seq(subject, oneself)
  if layout == "inv":
    return g.seq(finite, subject, middle, tail)
  return g.seq(subject, middle, final)


def _is_definite(tree) -> bool:
  if tree[0] == "np":
    return isinstance(tree[1], Determiner) and tree[1].definite
  return tree[0] in ("name", "named")


def _ordered(g, orders):
  """One of several orders of the same parts: [(weight, parts), ...]."""
  return g.alt(
    Choice(tuple(w for w, _ in orders), tuple(parts for _, parts in orders)),
    lambda parts: g.seq(*parts),
  )


def _middle(g, vp):
  """The middle field without pronouns."""
  _, frame, _, _, adverb, word, first, second, place, time = vp
  when, where = _time(g, time), _place(g, place)
  how = g.alt(adverb.german, _same) if adverb else ""
  if frame == "be":
    _, degree, quality = first
    return g.seq(
      how,
      g.alt(degree.german, _same) if degree else "",
      g.alt(quality.german, lambda form: form[0]),
    )
  if frame == "price":
    return g.seq(how, _price(g, first))
  if first is None:
    return g.seq(when, how, where)
  if frame == "motion":
    return g.seq(when, how, _direction(g, first))
  if frame == "preposition":
    preposition, case, _ = word.extra
    return g.seq(when, how, where, noun_phrase(g, first, case, preposition))
  if frame == "passive":
    agent = noun_phrase(g, first, "dat", "von")
    if where:
      return _ordered(
        g,
        [(0.7, (when, how, where, agent)), (0.3, (when, how, agent, where))],
      )
    return g.seq(when, how, agent)
  case = "dat" if frame in ("dative", "giving") else "acc"
  if first[0] == "pronoun":  # stands in front of all this
    return g.seq(when, how, where)
  what = noun_phrase(g, first, case)
  if second is not None:
    gift = noun_phrase(g, second, "acc")
    if when and _is_definite(first):
      return _ordered(
        g,
        [
          (0.75, (when, how, what, where, gift)),
          (0.25, (what, when, how, where, gift)),
        ],
      )
    return g.seq(when, how, what, where, gift)
  if not _is_definite(first):
    return g.seq(when, how, where, what)
  if when and where:
    return _ordered(
      g,
      [
        (0.6, (when, how, what, where)),
        (0.2, (when, how, where, what)),
        (0.2, (what, when, how, where)),
      ],
    )
  if when:
    return _ordered(g, [(0.75, (when, how, what)), (0.25, (what, when, how))])
  if where:
    return _ordered(g, [(0.7, (how, what, where)), (0.3, (how, where, what))])
  if how:
    return _ordered(g, [(0.8, (how, what)), (0.2, (what, how))])
  return what


_PRICE_AND = Choice((0.7, 0.3), ("Euro und", "Euro"))


def _price(g, tree):
  _, euros, cents = tree
  amount = g.alt(euros.german, _same)
  if cents is None:
    return g.seq(amount, "Euro")
  joined = g.alt(
    _PRICE_AND,
    lambda link: g.seq(
      link, g.alt(cents.german, _same), "Cent" if "und" in link else ""
    ),
  )
  return g.seq(amount, joined)


_WORDEN = Choice((0.75, 0.25), (False, True))
_COST = german.verb("kosten gekostet")


def _verb_phrase(g, vp, layout, subject, person, oneself, light):
  """A clause from its VP node; arguments as in `_arrange`.

  `oneself` is the reflexive pronoun the subject would take; it is used where
  the verb asks for it.
  """
  _, frame, mood, modal, _, word, first, _, _, _ = vp
  if frame == "compare":
    return _comparison(g, vp, layout, subject, person)
  middle = _middle(g, vp)
  if frame == "preposition":
    oneself = oneself if word.extra[2] else ""
  elif first and first[0] == "pronoun":
    oneself = getattr(first[1], "dat" if frame == "dative" else "acc")
  elif frame != "reflexive":
    oneself = ""

  def arrange(complex_):
    return _arrange(g, layout, complex_, subject, oneself, middle, light)

  if frame == "be":
    finite = (german.SEIN if mood == "pres" else german.WAR)[person]
    return arrange((finite, "", finite))
  if frame == "price":
    return arrange(_complex(_COST, mood, person))

  def with_verb(verb):
    if mood == "modal":
      return g.alt(
        modal.german, lambda m: arrange(_complex(verb, mood, person, m))
      )
    if mood == "passive.pres":
      return arrange(_around(german.WERDEN[person], verb.participle))
    if mood == "passive.past":
      return g.alt(
        _WORDEN,
        lambda worden: arrange(
          _around(german.SEIN[person], verb.participle + " worden")
          if worden
          else _around(german.WURDE[person], verb.participle)
        ),
      )
    return arrange(_complex(verb, mood, person))

  return g.alt(word.german, with_verb)


_AS_BEHIND = Choice((0.6, 0.4), (False, True))


def _comparison(g, vp, layout, subject, person):
  """Is older than: verb-final clauses may put "als ..." behind the verb."""
  _, _, mood, _, adverb, _, quality, other, _, _ = vp
  finite = (german.SEIN if mood == "pres" else german.WAR)[person]
  how = g.alt(adverb.german, _same) if adverb else ""
  more = g.alt(quality.german, lambda form: form[2])
  than = g.seq("als", noun_phrase(g, other, "nom"))
  if layout == "v2":
    return g.seq(subject, finite, how, more, than)
  if layout == "inv":
    return g.seq(finite, subject, how, more, than)
  return g.alt(
    _AS_BEHIND,
    lambda behind: (
      g.seq(subject, how, more, finite, than)
      if behind
      else g.seq(subject, how, more, than, finite)
    ),
  )


# ---- sentences -----------------------------------------------------------


_FRONT = Choice((0.84, 0.16), (False, True))


def _clause(g, tree, layout):
  """A clause; in German a main clause may open with its time, too."""
  _, front, subject, person, vp = tree
  time = vp[9]
  if layout == "v2" and front is None and time is not None:
    opened = ("clause", time, subject, person, (*vp[:9], None))
    return g.alt(
      _FRONT,
      lambda fronts: _in_order(g, opened if fronts else tree, layout),
    )
  return _in_order(g, tree, layout)


def _in_order(g, tree, layout):
  _, front, subject, person, vp = tree
  if front is not None:
    layout = "inv"
  clause = _verb_phrase(
    g,
    vp,
    layout,
    noun_phrase(g, subject, "nom"),
    person,
    _oneself(subject, person),
    subject[0] == "pronoun",
  )
  return g.seq(_time(g, front), clause)


def _matrix(g, tree, layout, end=""):
  """Anna says: a main clause whose object is a clause to come."""
  _, subject, person, tense, word = tree
  oneself = _oneself(subject, person) if word.extra == (True,) else ""
  return g.alt(
    word.german,
    lambda verb: _arrange(
      g,
      layout,
      _complex(verb, tense, person),
      noun_phrase(g, subject, "nom"),
      oneself,
      end,
      subject[0] == "pronoun",
    ),
  )


def _subordinate(g, tree):
  _, conjunction, clause = tree
  return g.seq(g.alt(conjunction.german, _same), _clause(g, clause, "final"))


def _reported(g, tree, layout):
  kind, matrix, clause = tree
  return g.seq(
    _matrix(g, matrix, layout),
    ",",
    "dass" if kind == "that" else "ob",
    _clause(g, clause, "final"),
  )


# A bare infinitive with "zu" goes with or without a comma.
_COMMA = Choice((0.7, 0.3), ("", ","))


def _infinitive(g, vp, oneself):
  return _verb_phrase(g, vp, "zu", "", "", oneself, True)


def sentence(g, tree):
  """The German of a tree of S; `lattice.finish` sets capital and commas."""
  kind, *parts = tree
  if kind == "clause":
    return _clause(g, tree, "v2")
  if kind in ("and", "but"):
    left, right = (_clause(g, part, "v2") for part in parts)
    return g.seq(left, "und" if kind == "and" else ", aber", right)
  if kind == "after":
    return g.seq(_clause(g, parts[0], "v2"), ",", _subordinate(g, parts[1]))
  if kind == "before":
    return g.seq(_subordinate(g, parts[0]), ",", _clause(g, parts[1], "inv"))
  if kind in ("that", "whether"):
    return _reported(g, tree, "v2")
  if kind == "try":
    return _attempt(g, *parts)
  if kind == "purpose":
    oneself = _oneself(parts[0][2], parts[0][3])
    return g.seq(
      _clause(g, parts[0], "v2"), ", um", _infinitive(g, parts[1], oneself)
    )
  if kind == "before_and":
    sub, first, second = parts
    return g.seq(
      _subordinate(g, sub),
      ",",
      _clause(g, first, "inv"),
      "und",
      _clause(g, second, "v2"),
    )
  if kind == "and_after":
    first, second, sub = parts
    return g.seq(
      _clause(g, first, "v2"),
      "und",
      _clause(g, second, "v2"),
      ",",
      _subordinate(g, sub),
    )
  if kind == "that_sub":
    return g.seq(_reported(g, parts[0], "v2"), ",", _subordinate(g, parts[1]))
  if kind == "sub_that":
    return g.seq(_subordinate(g, parts[0]), ",", _reported(g, parts[1], "inv"))
  if kind == "that_and":
    matrix, first, second = parts
    return g.seq(
      _matrix(g, matrix, "v2"),
      ", dass",
      _clause(g, first, "final"),
      "und dass",
      _clause(g, second, "final"),
    )
  raise ValueError(f"unknown sentence {kind!r}")


def _attempt(g, matrix, vp):
  oneself = _oneself(matrix[1], matrix[2])
  _, frame, _, _, adverb, _, first, _, place, _ = vp
  more = any(part is not None for part in (adverb, first, place))
  main = _matrix(g, matrix, "v2")
  bare = not more and frame != "reflexive"
  comma = g.alt(_COMMA, _same) if bare else ","
  return g.seq(main, comma, _infinitive(g, vp, oneself))
