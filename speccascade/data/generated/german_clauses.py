"""German noun phrases with all they hold, and clauses.

Every function takes `g`, one of the two readings of `lattice`.
"""

from speccascade.data.generated import german, german_phrases, word_order
from speccascade.data.generated.determiners import THE, Determiner
from speccascade.data.generated.german_phrases import same
from speccascade.data.generated.lexicon import Choice

# Genitive attribute, or "von" behind the noun.
_APART = Choice((0.75, 0.25), (False, True))


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
      base = german_phrases.determined(
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
  return german_phrases.quantity(g, tree, case)


def _named(g, tree, case, preposition, contracts):
  """Anna's hat: "Annas Hut" or "der Hut von Anna"."""
  _, name, phrase, prefix, word, number = tree

  def build(noun):
    if prefix is not None:
      noun = noun.behind(prefix.german.values[0])

    def possessed(apart):
      if apart:
        owned = german_phrases.determined(
          g, THE, phrase, noun, number, case, preposition, contracts
        )
        return g.seq(owned, "von", name.text)
      column = noun.column(number)
      return g.seq(
        preposition,
        name.text + "s",
        german_phrases.adjectives(g, phrase, "strong", case, column),
        noun.forms[case, number],
      )

    return g.alt(_APART, possessed)

  return g.alt(_nouns(prefix, word), build)


_OBJECT_CASES = {"thing": "acc", "living": "acc", "any": "acc", "dative": "dat"}


def _relative(g, tree, column: str):
  """A relative clause between its commas."""
  if tree[0] == "rel_subject":
    pronoun = german.RELATIVE["nom", column]
    person = "p" if column == "p" else "3s"
    body = verb_phrase(g, tree[1], "final", pronoun, person, "sich", True)
    return g.seq(",", body, ";")
  _, subject, agreement, frame, mood, word = tree
  person = "p" if agreement == "pl" else "3s"
  if frame == "preposition":
    preposition, case, reflexive = word.extra
    head = f"{preposition} {german.RELATIVE[case, column]}"
  else:
    head = german.RELATIVE[_OBJECT_CASES[frame], column]
    reflexive = False
  oneself = word_order.oneself_of(subject, person) if reflexive else ""
  body = g.alt(
    word.german,
    lambda verb: word_order.arrange(
      g,
      "final",
      word_order.verb_complex(verb, mood, person),
      noun_phrase(g, subject, "nom"),
      oneself,
      "",
      subject[0] == "pronoun",
    ),
  )
  return g.seq(",", head, body, ";")


def _is_definite(tree) -> bool:
  if tree[0] == "np":
    return isinstance(tree[1], Determiner) and tree[1].definite
  return tree[0] in ("name", "named")


def _middle(g, vp):
  """The middle field without pronouns."""
  _, frame, _, _, adverb, word, first, second, place, time = vp
  when, where = german_phrases.time(g, time), german_phrases.place(g, place)
  how = g.alt(adverb.german, same) if adverb else ""
  if frame == "be":
    _, degree, quality = first
    return g.seq(
      how,
      g.alt(degree.german, same) if degree else "",
      g.alt(quality.german, lambda form: form[0]),
    )
  if frame == "price":
    return g.seq(how, german_phrases.price(g, first))
  if first is None:
    return g.seq(when, how, where)
  if frame == "motion":
    return g.seq(when, how, german_phrases.direction(g, first))
  if frame == "preposition":
    preposition, case, _ = word.extra
    return g.seq(when, how, where, noun_phrase(g, first, case, preposition))
  if frame == "passive":
    agent = noun_phrase(g, first, "dat", "von")
    if where:
      return word_order.ordered(
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
      return word_order.ordered(
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
    return word_order.ordered(
      g,
      [
        (0.6, (when, how, what, where)),
        (0.2, (when, how, where, what)),
        (0.2, (what, when, how, where)),
      ],
    )
  if when:
    return word_order.ordered(
      g, [(0.75, (when, how, what)), (0.25, (what, when, how))]
    )
  if where:
    return word_order.ordered(
      g, [(0.7, (how, what, where)), (0.3, (how, where, what))]
    )
  if how:
    return word_order.ordered(g, [(0.8, (how, what)), (0.2, (what, how))])
  return what


_WORDEN = Choice((0.75, 0.25), (False, True))
_COST = german.verb("kosten gekostet")


def verb_phrase(g, vp, layout, subject, person, oneself, light):
  """A clause from its VP node; arguments as in `word_order.arrange`.

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
    return word_order.arrange(
      g, layout, complex_, subject, oneself, middle, light
    )

  if frame == "be":
    finite = (german.SEIN if mood == "pres" else german.WAR)[person]
    return arrange((finite, "", finite))
  if frame == "price":
    return arrange(word_order.verb_complex(_COST, mood, person))

  def with_verb(verb):
    if mood == "modal":
      return g.alt(
        modal.german,
        lambda m: arrange(word_order.verb_complex(verb, mood, person, m)),
      )
    if mood == "passive.pres":
      return arrange(word_order.around(german.WERDEN[person], verb.participle))
    if mood == "passive.past":
      return g.alt(
        _WORDEN,
        lambda worden: arrange(
          word_order.around(german.SEIN[person], verb.participle + " worden")
          if worden
          else word_order.around(german.WURDE[person], verb.participle)
        ),
      )
    return arrange(word_order.verb_complex(verb, mood, person))

  return g.alt(word.german, with_verb)


_AS_BEHIND = Choice((0.6, 0.4), (False, True))


def _comparison(g, vp, layout, subject, person):
  """Is older than: verb-final clauses may put "als ..." behind the verb."""
  _, _, mood, _, adverb, _, quality, other, _, _ = vp
  finite = (german.SEIN if mood == "pres" else german.WAR)[person]
  how = g.alt(adverb.german, same) if adverb else ""
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
