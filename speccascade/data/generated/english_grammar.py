"""The English side of the generated task as a grammar; see `cfg`.

Sentences are often silly ("A friendly elephant complains about the summer
door."): words are drawn nearly independently, grammar is what is learned.

Symbols carry their features in the name: NP.thing.s.rich is a singular noun
phrase about a thing that may hold a relative clause.
"""

import dataclasses

from speccascade.data.generated import lexicon as lex
from speccascade.data.generated.cfg import Const, Grammar

NONE = Const(None)
AGREEMENTS = {"s3": "3s", "i": "1s", "pl": "p"}


@dataclasses.dataclass(frozen=True, eq=False)
class Determiner:
  """A determiner: its German stem, how it and adjectives inflect.

  Attributes:
    stem: "d" (der), "" (none), or what takes the endings ("mein", "dies").
    endings: "der", "dieser", "ein" or "" (none).
    declension: of the adjectives behind it.
    definite: whether an object with it may move in front of adverbials.
  """

  stem: str
  endings: str
  declension: str
  definite: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Pronoun:
  """A personal pronoun: its German cases and the verb's person."""

  nom: str
  acc: str
  dat: str
  person: str


THE = Determiner("d", "der", "weak", True)
BARE = Determiner("", "", "strong")
POSSESSIVES = {
  "my": "mein",
  "his": "sein",
  "her": "ihr",
  "our": "unser",
  "their": "ihr",
}
_OWNED = [
  (t, Determiner(g, "ein", "mixed", True)) for t, g in POSSESSIVES.items()
]
_EIN = Determiner("ein", "ein", "mixed")
_KEIN = Determiner("kein", "ein", "mixed")
_THIS = Determiner("dies", "dieser", "weak", True)
_EVERY = Determiner("jed", "dieser", "weak")
_PLURALS = [
  ("", BARE, 22),
  ("these", _THIS, 5),
  ("all", Determiner("all", "dieser", "weak"), 3),
  ("both", Determiner("beid", "dieser", "weak"), 2),
  ("many", Determiner("viel", "dieser", "strong"), 4),
  ("some", Determiner("einig", "dieser", "strong"), 4),
  ("several", Determiner("mehrer", "dieser", "strong"), 2),
  ("no", _KEIN, 2),
]
PRONOUNS = {
  "he": Pronoun("er", "ihn", "ihm", "3s"),
  "she": Pronoun("sie", "sie", "ihr", "3s"),
  "they": Pronoun("sie", "sie", "ihnen", "p"),
  "we": Pronoun("wir", "uns", "uns", "p"),
  "I": Pronoun("ich", "mich", "mir", "1s"),
}
OBJECT_PRONOUNS = {"him": "he", "her": "she", "them": "they"}

# No comparative where the quality has no degrees.
_ABSOLUTE = {"broken", "empty", "round", "wonderful", "terrible", "huge"}


def _determiners(g: Grammar) -> None:
  owned = len(_OWNED)
  g.words(
    "DET.s",
    [("the", THE), ("a", _EIN), ("this", _THIS), ("every", _EVERY)]
    + [("no", _KEIN), *_OWNED],
    [45, 30, 5, 3, 3] + [14 / owned] * owned,
  )
  g.words(
    "DET.p",
    [("the", THE), *[(t, d) for t, d, _ in _PLURALS], *_OWNED],
    [38, *[w for _, _, w in _PLURALS], *[13 / owned] * owned],
  )
  g.words(
    "DET.mass",
    [("", BARE), ("the", THE), ("this", _THIS), ("no", _KEIN), *_OWNED],
    [60, 22, 3, 5] + [10 / owned] * owned,
  )
  g.words(
    "DET.owner",
    [("the", THE), ("this", _THIS), *_OWNED],
    [70, 5] + [25 / owned] * owned,
  )
  g.words(
    "DET.place",
    [("the", THE), ("a", _EIN), ("this", _THIS), *_OWNED],
    [72, 12, 4] + [12 / owned] * owned,
  )
  for name, words in [
    ("NUM.small", lex.SMALL),
    ("NUM.tens", lex.TENS),
    ("NUM.large", lex.LARGE),
    ("NUM.cents", lex.CENTS),
  ]:
    g.words(name, [(w.text, w) for w in words])
  for weight, size in [(0.45, "small"), (0.35, "tens"), (0.2, "large")]:
    g.rule("NUM", weight, "", f"#NUM.{size}")
  g.rule("NUM.time", 0.6, "", "#NUM.small")
  g.rule("NUM.time", 0.4, "", "#NUM.tens")
  g.rule("NUM.price", 0.4, "", "#NUM.tens")
  g.rule("NUM.price", 0.5, "", "#NUM.large")
  g.rule("NUM.price", 0.1, "", "#NUM.small")


_KINDS = {
  "anim": lex.PERSONS + lex.ANIMALS,
  "thing": lex.THINGS,
  "veh": lex.VEHICLES,
  "event": lex.EVENTS,
}
_QUALITIES = {
  "anim": lex.ADJECTIVES + lex.LIVELY,
  "thing": lex.ADJECTIVES + lex.LIFELESS,
  "veh": lex.ADJECTIVES + lex.LIFELESS,
  "event": [w for w in lex.ADJECTIVES if w.text not in ("dirty", "clean")],
  "place": lex.ADJECTIVES + lex.LIFELESS,
}


def _adjectives(g: Grammar) -> None:
  g.words("DEGREE", [(w.text, w) for w in lex.DEGREES])
  g.words("COLOUR", [(w.text, w) for w in lex.COLOURS])
  g.words("TASTE", [(w.text, w) for w in lex.TASTES])
  for kind, words in _QUALITIES.items():
    g.words(f"ADJ.{kind}", [(w.text, w) for w in words])
    # "dark yellow" would be dunkelgelb.
    fit = [w for w in words if w.text != "dark"]
    g.words(f"ADJ.{kind}.fit", [(w.text, w) for w in fit])
    g.words(
      f"ADJ.{kind}.er",
      [
        (w.forms["er"] or f"more {w.text}", w)
        for w in words
        if w.text not in _ABSOLUTE
      ],
    )
    coloured = 0.12 if kind in ("thing", "veh") else 0
    simple = 0.28 if kind == "place" else 0.4
    g.rule(
      f"AP.{kind}", 1 - simple - 0.1 - 2 * coloured, "ap", NONE, NONE, NONE
    )
    g.rule(f"AP.{kind}", simple, "ap", NONE, f"#ADJ.{kind}", NONE)
    g.rule(f"AP.{kind}", 0.1, "ap", "#DEGREE", f"#ADJ.{kind}", NONE)
    g.rule(f"AP.{kind}", coloured, "ap", NONE, f"#ADJ.{kind}.fit", "#COLOUR")
    g.rule(f"AP.{kind}", coloured, "ap", NONE, NONE, "#COLOUR")
    g.rule(f"PRED.{kind}", 0.6, "pred", NONE, f"#ADJ.{kind}")
    g.rule(f"PRED.{kind}", 0.4, "pred", "#DEGREE", f"#ADJ.{kind}")
  g.rule("AP.mass", 0.55, "ap", NONE, NONE, NONE)
  g.rule("AP.mass", 0.4, "ap", NONE, "#TASTE", NONE)
  g.rule("AP.mass", 0.05, "ap", "#DEGREE", "#TASTE", NONE)


def _noun_phrases(g: Grammar) -> None:
  g.words("NAME", [(w.text, w) for w in lex.NAMES])
  g.words("NAME.gen", [(w.text + "'s", w) for w in lex.NAMES])
  g.words("PREFIX", [(w.text, w) for w in lex.PREFIXES])
  for kind, words in _KINDS.items():
    compound = 0.18 if kind == "thing" else 0
    g.rule(f"PRE.{kind}", 1 - compound, "", NONE)
    g.rule(f"PRE.{kind}", compound, "", "#PREFIX")
    for number in "sp":
      noun = f"N.{kind}.{number}"
      g.words(noun, [(w.forms[number], w) for w in words])
      body = (f"#AP.{kind}", f"#PRE.{kind}", f"#{noun}", Const(number))
      for depth in ("flat", "rich"):
        name = f"NP.{kind}.{number}.{depth}"
        rel = 0.2 if depth == "rich" else 0
        plain = 0.9 - rel
        if number == "s":
          g.rule(name, plain, "np", "#DET.s", *body, NONE, NONE)
        else:
          g.rule(name, plain * 0.8, "np", "#DET.p", *body, NONE, NONE)
          g.rule(name, plain * 0.2, "np", "#NUM", *body, NONE, NONE)
        g.rule(name, 0.06, "np", Const(THE), "the", *body, "of #OWNER", NONE)
        g.rule(name, 0.04, "named", "#NAME.gen", *body)
        if rel:
          clause = f"#REL.{kind}.{number}"
          g.rule(name, rel, "np", f"#DET.{number}", *body, NONE, clause)
  for number in "sp":
    g.rule(
      "OWNER",
      1,
      "np",
      "#DET.owner",
      "#AP.anim",
      "#PRE.anim",
      f"#N.anim.{number}",
      Const(number),
      NONE,
      NONE,
    )
  for kind, words in (("food", lex.FOOD), ("drink", lex.DRINKS)):
    g.words(f"N.{kind}", [(w.text, w) for w in words])
    measures = lex.MEASURES_FOOD if kind == "food" else lex.MEASURES_DRINK
    for number in "sp":
      g.words(
        f"MEASURE.{kind}.{number}", [(w.forms[number], w) for w in measures]
      )
    g.rule(
      f"MASS.{kind}",
      0.5,
      "np",
      "#DET.mass",
      "#AP.mass",
      NONE,
      f"#N.{kind}",
      Const("s"),
      NONE,
      NONE,
    )
    tail = ("of", "#AP.mass", f"#N.{kind}")
    g.rule(
      f"MASS.{kind}", 0.2, "quantity", "a", NONE, f"#MEASURE.{kind}.s", *tail
    )
    g.rule(
      f"MASS.{kind}", 0.3, "quantity", "#NUM.time", f"#MEASURE.{kind}.p", *tail
    )


def _people(g: Grammar) -> None:
  """Subjects and objects that live."""
  g.words("PRON.s3", [(t, PRONOUNS[t]) for t in ("he", "she")])
  g.words("PRON.pl", [(t, PRONOUNS[t]) for t in ("we", "they")])
  g.words("PRON.i", [("I", PRONOUNS["I"])])
  g.words("PRON.object", [(t, PRONOUNS[s]) for t, s in OBJECT_PRONOUNS.items()])
  for depth in ("flat", "rich"):
    single, several = f"#NP.anim.s.{depth}", f"#NP.anim.p.{depth}"
    subject = f"SUBJ.anim.{{}}.{depth}"
    g.rule(subject.format("s3"), 0.68, "", single)
    g.rule(subject.format("s3"), 0.22, "name", "#NAME")
    g.rule(subject.format("s3"), 0.1, "pronoun", "#PRON.s3")
    g.rule(subject.format("pl"), 0.62, "", several)
    g.rule(subject.format("pl"), 0.2, "pronoun", "#PRON.pl")
    g.rule(subject.format("pl"), 0.18, "both", "#BOTH and #BOTH")
    g.rule(subject.format("i"), 1, "pronoun", "#PRON.i")
    for kind in ("thing", "veh", "event"):
      for agreement, number in (("s3", "s"), ("pl", "p")):
        g.rule(
          f"SUBJ.{kind}.{agreement}.{depth}",
          1,
          "",
          f"#NP.{kind}.{number}.{depth}",
        )
    g.rule(f"OBJ.anim.{depth}", 0.55, "", single)
    g.rule(f"OBJ.anim.{depth}", 0.2, "", several)
    g.rule(f"OBJ.anim.{depth}", 0.15, "name", "#NAME")
    g.rule(f"OBJ.anim.{depth}", 0.06, "pronoun", "#PRON.object")
    g.rule(f"OBJ.anim.{depth}", 0.04, "both", "#BOTH and #BOTH")
    g.rule(f"RECEIVER.{depth}", 0.6, "", single)
    g.rule(f"RECEIVER.{depth}", 0.2, "", several)
    g.rule(f"RECEIVER.{depth}", 0.2, "name", "#NAME")
    g.rule(f"OBJ.thing.{depth}", 0.65, "", f"#NP.thing.s.{depth}")
    g.rule(f"OBJ.thing.{depth}", 0.35, "", f"#NP.thing.p.{depth}")
    g.rule(f"OBJ.any.{depth}", 0.5, "", f"#OBJ.anim.{depth}")
    g.rule(f"OBJ.any.{depth}", 0.5, "", f"#OBJ.thing.{depth}")
  g.rule("BOTH", 0.5, "name", "#NAME")
  g.rule(
    "BOTH",
    0.5,
    "np",
    "#DET.owner",
    "#AP.anim",
    "#PRE.anim",
    "#N.anim.s",
    Const("s"),
    NONE,
    NONE,
  )


def _adverbials(g: Grammar) -> None:
  g.words("FREQUENCY", [(w.text, w) for w in lex.FREQUENCY])
  g.words("MANNER", [(w.text, w) for w in lex.MANNER])
  g.rule("ADV", 0.74, "", NONE)
  g.rule("ADV", 0.15, "", "#FREQUENCY")
  g.rule("ADV", 0.11, "", "#MANNER")
  g.rule("ADV.often", 0.74, "", NONE)
  g.rule("ADV.often", 0.26, "", "#FREQUENCY")

  for name, words in [
    ("DAY", lex.ON_DAY),
    ("DAYPART", lex.ON_DAYPART),
    ("DATE", lex.ON_DATE),
    ("CLOCK", lex.AT_CLOCK),
    ("MONTH", lex.IN_MONTH),
    ("YEAR", lex.IN_YEAR),
    ("WHENEVER", lex.WHENEVER),
    ("FUTURE", lex.FUTURE),
    ("PAST", lex.PAST),
  ]:
    g.words(f"TIME.{name}", [(w.text, w) for w in words])
  for number in "sp":
    g.words(f"UNIT.{number}", [(w.forms[number], w) for w in lex.UNITS])
  count = ("#NUM.time #UNIT.p".split(), ("a", NONE, "#UNIT.s"))
  for weight, parts in zip((0.75, 0.25), count):
    g.rule("AGO", weight, "span", Const("ago"), *parts, "ago")
    g.rule("FOR", weight, "span", Const("for"), "for", *parts)
    g.rule("WITHIN", weight, "span", Const("in"), "in", *parts)
  for tense, special in (("pres", "FUTURE"), ("past", "PAST")):
    name = f"TIME.{tense}"
    for weight, group in [
      (0.14, "DAY"),
      (0.1, "DAYPART"),
      (0.12, "DATE"),
      (0.14, "CLOCK"),
      (0.06, "MONTH"),
      (0.14, "WHENEVER"),
      (0.14, special),
    ]:
      g.rule(name, weight, "time", f"#TIME.{group}")
    g.rule(name, 0.06, "time", "#TIME.DAY", "#TIME.CLOCK")
    if tense == "past":
      g.rule(name, 0.06, "time", "#TIME.YEAR")
      g.rule(name, 0.06, "", "#AGO")
      g.rule(name, 0.04, "", "#FOR")
    else:
      g.rule(name, 0.08, "", "#WITHIN")
  g.rule("TIME.clock", 0.7, "time", "#TIME.CLOCK")
  g.rule("TIME.clock", 0.3, "time", "#TIME.DAY", "#TIME.CLOCK")

  around = [(w.text, w) for w in lex.AROUND]
  g.words("AROUND", around)
  g.words("N.place", [(w.text, w) for w in lex.PLACES])
  g.rule(
    "PLACE", 0.3, "around", "#AROUND", "#DET.place", "#AP.place", "#N.place"
  )
  for preposition in ("in", "at", "on"):
    words = [w for w in lex.PLACES if w.extra[1] == preposition]
    g.words(f"N.place.{preposition}", [(w.text, w) for w in words])
    g.rule(
      "PLACE",
      0.7 * len(words) / len(lex.PLACES),
      "at",
      preposition,
      "#DET.place",
      "#AP.place",
      f"#N.place.{preposition}",
    )
  g.rule("TO", 1, "to", "to", "#DET.place", "#AP.place", "#N.place")


# frame -> (share, verbs, objects). What its VP node holds is in `_verb_phrase`.
FRAMES = {
  "anim": {
    "thing": (0.2, lex.THING_VERBS, ("#OBJ.thing",)),
    "living": (0.1, lex.LIVING_VERBS, ("#OBJ.anim",)),
    "any": (0.13, lex.ANY_VERBS, ("#OBJ.any",)),
    "dative": (0.08, lex.DATIVE_VERBS, ("#OBJ.anim",)),
    "giving": (0.1, lex.GIVING_VERBS, ("#RECEIVER", "#OBJ.thing")),
    "eating": (0.04, lex.EATING_VERBS, ("#MASS.food",)),
    "drinking": (0.04, lex.DRINKING_VERBS, ("#MASS.drink",)),
    "stock.food": (0.02, lex.STOCK_VERBS, ("#MASS.food",)),
    "stock.drink": (0.02, lex.STOCK_VERBS, ("#MASS.drink",)),
    "plain": (0.08, lex.PLAIN_VERBS, ()),
    "reflexive": (0.02, lex.REFLEXIVE_VERBS, ()),
    "motion": (0.07, lex.MOTION_VERBS, ("#TO",)),
    "preposition": (0.09, lex.PREPOSITION_VERBS, ("#OBJ.any",)),
  },
  "thing": {},
  "veh": {"traffic": (0.85, lex.TRAFFIC_VERBS, ())},
  "event": {"event": (0.85, lex.EVENT_VERBS, ())},
}
# share of "be ADJ", "be ADJer than ...", price, passive
_BE = {
  "anim": (0.05, 0.04, 0, 0),
  "thing": (0.2, 0.1, 0.35, 0.35),
  "veh": (0.1, 0.05, 0, 0),
  "event": (0.15, 0, 0, 0),
}
FORMS_OF_BE = {
  ("pres", "s3"): "is",
  ("pres", "i"): "am",
  ("pres", "pl"): "are",
  ("past", "s3"): "was",
  ("past", "i"): "was",
  ("past", "pl"): "were",
}
# level -> [(share, has a place, has a time)]
_ADJUNCTS = {
  "top": [(0.4, 0, 0), (0.26, 0, 1), (0.2, 1, 0), (0.14, 1, 1)],
  "front": [(0.65, 0, 0), (0.35, 1, 0)],
  "inf": [(0.7, 0, 0), (0.3, 1, 0)],
  "rel": [(1.0, 0, 0)],
}


def _verbs(g: Grammar) -> None:
  for frames in FRAMES.values():
    for frame, (_, verbs, _) in frames.items():
      for form in ("base", "s3", "past"):
        g.words(f"V.{frame}.{form}", [(w.forms[form], w) for w in verbs])
  for name, verbs in [
    ("that", lex.THAT_VERBS),
    ("whether", lex.WHETHER_VERBS),
    ("to", lex.TO_VERBS),
  ]:
    for form in ("base", "s3", "past"):
      g.words(f"V.{name}.{form}", [(w.forms[form], w) for w in verbs])
  g.words("V.passive", [(w.forms["part"], w) for w in lex.PASSIVE_VERBS])
  for form, words in lex.MODALS.items():
    g.words(f"MODAL.{form}", [(w.text, w) for w in words])


def _verb_phrase(g: Grammar, kind, agreement, tense, level) -> str:
  """Defines the VP symbol of these features; returns its name.

  Its nodes are ("vp", frame, mood, modal, adverb, verb, first object, second
  object, place, time). tense is "pres", "past" or "inf".
  """
  name = f"VP.{kind}.{agreement}.{tense}.{level}"
  present = "s3" if agreement == "s3" else "base"
  moods = {
    "pres": [
      (0.72, "pres", NONE, present),
      (0.28, "modal", f"#MODAL.{present}", "base"),
    ],
    "past": [
      (0.82, "past", NONE, "past"),
      (0.18, "modal", "#MODAL.past", "base"),
    ],
    "inf": [(1.0, "inf", NONE, "base")],
  }[tense]
  be, compare, price, passive = _BE[kind]
  for share, has_place, has_time in _ADJUNCTS[level]:
    time = f"#TIME.{tense}" if has_time else NONE
    clock = "#TIME.clock" if has_time else NONE
    place = "#PLACE" if has_place else NONE
    rich = level in ("top", "front") and not (has_place or has_time)
    depth = "rich" if rich else "flat"

    def objects(names, depth=depth):
      full = [n if "MASS" in n or n == "#TO" else f"{n}.{depth}" for n in names]
      return (full + [NONE, NONE])[:2]

    for mood_share, mood, modal, form in moods:
      for frame, (weight, _, names) in FRAMES[kind].items():
        # To the station in the garden: one place is enough.
        where = NONE if frame == "motion" else place
        first, second = objects(names)
        if len(names) == 2:
          first = f"{names[0]}.flat"
        g.rule(
          name,
          share * mood_share * weight,
          "vp",
          Const(frame),
          Const(mood),
          modal,
          "#ADV",
          f"#V.{frame}.{form}",
          first,
          second,
          where,
          clock if kind in ("veh", "event") else time,
        )
    if tense == "inf":
      continue
    is_form = FORMS_OF_BE[tense, agreement]
    if passive:
      for agent_share, agent in (
        (0.6, ("by", f"#RECEIVER.{depth}")),
        (0.4, (NONE,)),
      ):
        g.rule(
          name,
          share * passive * agent_share,
          "vp",
          Const("passive"),
          Const(f"passive.{tense}"),
          NONE,
          is_form,
          "#ADV",
          "#V.passive",
          *agent,
          NONE,
          place,
          time,
        )
    if has_place or has_time:
      continue
    g.rule(
      name,
      be,
      "vp",
      Const("be"),
      Const(tense),
      NONE,
      is_form,
      "#ADV.often",
      NONE,
      f"#PRED.{kind}",
      NONE,
      NONE,
      NONE,
    )
    if compare:
      g.rule(
        name,
        compare,
        "vp",
        Const("compare"),
        Const(tense),
        NONE,
        is_form,
        "#ADV.often",
        NONE,
        f"#ADJ.{kind}.er",
        "than",
        f"#THAN.{kind}",
        NONE,
        NONE,
      )
    if price and tense == "pres":
      costs = "costs" if agreement == "s3" else "cost"
      g.rule(
        name,
        price,
        "vp",
        Const("price"),
        Const("pres"),
        NONE,
        "#ADV.often",
        costs,
        NONE,
        "#PRICE",
        NONE,
        NONE,
        NONE,
      )
  return name


def _verb_phrases(g: Grammar) -> None:
  g.rule("PRICE", 0.65, "price", "#NUM.price euros", NONE)
  g.rule("PRICE", 0.35, "price", "#NUM.price euros and #NUM.cents cents")
  for kind in ("anim", "thing", "veh"):
    for number, weight in (("s", 0.5), ("p", 0.2)):
      g.rule(
        f"THAN.{kind}",
        weight,
        "np",
        "#DET.owner",
        f"#AP.{kind}",
        f"#PRE.{kind}",
        f"#N.{kind}.{number}",
        Const(number),
        NONE,
        NONE,
      )
  g.rule("THAN.anim", 0.3, "name", "#NAME")
  for kind in FRAMES:
    for agreement in AGREEMENTS:
      if agreement == "i" and kind != "anim":
        continue
      for tense in ("pres", "past"):
        for level in ("top", "front", "rel"):
          _verb_phrase(g, kind, agreement, tense, level)
  _verb_phrase(g, "anim", "pl", "inf", "inf")


def _relative_clauses(g: Grammar) -> None:
  for kind, number in [(k, n) for k in _KINDS for n in "sp"]:
    name = f"REL.{kind}.{number}"
    agreement = "s3" if number == "s" else "pl"
    who = "who" if kind == "anim" else "that"
    for tense, weight in (("pres", 0.35), ("past", 0.25)):
      g.rule(
        name, weight, "rel_subject", who, f"#VP.{kind}.{agreement}.{tense}.rel"
      )
    if kind == "anim":
      frames, who = ("living", "any", "dative", "preposition"), "whom"
    elif kind == "thing":
      frames = ("thing", "any", "preposition")
    else:
      continue
    for subject, present, share in (("s3", "s3", 0.75), ("pl", "base", 0.25)):
      for frame in frames:
        for mood, form, weight in (
          ("pres", present, 0.2),
          ("past", "past", 0.2),
        ):
          g.rule(
            name,
            share * weight / len(frames) * 2,
            "rel_object",
            who,
            f"#SUBJ.anim.{subject}.flat",
            Const(subject),
            Const(frame),
            Const(mood),
            f"#V.{frame}.{form}",
          )


def _clauses(g: Grammar) -> None:
  """MAIN may open with an adverbial; CL, INV (behind a clause) may not."""
  for tense, weight in (("pres", 0.6), ("past", 0.4)):
    for kind, share in (
      ("anim", 0.74),
      ("thing", 0.14),
      ("veh", 0.06),
      ("event", 0.06),
    ):
      for agreement, part in (("s3", 0.7), ("pl", 0.25), ("i", 0.05)):
        if agreement == "i" and kind != "anim":
          continue
        subject = f"#SUBJ.{kind}.{agreement}.rich"
        person = Const(AGREEMENTS[agreement])
        both = weight * share * part
        phrase = f"#VP.{kind}.{agreement}.{tense}"
        plain = ("clause", NONE, subject, person, f"{phrase}.top")
        time = f"#TIME.{tense}" if kind in ("anim", "thing") else "#TIME.clock"
        fronted = ("clause", time, subject, person, f"{phrase}.front")
        names = ["MAIN"] + (["MAIN.anim"] if kind == "anim" else [])
        for name in names:
          g.rule(name, both * 0.72, *plain)
          g.rule(name, both * 0.28, *fronted)
        g.rule("CL", both, *plain)
        g.rule("INV", both, *plain)
        g.rule(f"CL.{tense}", share * part, *plain)
  for tense, weight in (("pres", 0.6), ("past", 0.4)):
    for agreement, part in (("s3", 0.75), ("pl", 0.2), ("i", 0.05)):
      form = (
        "past" if tense == "past" else ("s3" if agreement == "s3" else "base")
      )
      for name, verb in (("SAY", "that"), ("ASK", "whether"), ("TRY", "to")):
        g.rule(
          name,
          weight * part,
          "matrix",
          f"#SUBJ.anim.{agreement}.flat",
          Const(AGREEMENTS[agreement]),
          Const(tense),
          f"#V.{verb}.{form}",
        )
  g.words("CONJ.any", [(w.text, w) for w in CONJUNCTIONS["any"]])
  g.words("CONJ.pres", [(w.text, w) for w in CONJUNCTIONS["pres"]])


CONJUNCTIONS = {
  "any": [
    lex.Word("because", lex.choice(["weil", "da"])),
    lex.Word("although", lex.choice(["obwohl", "obgleich"], [0.8, 0.2])),
    lex.Word("while", lex.choice(["während"])),
  ],
  "pres": [
    lex.Word("if", lex.choice(["wenn", "falls"], [0.75, 0.25])),
    lex.Word("as soon as", lex.choice(["sobald"])),
    lex.Word("before", lex.choice(["bevor", "ehe"], [0.8, 0.2])),
  ],
}


def _sentences(g: Grammar) -> None:
  g.rule("S", 0.5, "", "#MAIN")
  sub = "SUB"
  g.rule(sub, 0.6, "sub", "#CONJ.any", "#CL")
  g.rule(sub, 0.4, "sub", "#CONJ.pres", "#CL.pres")
  g.rule("THAT", 0.75, "that", "#SAY", "that #CL")
  g.rule("THAT", 0.25, "whether", "#ASK", "whether #CL")
  infinitive = "#VP.anim.pl.inf.inf"
  for weight, rule, items in [
    (0.055, "and", "#MAIN and #MAIN"),
    (0.045, "but", "#MAIN , but #MAIN"),
    (0.08, "after", "#MAIN #SUB"),
    (0.06, "before", "#SUB , #INV"),
    (0.05, "", "#THAT"),
    (0.035, "try", f"#TRY to {infinitive}"),
    (0.025, "purpose", f"#MAIN.anim in order to {infinitive}"),
    # Three clauses.
    (0.035, "before_and", "#SUB , #INV and #MAIN"),
    (0.035, "and_after", "#MAIN and #MAIN #SUB"),
    (0.03, "that_sub", "#THAT #SUB"),
    (0.025, "sub_that", "#SUB , #THAT"),
    (0.025, "that_and", "#SAY that #CL and that #CL"),
  ]:
    g.rule("S", weight, rule, *items.split())


def build() -> Grammar:
  """The frozen grammar; its start symbol is S."""
  g = Grammar()
  for part in (
    _determiners,
    _adjectives,
    _noun_phrases,
    _people,
    _adverbials,
    _verbs,
    _verb_phrases,
    _relative_clauses,
    _clauses,
    _sentences,
  ):
    part(g)
  g.freeze()
  return g
