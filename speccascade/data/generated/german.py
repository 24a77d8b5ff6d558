"""German word forms: articles, adjective endings, nouns, verbs, numbers.

Genders are "m", "f", "n"; an agreement column is a gender or "p" (plural).
Cases are "nom", "acc", "dat", "gen". Persons of finite verbs are "1s", "3s"
and "p" (first and third person plural, equal in every German verb).
"""

import dataclasses
import functools

CASES = ("nom", "acc", "dat", "gen")

# Endings by case, then by column m, f, n, p.
_DEFINITE = {
  "nom": "der die das die",
  "acc": "den die das die",
  "dat": "dem der dem den",
  "gen": "des der des der",
}
# dieser, jeder, aller: the endings of the definite article.
_DIESER = {
  "nom": "er e es e",
  "acc": "en e es e",
  "dat": "em er em en",
  "gen": "es er es er",
}
# ein, kein, mein: no ending in three places.
_EIN = {
  "nom": "- e - e",
  "acc": "en e - e",
  "dat": "em er em en",
  "gen": "es er es er",
}
_WEAK = {
  "nom": "e e e en",
  "acc": "en e e en",
  "dat": "en en en en",
  "gen": "en en en en",
}
_MIXED = {
  "nom": "er e es en",
  "acc": "en e es en",
  "dat": "en en en en",
  "gen": "en en en en",
}
_STRONG = {
  "nom": "er e es e",
  "acc": "en e es e",
  "dat": "em er em en",
  "gen": "en er en er",
}


def _table(rows: dict[str, str]) -> dict[tuple[str, str], str]:
  return {
    (case, column): "" if form == "-" else form
    for case, line in rows.items()
    for column, form in zip("mfnp", line.split())
  }


DEFINITE = _table(_DEFINITE)
DIESER = _table(_DIESER)
EIN = _table(_EIN)
ADJECTIVE = {
  "weak": _table(_WEAK),
  "mixed": _table(_MIXED),
  "strong": _table(_STRONG),
}
RELATIVE = dict(DEFINITE)
RELATIVE.update(
  {("dat", "p"): "denen", ("gen", "m"): "dessen", ("gen", "n"): "dessen"}
)
RELATIVE.update({("gen", "f"): "deren", ("gen", "p"): "deren"})

CONTRACTIONS = {
  "in dem": "im",
  "an dem": "am",
  "zu dem": "zum",
  "zu der": "zur",
  "von dem": "vom",
  "bei dem": "beim",
  "in das": "ins",
  "an das": "ans",
}


def contract(preposition: str, article: str) -> str:
  """The preposition and the article, as one word where German wants it.

  >>> contract("in", "dem"), contract("in", "der"), contract("zu", "der")
  ('im', 'in der', 'zur')
  """
  both = f"{preposition} {article}"
  return CONTRACTIONS.get(both, both)


def adjective(stem: str, declension: str, case: str, column: str) -> str:
  """An adjective before its noun.

  Args:
    stem: as it stands before an ending ("teur" for "teuer").
    declension: "weak" after der words, "mixed" after ein words, "strong"
      without either.
    case: one of `CASES`.
    column: gender of a singular noun, or "p".

  >>> adjective("alt", "weak", "dat", "m")
  'alten'
  >>> adjective("müde", "mixed", "nom", "n")
  'müdes'
  """
  ending = ADJECTIVE[declension][case, column]
  return stem.removesuffix("e") + ending


def _vowel_groups(word: str) -> int:
  groups, inside = 0, False
  for letter in word.lower():
    vowel = letter in "aeiouyäöü"
    groups += vowel and not inside
    inside = vowel
  return groups


@dataclasses.dataclass(frozen=True, eq=False)
class Noun:
  """A noun with its eight forms.

  Attributes:
    forms: (case, "s" or "p") -> form.
    gender: "m", "f" or "n".
    joins: whether it may be the head of a made-up compound.
  """

  forms: dict[tuple[str, str], str]
  gender: str
  joins: bool = True

  def column(self, number: str) -> str:
    """The agreement column: the gender, or "p"."""
    return "p" if number == "p" else self.gender

  def behind(self, prefix: str) -> "Noun":
    """The compound with `prefix`, its linking letters included."""
    forms = {k: prefix + v[0].lower() + v[1:] for k, v in self.forms.items()}
    return Noun(forms, self.gender, self.joins)


def noun(spec: str) -> Noun:
  """The noun of a line like "Mantel m Mäntel" or "Junge m Jungen w".

  Fields: nominative singular, gender, nominative plural ("-": the same; "0":
  no plural), then options: "w" weak noun (its other cases are the plural
  form), "w=Herrn" weak with its own form, "g=Busses" an irregular genitive,
  "i" a measure that stays the same behind numbers, "x" never the head of a
  made-up compound.
  """
  singular, gender, plural, *options = spec.split()
  plural = singular if plural == "-" else plural
  genitive = oblique = singular
  if gender != "f":
    long_form = singular[-1] in "sßzx" or (
      _vowel_groups(singular) == 1 and singular[-1] not in "aeiouäöü"
    )
    genitive = singular + ("es" if long_form else "s")
  joins, measure = True, False
  for option in options:
    key, _, value = option.partition("=")
    if key == "w":
      oblique = genitive = value or plural
    elif key == "g":
      genitive = value
    elif key == "x":
      joins = False
    elif key == "i":
      measure = True
    else:
      raise ValueError(f"unknown option {option!r} in {spec!r}")
  forms = {
    ("nom", "s"): singular,
    ("acc", "s"): oblique,
    ("dat", "s"): oblique,
    ("gen", "s"): genitive,
  }
  if plural != "0":
    same = measure or plural[-1] in "ns"
    dative = plural if same else plural + "n"
    forms |= {(case, "p"): plural for case in ("nom", "acc", "gen")}
    forms["dat", "p"] = dative
  return Noun(forms, gender, joins)


@dataclasses.dataclass(frozen=True, eq=False)
class Verb:
  """A verb as the clauses need it.

  Attributes:
    infinitive: with a separable prefix joined on.
    finite: person -> present form without the separable prefix.
    prefix: the separable prefix, or "".
    participle: past participle, the prefix joined on.
    auxiliary: "haben" or "sein".
  """

  infinitive: str
  finite: dict[str, str]
  prefix: str
  participle: str
  auxiliary: str

  @functools.cached_property
  def zu(self) -> str:
    """The infinitive with zu, inside a separable verb."""
    if self.prefix:
      return self.prefix + "zu" + self.infinitive[len(self.prefix) :]
    return "zu " + self.infinitive


def third_person(infinitive: str) -> str:
  """The regular third person singular.

  >>> third_person("kaufen"), third_person("warten"), third_person("wandern")
  ('kauft', 'wartet', 'wandert')
  """
  if infinitive.endswith(("ern", "eln")):
    return infinitive[:-1] + "t"
  stem = infinitive.removesuffix("en")
  hard = stem[-1] in "td" or (
    stem[-1] in "nm" and stem[-2] not in "aeiouäöülrnmh"
  )
  return stem + ("et" if hard else "t")


def first_person(infinitive: str) -> str:
  """The first person singular ("erinnere", "klingle", "kaufe")."""
  if infinitive.endswith("eln"):
    return infinitive[:-3] + "le"
  return infinitive.removesuffix("n").removesuffix("e") + "e"


def verb(spec: str) -> Verb:
  """The verb of a line like "an|rufen an|gerufen" or "fahren gefahren s fährt".

  Fields: infinitive (a bar behind a separable prefix), participle, then
  optionally "s" (perfect with sein), the third person where irregular, and
  "1=weiß" an irregular first person.
  """
  infinitive, participle, *options = spec.split()
  auxiliary = "sein" if "s" in options else "haben"
  irregular = [o for o in options if o != "s" and "=" not in o]
  first = [o.removeprefix("1=") for o in options if o.startswith("1=")]
  prefix, _, base = infinitive.rpartition("|")
  finite = {
    "1s": first[0] if first else first_person(base),
    "3s": irregular[0] if irregular else third_person(base),
    "p": base,
  }
  return Verb(
    prefix + base, finite, prefix, participle.replace("|", ""), auxiliary
  )


def _finite(forms: str) -> dict[str, str]:
  return dict(zip(("1s", "3s", "p"), forms.split()))


HABEN = _finite("habe hat haben")
SEIN = _finite("bin ist sind")
WAR = _finite("war war waren")
WERDEN = _finite("werde wird werden")
WURDE = _finite("wurde wurde wurden")
MODALS = {
  "muss": _finite("muss muss müssen"),
  "kann": _finite("kann kann können"),
  "soll": _finite("soll soll sollen"),
  "sollte": _finite("sollte sollte sollten"),
  "will": _finite("will will wollen"),
  "möchte": _finite("möchte möchte möchten"),
  "wird": WERDEN,
  "musste": _finite("musste musste mussten"),
  "wollte": _finite("wollte wollte wollten"),
}

_UNIT_WORDS = """
null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf
dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn
"""
_UNITS = _UNIT_WORDS.split()
_TEN_WORDS = (
  "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
)
_TENS = _TEN_WORDS.split()


def number(value: int, *, long: bool = False) -> str:
  """The cardinal number in one word, 0 to 9,999.

  Args:
    value: the number.
    long: "einhundert", "eintausend" instead of "hundert", "tausend".

  Raises:
    ValueError: outside 0..9,999.

  >>> number(21), number(101), number(1100, long=True)
  ('einundzwanzig', 'hunderteins', 'eintausendeinhundert')
  >>> number(1234)
  'tausendzweihundertvierunddreißig'
  """
  if not 0 <= value <= 9_999:
    raise ValueError(f"number words go from 0 to 9,999, not {value}")
  text = ""
  for size, word in ((1_000, "tausend"), (100, "hundert")):
    count, value = divmod(value, size)
    if count > 1:
      text += _UNITS[count] + word
    elif count:
      # Inside a number the short form would be rare: tausendeinhundert.
      text += ("ein" if long or text else "") + word
  if value >= 20:
    tens, unit = divmod(value, 10)
    head = ("ein" if unit == 1 else _UNITS[unit]) + "und" if unit else ""
    text += head + _TENS[tens]
  elif value or not text:
    text += _UNITS[value]
  return text


def year(value: int) -> str:
  """A year from 1100 to 1999 as it is read.

  >>> year(1985), year(1900)
  ('neunzehnhundertfünfundachtzig', 'neunzehnhundert')
  """
  hundreds, rest = divmod(value, 100)
  return number(hundreds) + "hundert" + (number(rest) if rest else "")


def ordinal(value: int) -> str:
  """The ordinal stem, 1 to 99, which takes adjective endings.

  >>> ordinal(1), ordinal(3), ordinal(7), ordinal(8), ordinal(21)
  ('erst', 'dritt', 'siebt', 'acht', 'einundzwanzigst')
  """
  irregular = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}
  if value in irregular:
    return irregular[value]
  return number(value) + ("t" if value < 20 else "st")


def clock(hour: int, minute: int) -> list[tuple[float, str]]:
  """Right ways to say a time of day on the twelve-hour clock.

  Args:
    hour: 1..12.
    minute: a multiple of 5, below 60.

  Returns:
    (probability, text) of each, the likeliest first.

  >>> clock(6, 30), clock(12, 45)
  ([(1.0, 'halb sieben')], [(1.0, 'Viertel vor eins')])
  """
  following = number(hour % 12 + 1)
  this = number(hour)
  if minute == 0:
    with_hour = ("ein" if hour == 1 else this) + " Uhr"
    return [(0.7, with_hour), (0.3, this)]
  if minute == 30:
    return [(1.0, "halb " + following)]
  names = {5: "fünf", 10: "zehn", 15: "Viertel", 20: "zwanzig"}
  if minute == 25:
    return [(1.0, "fünf vor halb " + following)]
  if minute == 35:
    return [(1.0, "fünf nach halb " + following)]
  if minute < 30:
    return [(1.0, f"{names[minute]} nach {this}")]
  return [(1.0, f"{names[60 - minute]} vor {following}")]
