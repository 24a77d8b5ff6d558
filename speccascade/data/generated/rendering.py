"""German for the trees of `english_grammar`.

Every function takes `g`, one of the two readings of `lattice`: the same code
draws a rendering and lists them all.

Style: the past is the perfect (of "be" and the modals the preterite),
relative clauses stay beside their noun, adverbials go time, manner, place.
"""

from speccascade.data.generated import german_phrases, word_order
from speccascade.data.generated.german_clauses import noun_phrase, verb_phrase
from speccascade.data.generated.german_phrases import same
from speccascade.data.generated.lexicon import Choice

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
  clause = verb_phrase(
    g,
    vp,
    layout,
    noun_phrase(g, subject, "nom"),
    person,
    word_order.oneself_of(subject, person),
    subject[0] == "pronoun",
  )
  return g.seq(german_phrases.time(g, front), clause)


def _matrix(g, tree, layout, end=""):
  """Anna says: a main clause whose object is a clause to come."""
  _, subject, person, tense, word = tree
  oneself = (
    word_order.oneself_of(subject, person) if word.extra == (True,) else ""
  )
  return g.alt(
    word.german,
    lambda verb: word_order.arrange(
      g,
      layout,
      word_order.verb_complex(verb, tense, person),
      noun_phrase(g, subject, "nom"),
      oneself,
      end,
      subject[0] == "pronoun",
    ),
  )


def _subordinate(g, tree):
  _, conjunction, clause = tree
  return g.seq(g.alt(conjunction.german, same), _clause(g, clause, "final"))


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
  return verb_phrase(g, vp, "zu", "", "", oneself, True)


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
    oneself = word_order.oneself_of(parts[0][2], parts[0][3])
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
  oneself = word_order.oneself_of(matrix[1], matrix[2])
  _, frame, _, _, adverb, _, first, _, place, _ = vp
  more = any(part is not None for part in (adverb, first, place))
  main = _matrix(g, matrix, "v2")
  bare = not more and frame != "reflexive"
  comma = g.alt(_COMMA, same) if bare else ","
  return g.seq(main, comma, _infinitive(g, vp, oneself))
