"""Times, dates and numbers."""

from speccascade.data.generated import english, german
from speccascade.data.generated.lexicon.words import Word, choice, read_nouns

_MONTHS = """
Januar Februar März April Mai Juni Juli August September Oktober November
Dezember
"""
_WEEKDAYS = "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"
_DAYPARTS = {"morning": "Morgen", "afternoon": "Nachmittag", "evening": "Abend"}
# Saturday has two names in German.
_DAYS = [
  (text, ("Samstag", "Sonnabend") if text == "Saturday" else (name,))
  for text, name in zip(english.WEEKDAYS, _WEEKDAYS.split())
]
_DAYS_IN_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _phrases(pairs) -> list[Word]:
  return [Word(text, choice(values)) for text, values in pairs]


ON_DAY = _phrases(
  [(f"on {text}", [f"am {n}" for n in names]) for text, names in _DAYS]
)
ON_DAYPART = _phrases(
  [
    (f"on {text} {part}", [f"am {n}{p.lower()}" for n in names])
    for text, names in _DAYS
    for part, p in _DAYPARTS.items()
  ]
)
ON_DATE = _phrases(
  [
    (
      f"on the {english.ordinal(day)} of {text}",
      [f"am {german.ordinal(day)}en {month}"],
    )
    for text, month, days in zip(
      english.MONTHS, _MONTHS.split(), _DAYS_IN_MONTH
    )
    for day in range(1, days + 1)
  ]
)
AT_CLOCK = [
  Word(
    "at " + english.clock(hour, minute),
    choice(
      ["um " + text for _, text in german.clock(hour, minute)],
      [weight for weight, _ in german.clock(hour, minute)],
    ),
  )
  for hour in range(1, 13)
  for minute in range(0, 60, 5)
]
IN_MONTH = _phrases(
  [
    (f"in {text}", [f"im {m}"])
    for text, m in zip(english.MONTHS, _MONTHS.split())
  ]
)
IN_YEAR = _phrases(
  [
    (f"in the year {english.year(n)}", [f"im Jahr {german.year(n)}"])
    for n in range(1100, 2000)
  ]
)
WHENEVER = _phrases(
  [
    ("today", ["heute"]),
    ("this morning", ["heute Morgen", "heute früh"]),
    ("this evening", ["heute Abend"]),
    ("in summer", ["im Sommer"]),
    ("in winter", ["im Winter"]),
  ]
)
FUTURE = _phrases(
  [
    ("tomorrow", ["morgen"]),
    ("the day after tomorrow", ["übermorgen"]),
    ("next week", ["nächste Woche", "in der nächsten Woche"]),
    ("tomorrow evening", ["morgen Abend"]),
    ("every day", ["jeden Tag", "täglich"]),
    ("every Monday", ["jeden Montag"]),
  ]
)
PAST = _phrases(
  [
    ("yesterday", ["gestern"]),
    ("the day before yesterday", ["vorgestern"]),
    ("last week", ["letzte Woche", "in der letzten Woche"]),
    ("yesterday evening", ["gestern Abend"]),
    ("last year", ["letztes Jahr", "im letzten Jahr"]),
  ]
)
# unit: gender, accusative and dative forms come from the noun.
UNITS = read_nouns("""
day: Tag m Tage
week: Woche f Wochen
month: Monat m Monate
year: Jahr n Jahre
""")

NUMBER_OF = {
  n: Word(
    english.number(n),
    choice(
      [german.number(n), german.number(n, long=True)]
      if german.number(n) != german.number(n, long=True)
      else [german.number(n)]
    ),
  )
  for n in range(2, 2000)
  # "hundertein Bücher", "hundertundein Buch": disputed, so left out.
  if n % 100 != 1
}
SMALL = [NUMBER_OF[n] for n in range(2, 13)]
TENS = [NUMBER_OF[n] for n in range(13, 100)]
LARGE = [word for n, word in NUMBER_OF.items() if n >= 100]
CENTS = [NUMBER_OF[n] for n in range(5, 100, 5)]
