"""The grammar of the built-in task: draws a sentence, and writes it twice.

If German can render something in several ways, `pick` takes one of them. How
many ways there are does not depend on other choices. A source has one reading:
relative clauses have no adverbials, "it" refers to a thing, and "he" and "she"
refer to a person of that sex.

The order in which uniform numbers are drawn and ways are picked is part of the
task: another order gives other sentences for the same index.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from speccascade.tasks.generated.words import WORDS, Word

# Forms of a noun phrase in German: a gender, or the plural of any gender.
_GENDERS = "mfn"  # the forms 0, 1 and 2
_NEUTER, _PLURAL = 2, 3


def _cases(*forms: str) -> dict[str, list[str]]:
  """Returns endings by case, each a list by form; "_" is not an ending."""
  cases = zip(("nom", "acc", "dat"), forms)
  return {case: row.replace("_", "").split(" ") for case, row in cases}


_THE = _cases("der die das die", "den die das die", "dem der dem den")
_THIS = _cases("er e es e", "en e es e", "em er em en")
_A = _cases("_ e _ e", "en e _ e", "em er em en")
# Endings of adjectives after "der", after "ein", and after a number.
_WEAK = _cases("e e e en", "en e e en", "en en en en")
_MIXED = _cases("er e es en", "en e es en", "en en en en")
_STRONG = _cases("_ _ _ e", "_ _ _ e", "_ _ _ en")


class _Determiner(NamedTuple):
  """A word such as an article, with endings by case and form."""

  singular: str  # in English, before a singular
  plural: str  # in English, before a plural; "#" stands for a number
  stem: str  # in German, without its ending
  endings: dict[str, list[str]]
  adjectives: dict[str, list[str]]  # endings of German adjectives after it


_DETERMINERS = (
  _Determiner("the", "the", "", _THE, _WEAK),
  _Determiner("this", "these", "dies", _THIS, _WEAK),
  _Determiner("a", "#", "ein", _A, _MIXED),
  _Determiner("no", "no", "kein", _A, _MIXED),
  _Determiner("my", "#", "mein", _A, _MIXED),
  _Determiner("our", "our", "unser", _A, _MIXED),
  _Determiner("his", "his", "sein", _A, _MIXED),
  _Determiner("her", "her", "ihr", _A, _MIXED),
)
# English and German pronouns by form.
_PRONOUNS = (("he", "er"), ("she", "sie"), ("it", "es"), ("they", "sie"))
# Finite verbs: (English, German) of the singular, then of the plural.
_AUXILIARIES = {
  "future": (("will", "wird"), ("will", "werden")),
  "can": (("can", "kann"), ("can", "können")),
  "must": (("must", "muss"), ("must", "müssen")),
  "want": (("wants to", "will"), ("want to", "wollen")),
}
_BE = (("is", "ist"), ("are", "sind")), (("was", "war"), ("were", "waren"))
# German auxiliaries of the perfect, by the star of the verb: singular, plural.
_PERFECT = {"": ("hat", "haben"), "*": ("ist", "sind")}
# Tenses and auxiliaries, from which one is drawn: the first two are as likely
# as the four auxiliaries together.
_TENSES = ("past", "present", "past", "present", *_AUXILIARIES)
# The objects that a verb takes, which are sections of words.txt.
_OBJECTS = (
  "acc thing",
  "dat person, acc thing",
  "acc thing",
  "acc person",
  "acc thing",
  "dat person",
  "alone",
)


class _Plan(NamedTuple):
  """How the clauses of a sentence are joined: a template in each language."""

  first: str  # the order of the German words of the first clause; see `_event`
  second: str  # the order of the second clause, "" if there is none
  conjunctions: str  # the section of words that may join the two
  english: str
  german: str


_PLANS = (
  # Three times: half of the sentences have one clause.
  *[_Plan("second", "", "", "{first}", "{first}")] * 3,
  _Plan(
    "second",
    "second",
    "coordinating",
    "{first}, {conjunction} {second}",
    "{first} , {conjunction} {second}",
  ),
  _Plan(
    "second",
    "final",
    "subordinating",
    "{first} {conjunction} {second}",
    "{first} , {conjunction} {second}",
  ),
  _Plan(
    "final",
    "first",
    "subordinating",
    "{conjunction} {first}, {second}",
    "{conjunction} {first} , {second}",
  ),
)


class Phrase(NamedTuple):
  """A noun phrase or a pronoun.

  Attributes:
    english: the English words.
    german: the German words, in the phrase's case.
    form: 0, 1, 2 for masculine, feminine, neuter in German; 3 for a plural.
    person: whether the phrase is about a person.
  """

  english: str
  german: str
  form: int
  person: bool

  @property
  def pronoun(self) -> "Phrase":
    """The pronoun that stands for the phrase, in the nominative."""
    # English has "it" for a thing, whatever its gender in German is.
    is_thing = not self.person and self.form != _PLURAL
    english, _ = _PRONOUNS[_NEUTER if is_thing else self.form]
    _, german = _PRONOUNS[self.form]
    return self._replace(english=english, german=german)


class _Verb(NamedTuple):
  """A verb with its auxiliary."""

  english: list[str]
  finite: str  # the German finite verb
  rest: str  # what ends a German main clause; in "|" if it is a verb's prefix


class _Clause(NamedTuple):
  """A clause in both languages."""

  english: str
  german: str
  last: Phrase  # the last object, or else the subject: a pronoun may follow


class Sentence:
  """Draws a sentence; `write` returns it in both languages.

  Args:
    uniform: returns the next uniform number in [0, 1).
    pick: takes one of several German options; the usual option is the first.
  """

  def __init__(self, uniform: Callable[[], float], pick: Callable):
    self._uniform = uniform
    self._pick = pick

  def _chance(self, probability: float) -> bool:
    """Draws True with a probability."""
    return self._uniform() < probability

  def _choose(self, options: Sequence):
    """Draws one of several options, all with the same probability."""
    return options[int(self._uniform() * len(options))]

  def _word(self, section: str) -> Word:
    """Draws a word of a section; words at its beginning are more probable."""
    # Squares are the same on every machine; other powers need not be.
    table = WORDS[section]
    return table[int(self._uniform() ** 2 * len(table))]

  def _adjective(self, person: bool) -> tuple[str, str]:
    """Draws an adjective, and returns it in English and German."""
    word = self._word("of person" if person else "of thing")
    return word.english, self._pick(word.german)

  def _phrase(self, kind: str, case: str, relative: bool = False) -> Phrase:
    """Draws a name, or a noun phrase, which may get a relative clause."""
    person = kind == "person"
    if kind != "thing" and self._chance(0.2):
      gender, name = self._choose(WORDS[f"name of {kind}"]).german[0].split()
      return Phrase(name, name, _GENDERS.index(gender), person)
    # The noun, with its number.
    word = self._word(kind)
    is_plural = kind != "place" and self._chance(0.3)
    gender, singular, plural = self._pick(word.german).split()
    if is_plural:
      form, noun, german = _PLURAL, word.inflect("plural"), plural
      if case == "dat" and german[-1] not in "ns":
        german += "n"
    else:
      form, noun, german = _GENDERS.index(gender), word.inflect(""), singular
    # The determiner, or a number in its place.
    determiner = self._choose(_DETERMINERS)
    left = determiner.plural if is_plural else determiner.singular
    right = determiner.stem + determiner.endings[case][form]
    adjectives = determiner.adjectives
    if left == "#":
      left = right = str(2 + int(self._uniform() * 998))
      adjectives = _STRONG
    if self._chance(0.45):
      adjective, german_adjective = self._adjective(person)
      noun = f"{adjective} {noun}"
      german = f"{german_adjective}{adjectives[case][form]} {german}"
    if left == "a" and noun[0] in "aeiou":
      left = "an"
    phrase = Phrase(f"{left} {noun}", f"{right} {german}", form, person)
    return self._with_clause(phrase) if relative else phrase

  def _with_clause(self, head: Phrase) -> Phrase:
    """Returns a phrase followed by a relative clause, which is drawn."""
    that = "who" if head.person else "that"
    subject = head._replace(english=that, german=_THE["nom"][head.form])
    if head.person:
      clause = self._event(subject, "final")
    elif self._chance(0.3):
      clause = self._quality(subject, "final")
    else:
      # "the car that Otto must buy": the head is the object of the clause.
      clause = self._event(self._phrase("person", "nom"), "final", gap=True)
      clause = clause._replace(
        english=f"{that} {clause.english}",
        german=f"{_THE['acc'][head.form]} {clause.german}",
      )
    # ";" stands for the closing comma. `write` makes it a comma, or nothing
    # before another comma and at the end of the sentence.
    return head._replace(
      english=f"{head.english} {clause.english}",
      german=f"{head.german} , {clause.german} ;",
    )

  def _verb(self, word: Word, tense: str, is_plural: bool) -> _Verb:
    """Returns a verb in a tense."""
    forms, star, _ = self._pick(word.german).partition("*")
    infinitive, third_person, participle = forms.split()
    prefix, _, stem = infinitive.rpartition("|")
    if tense == "present":
      # "schaut ... zu": the prefix of a separable verb ends the clause.
      english = word.inflect("" if is_plural else "third")
      return _Verb([english], stem if is_plural else third_person, f"{prefix}|")
    if tense == "past":
      # German has the perfect: "hat ... zugeschaut".
      singular, plural = _PERFECT[star]
      finite = plural if is_plural else singular
      return _Verb([word.inflect("past")], finite, participle)
    singular, plural = _AUXILIARIES[tense]
    english, finite = plural if is_plural else singular
    return _Verb([english, word.inflect("")], finite, prefix + stem)

  def _quality(self, subject: Phrase, order: str) -> _Clause:
    """Draws a clause that says what a person or thing is like."""
    singular, plural = self._choose(_BE)
    english, finite = plural if subject.form == _PLURAL else singular
    adjective, rest = self._adjective(subject.person)
    english = f"{subject.english} {english} {adjective}"
    german = _order_german(order, [subject.german], finite, rest)
    return _Clause(english, german, subject)

  def _event(
    self,
    subject: Phrase,
    order: str,
    *,
    gap: bool = False,
    relative: bool = False,
    adverbials: bool = False,
  ) -> _Clause:
    """Draws a clause that says what a person does."""
    # `order` is the place of the German finite verb: "first" after a clause
    # that takes the first place, "second" or "final". With a `gap` the object
    # is left out, for a relative clause about it.
    takes = _OBJECTS[0] if gap else self._choose(_OBJECTS)
    verb_word, tense = self._word(takes), self._choose(_TENSES)
    verb = self._verb(verb_word, tense, subject.form == _PLURAL)
    english = verb.english
    # The objects.
    wanted = [] if gap or takes == "alone" else takes.split(", ")
    objects = []
    for number, entry in enumerate(wanted, 1):
      case, kind = entry.split()
      is_last = number == len(wanted)
      objects.append(self._phrase(kind, case, relative=relative and is_last))
    parts = [phrase.german for phrase in objects]
    # An adverb: after an auxiliary, before any other verb.
    if adverbials and self._chance(0.3):
      adverb = self._word("adverb")
      position = 1 if tense in ("future", "can", "must") else 0
      english.insert(position, adverb.english)
      parts.insert(0, self._pick(adverb.german))
    english = [subject.english, *english, *(x.english for x in objects)]
    # A place, before the last object or after it in German. After a relative
    # clause, a place or time could be a part of that clause.
    if adverbials and not relative and self._chance(0.35):
      preposition = self._choose(WORDS["preposition"])
      place = self._phrase("place", "dat")
      english += [preposition.english, place.english]
      german = f"{preposition.german[0]} {place.german}"
      position = len(parts)
      if objects:
        position = self._pick((-1, len(parts)))
      parts.insert(position, german.replace("in dem ", "im "))
    parts.insert(0, subject.german)
    # A time: at the beginning or the end in English. In a German main clause
    # it may begin too, or follow the subject.
    if adverbials and self._chance(0.45):
      time, german = self._time(tense)
      is_main = order == "second"
      begins = is_main and (relative or self._chance(0.4))
      english.insert(0 if begins else len(english), time)
      position = 0 if begins else 1
      if is_main and not begins:
        position = self._pick((1, 0))
      parts.insert(position, german)
    german = _order_german(order, parts, verb.finite, verb.rest)
    return _Clause(" ".join(english), german, [subject, *objects][-1])

  def _time(self, tense: str) -> tuple[str, str]:
    """Draws a time that fits a tense, and returns it in English and German."""
    time = self._word("future" if tense in _AUXILIARIES else tense)
    # "#" stands for a year from 1700 to 2029, or a small number from 2 to 12.
    low, count = (1700, 330) if time.english == "in #" else (2, 11)
    number = str(low + int(self._uniform() * count))
    german = self._pick(time.german).replace("#", number)
    return time.english.replace("#", number), german

  def write(self) -> tuple[str, str]:
    """Returns the sentence in English and German; half have two clauses."""
    plan = self._choose(_PLANS)
    relative = "" if plan.second else self._choose(("subject", "object"))
    subject = self._phrase("person", "nom", relative == "subject")
    first = self._event(
      subject, plan.first, relative=relative == "object", adverbials=True
    )
    parts = {"first": (first.english, first.german)}
    if plan.second:
      word = self._word(plan.conjunctions)
      parts["conjunction"] = word.english, self._pick(word.german)
      second = self._second_clause(plan.second, subject, first.last)
      parts["second"] = second.english, second.german
    english, german = (
      template.format(**{name: texts[place] for name, texts in parts.items()})
      for place, template in enumerate((plan.english, plan.german))
    )
    german = _punctuate(f"{german} .")
    return english[0].upper() + english[1:] + ".", german[0].upper() + german[
      1:
    ]

  def _second_clause(
    self, order: str, subject: Phrase, last: Phrase
  ) -> _Clause:
    """Draws a clause that may take up what the first one is about."""
    if self._chance(0.4):
      # "he" would have two readings if subject and object are persons.
      topic = subject if last.person else last
      return self._quality(topic.pronoun, order)
    is_same = self._chance(0.4)
    actor = subject.pronoun if is_same else self._phrase("person", "nom")
    return self._event(actor, order, adverbials=True)


def _punctuate(text: str) -> str:
  """Returns a German text with the commas that its relative clauses need."""
  text = text.replace("; ,", ",").replace("; .", ".")
  return text.replace(";", ",").replace(" ,", ",").replace(" .", ".")


def _order_german(order: str, parts: list[str], finite: str, rest: str) -> str:
  """Returns a German clause: subject, objects and adverbials, and the verb."""
  if order == "final":
    # "zu| schaut" is "zuschaut": a prefix is joined to its verb.
    return " ".join([*parts, rest, finite]).replace("| ", "")
  num_before = 1 if order == "second" else 0
  words = [*parts[:num_before], finite, *parts[num_before:], rest]
  return " ".join(words).rstrip("| ")
