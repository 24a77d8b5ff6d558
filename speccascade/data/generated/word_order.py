"""Where German puts the verb, its parts, and pronouns."""

from speccascade.data.generated import german
from speccascade.data.generated.lexicon import Choice


def verb_complex(verb, mood: str, person: str, modal=None):
  """(finite form, what closes a main clause, what closes a final one)."""
  if mood == "pres":
    finite = verb.finite[person]
    return finite, verb.prefix, verb.prefix + finite
  if mood == "modal":
    return around(modal[person], verb.infinitive)
  if mood == "past":
    auxiliary = german.HABEN if verb.auxiliary == "haben" else german.SEIN
    return around(auxiliary[person], verb.participle)
  if mood == "inf":
    return "", "", verb.zu
  raise ValueError(f"unknown mood {mood!r}")


def around(finite: str, closing: str):
  """The same three of a finite form and what it stands around."""
  return finite, closing, f"{closing} {finite}"


def oneself_of(subject, person: str) -> str:
  """The reflexive pronoun (accusative) that goes with a subject."""
  if subject[0] == "pronoun" and subject[1].nom in ("ich", "wir"):
    return subject[1].acc
  return "sich"


_PRONOUN_FIRST = Choice((0.65, 0.35), (True, False))


def arrange(g, layout, complex_, subject, oneself, middle, light):
  """Puts a clause in order.

  Args:
    g: a reading of `lattice`.
    layout: "v2" subject first, "inv" verb first (something stands before
      it), "final" verb last, "zu" infinitive clause.
    complex_: what `verb_complex` gives.
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


def ordered(g, orders):
  """One of several orders of the same parts: [(weight, parts), ...]."""
  return g.alt(
    Choice(tuple(w for w, _ in orders), tuple(parts for _, parts in orders)),
    lambda parts: g.seq(*parts),
  )
