"""The grammar of the built-in task: a sentence, drawn and written twice.

Where German can render something in several ways, `pick` takes one; how many
there are does not depend on other choices. A source has one reading: relative
clauses hold no adverbials, "it" refers to a thing, "he" and "she" to somebody
of that sex.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from speccascade.data.generated.words import WORDS, Word


def _cases(*forms: str) -> dict[str, list[str]]:
  """Forms by case: masculine, feminine, neuter, plural; "_" is none."""
  cases = zip(("nom", "acc", "dat"), forms)
  return {case: row.replace("_", "").split(" ") for case, row in cases}


_THE = _cases("der die das die", "den die das die", "dem der dem den")
_THIS = _cases("er e es e", "en e es e", "em er em en")
_A = _cases("_ e _ e", "en e _ e", "em er em en")
# Adjectives after "der", after "ein" and after a number.
_WEAK = _cases("e e e en", "en e e en", "en en en en")
_MIXED = _cases("er e es en", "en e es en", "en en en en")
_STRONG = _cases("_ _ _ e", "_ _ _ e", "_ _ _ en")
# English singular and plural; German stem, its endings, those of adjectives.
_DETERMINERS = (
  *(("the", "the", "", _THE, _WEAK), ("this", "these", "dies", _THIS, _WEAK)),
  *(("a", "#", "ein", _A, _MIXED), ("no", "no", "kein", _A, _MIXED)),
  *(("my", "#", "mein", _A, _MIXED), ("our", "our", "unser", _A, _MIXED)),
  *(("his", "his", "sein", _A, _MIXED), ("her", "her", "ihr", _A, _MIXED)),
)
_PRONOUNS = (("he", "er"), ("she", "sie"), ("it", "es"), ("they", "sie"))
# Finite verbs: English and German of the singular, then of the plural.
_AUXILIARIES = {
  "future": (("will", "wird"), ("will", "werden")),
  "can": (("can", "kann"), ("can", "können")),
  "must": (("must", "muss"), ("must", "müssen")),
  "want": (("wants to", "will"), ("want to", "wollen")),
}
_IS = (("is", "ist"), ("are", "sind")), (("was", "war"), ("were", "waren"))
_PERFECT = {"": ("hat", "haben"), "*": ("ist", "sind")}
_TENSES = ("past", "present", "past", "present", *_AUXILIARIES)
# What verbs take: sections of words.
_TAKES = (
  *("acc thing", "dat person, acc thing", "acc thing", "acc person"),
  *("acc thing", "dat person", "alone"),
)
# German order of a first and a second clause (see `Sentence._event`), what
# joins them, and how, in English and German.
_PLANS = (
  *(("second", "", "", "{1}", "{1}"),) * 3,
  ("second", "second", "coordinating", "{1}, {0} {2}", "{1} , {0} {2}"),
  ("second", "final", "subordinating", "{1} {0} {2}", "{1} , {0} {2}"),
  ("final", "first", "subordinating", "{0} {1}, {2}", "{0} {1} , {2}"),
)


class Phrase(NamedTuple):
  """A noun phrase or a pronoun.

  Attributes:
    english: as written.
    german: likewise, in its case.
    form: 0, 1, 2 for masculine, feminine, neuter in German; 3 for plural.
    person: whether it is one.
  """

  english: str
  german: str
  form: int
  person: bool

  @property
  def pronoun(self) -> "Phrase":
    is_thing = not self.person and self.form < 3
    english = _PRONOUNS[2 if is_thing else self.form][0]
    return self._replace(english=english, german=_PRONOUNS[self.form][1])


class Sentence:
  """A sentence in the making; `write` draws it.

  Args:
    uniform: gives the next uniform number in [0, 1).
    pick: takes one of several German options, the usual one first.
  """

  def __init__(self, uniform: Callable[[], float], pick: Callable):
    self._uniform = uniform
    self._pick = pick

  def _chance(self, probability: float) -> bool:
    return self._uniform() < probability

  def _one(self, options: Sequence):
    return options[int(self._uniform() * len(options))]

  def _word(self, section: str) -> Word:
    # Squares are the same on every machine; other powers need not be.
    table = WORDS[section]
    return table[int(self._uniform() ** 2 * len(table))]

  def _adjective(self, person: bool) -> tuple[str, str]:
    word = self._word("of person" if person else "of thing")
    return word.english, self._pick(word.german)

  def _phrase(self, kind: str, case: str, relative: bool = False) -> Phrase:
    """A noun phrase.

    Args:
      kind: "person", "thing" or "place".
      case: "nom", "acc" or "dat".
      relative: give it a relative clause, unless it is a name.
    """
    person = kind == "person"
    if kind != "thing" and self._chance(0.2):
      gender, name = self._one(WORDS[f"name of {kind}"]).german[0].split()
      return Phrase(name, name, "mfn".index(gender), person)
    noun = self._word(kind)
    plural = kind != "place" and self._chance(0.3)
    gender, *german = self._pick(noun.german).split()
    form = 3 if plural else "mfn".index(gender)
    noun, german = noun.inflect("plural" * plural), german[plural]
    if plural and case == "dat" and german[-1] not in "ns":
      german += "n"
    *determiner, stem, endings, adjectives = self._one(_DETERMINERS)
    left, right = determiner[plural], stem + endings[case][form]
    if left == "#":
      left = right = str(2 + int(self._uniform() * 998))
      adjectives = _STRONG
    if self._chance(0.45):
      adjective, rendering = self._adjective(person)
      noun = f"{adjective} {noun}"
      german = f"{rendering}{adjectives[case][form]} {german}"
    if left == "a" and noun[0] in "aeiou":
      left = "an"
    phrase = Phrase(f"{left} {noun}", f"{right} {german}", form, person)
    return self._with_clause(phrase) if relative else phrase

  def _with_clause(self, head: Phrase) -> Phrase:
    """The phrase followed by a relative clause."""
    that = "who" if head.person else "that"
    subject = head._replace(english=that, german=_THE["nom"][head.form])
    if head.person:
      english, german, _ = self._event(subject, "final")
    elif self._chance(0.3):
      english, german, _ = self._quality(subject, "final")
    else:
      subject = self._phrase("person", "nom")
      english, german, _ = self._event(subject, "final", gap=True)
      english = f"{that} {english}"
      german = f"{_THE['acc'][head.form]} {german}"
    # The closing comma is silent before another and at the end.
    english, german = f"{head.english} {english}", f"{head.german} , {german} ;"
    return head._replace(english=english, german=german)

  def _verb(self, verb: Word, tense: str, plural: bool):
    """English words, German finite verb, and what ends a German main clause.

    The latter ends in "|" where it is a prefix of the finite verb.
    """
    forms, star, _ = self._pick(verb.german).partition("*")
    infinitive, third, participle = forms.split()
    prefix, _, stem = infinitive.rpartition("|")
    if tense == "present":
      english = verb.inflect("" if plural else "third")
      return [english], stem if plural else third, f"{prefix}|"
    if tense == "past":
      return [verb.inflect("past")], _PERFECT[star][plural], participle
    english, finite = _AUXILIARIES[tense][plural]
    return [english, verb.inflect("")], finite, prefix + stem

  def _quality(self, subject: Phrase, order: str) -> tuple[str, str, Phrase]:
    """A clause that says what somebody or something is like; as `_event`."""
    english, finite = self._one(_IS)[subject.form == 3]
    adjective, rest = self._adjective(subject.person)
    english = f"{subject.english} {english} {adjective}"
    return english, _ordered(order, [subject.german], finite, rest), subject

  def _event(
    self,
    subject: Phrase,
    order: str,
    *,
    gap: bool = False,
    relative: bool = False,
    adverbials: bool = False,
  ) -> tuple[str, str, Phrase]:
    """A clause that says what somebody does.

    Args:
      subject: who, in the nominative.
      order: of the German finite verb: "first" after a clause that takes the
        first place, "second" or "final".
      gap: leave the object out, for a relative clause about it.
      relative: give the last object a relative clause.
      adverbials: draw some.

    Returns:
      English, German, and the last object, or the subject where there is none.
    """
    takes = _TAKES[0] if gap else self._one(_TAKES)
    verb, tense = self._word(takes), self._one(_TENSES)
    english, finite, rest = self._verb(verb, tense, subject.form == 3)
    wanted = [] if gap or takes == "alone" else takes.split(", ")
    objects = []
    for case, kind in map(str.split, wanted):
      last = len(objects) == len(wanted) - 1
      objects.append(self._phrase(kind, case, relative=relative and last))
    parts = [phrase.german for phrase in objects]
    if adverbials and self._chance(0.3):
      adverb = self._word("adverb")
      english.insert(tense in ("future", "can", "must"), adverb.english)
      parts.insert(0, self._pick(adverb.german))
    english = [subject.english, *english, *(each.english for each in objects)]
    # After a relative clause a place or time could be a part of it.
    if adverbials and not relative and self._chance(0.35):
      preposition = self._one(WORDS["preposition"])
      place = self._phrase("place", "dat")
      english += [preposition.english, place.english]
      german = f"{preposition.german[0]} {place.german}"
      # Before the last object or after it.
      at = self._pick((-1, len(parts))) if objects else len(parts)
      parts.insert(at, german.replace("in dem ", "im "))
    parts.insert(0, subject.german)
    if adverbials and self._chance(0.45):
      time, german = self._time(tense)
      main = order == "second"
      begins = main and (relative or self._chance(0.4))
      english.insert(0 if begins else len(english), time)
      parts.insert(0 if begins or (main and self._pick((0, 1))) else 1, german)
    german = _ordered(order, parts, finite, rest)
    return " ".join(english), german, [subject, *objects][-1]

  def _time(self, tense: str) -> tuple[str, str]:
    """A time, English and German."""
    time = self._word("future" if tense in _AUXILIARIES else tense)
    low = 1700 if time.english == "in #" else 2
    number = str(low + int(self._uniform() * (330 if low > 2 else 11)))
    german = self._pick(time.german).replace("#", number)
    return time.english.replace("#", number), german

  def write(self) -> tuple[str, str]:
    """The sentence, English and German; half of them have two clauses."""
    order, follows, conjunctions, *joined = self._one(_PLANS)
    relative = "" if follows else self._one(("subject", "object"))
    subject = self._phrase("person", "nom", relative == "subject")
    *first, last = self._event(
      subject, order, relative=relative == "object", adverbials=True
    )
    conjunction = second = ("", "")
    if follows:
      word = self._word(conjunctions)
      conjunction = word.english, self._pick(word.german)
      # The second clause may take up the first one's object or subject.
      if self._chance(0.4):
        about = subject if last.person else last
        second = self._quality(about.pronoun, follows)
      else:
        same = self._chance(0.4)
        who = subject.pronoun if same else self._phrase("person", "nom")
        second = self._event(who, follows, adverbials=True)
    english, german = (
      form.format(*parts)
      for form, *parts in zip(joined, conjunction, first, second)
    )
    german = f"{german} .".replace("; ,", ",").replace("; .", ".")
    german = german.replace(";", ",").replace(" ,", ",").replace(" .", ".")
    english, german = (text[0].upper() + text[1:] for text in (english, german))
    return f"{english}.", german


def _ordered(order: str, parts: list[str], finite: str, rest: str) -> str:
  """A German clause; the rest of its verb is as `Sentence._verb` gives it."""
  if order == "final":
    return " ".join([*parts, rest, finite]).replace("| ", "")
  before = int(order == "second")
  parts = [*parts[:before], finite, *parts[before:], rest]
  return " ".join(parts).rstrip("| ")
