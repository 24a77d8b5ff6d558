"""Noun phrases and adverbials of the English grammar."""

from speccascade.data.generated import lexicon as lex
from speccascade.data.generated.cfg import Grammar
from speccascade.data.generated.determiners import OBJECT_PRONOUNS, PRONOUNS

# No comparative where the quality has no degrees.
_ABSOLUTE = {"broken", "empty", "round", "wonderful", "terrible", "huge"}
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
    degrees = [w for w in words if w.text not in _ABSOLUTE]
    g.words(
      f"ADJ.{kind}.er",
      [(w.forms["er"] or f"more {w.text}", w) for w in degrees],
    )
    coloured = 0.12 if kind in ("thing", "veh") else 0
    simple = 0.28 if kind == "place" else 0.4
    name = f"AP.{kind}"
    g.rule(name, 0.9 - simple - 2 * coloured, "ap", "=_ =_ =_")
    g.rule(name, simple, "ap", f"=_ #ADJ.{kind} =_")
    g.rule(name, 0.1, "ap", f"#DEGREE #ADJ.{kind} =_")
    g.rule(name, coloured, "ap", f"=_ #ADJ.{kind}.fit #COLOUR")
    g.rule(name, coloured, "ap", "=_ =_ #COLOUR")
    g.rule(f"PRED.{kind}", 0.6, "pred", f"=_ #ADJ.{kind}")
    g.rule(f"PRED.{kind}", 0.4, "pred", f"#DEGREE #ADJ.{kind}")
  g.rule("AP.mass", 0.55, "ap", "=_ =_ =_")
  g.rule("AP.mass", 0.4, "ap", "=_ #TASTE =_")
  g.rule("AP.mass", 0.05, "ap", "#DEGREE #TASTE =_")


def _noun_phrases(g: Grammar) -> None:
  """Nodes ("np", determiner, AP, prefix, noun, number, owner, relative)."""
  g.words("NAME", [(w.text, w) for w in lex.NAMES])
  g.words("NAME.gen", [(w.text + "'s", w) for w in lex.NAMES])
  g.words("PREFIX", [(w.text, w) for w in lex.PREFIXES])
  for kind, words in _KINDS.items():
    compound = 0.18 if kind == "thing" else 0
    g.rule(f"PRE.{kind}", 1 - compound, "", "=_")
    g.rule(f"PRE.{kind}", compound, "", "#PREFIX")
    for number in "sp":
      noun = f"N.{kind}.{number}"
      g.words(noun, [(w.forms[number], w) for w in words])
      body = f"#AP.{kind} #PRE.{kind} #{noun} ={number}"
      counted = 0.2 if number == "p" else 0
      for depth in ("flat", "rich"):
        name = f"NP.{kind}.{number}.{depth}"
        described = 0.2 if depth == "rich" else 0
        plain = 0.9 - described
        determined = f"#DET.{number} {body}"
        g.rule(name, plain * (1 - counted), "np", f"{determined} =_ =_")
        g.rule(name, plain * counted, "np", f"#NUM {body} =_ =_")
        g.rule(name, 0.06, "np", f"=THE the {body} of #OWNER =_")
        g.rule(name, 0.04, "named", f"#NAME.gen {body}")
        clause = f"#REL.{kind}.{number}"
        g.rule(name, described, "np", f"{determined} =_ {clause}")
      owned = f"#DET.owner.{number} {body} =_ =_"
      g.rule(f"THAN.{kind}", 0.5 if number == "s" else 0.2, "np", owned)
      if kind == "anim":
        g.rule("OWNER", 1, "np", owned)
        g.rule("BOTH", 1 if number == "s" else 0, "np", owned)
  g.rule("THAN.anim", 0.3, "name", "#NAME")
  g.rule("BOTH", 1, "name", "#NAME")


def _masses(g: Grammar) -> None:
  for kind, words, measures in (
    ("food", lex.FOOD, lex.MEASURES_FOOD),
    ("drink", lex.DRINKS, lex.MEASURES_DRINK),
  ):
    g.words(f"N.{kind}", [(w.text, w) for w in words])
    for number in "sp":
      forms = [(w.forms[number], w) for w in measures]
      g.words(f"MEASURE.{kind}.{number}", forms)
    name = f"MASS.{kind}"
    g.rule(name, 0.5, "np", f"#DET.mass #AP.mass =_ #N.{kind} =s =_ =_")
    tail = f"of #AP.mass #N.{kind}"
    g.rule(name, 0.2, "quantity", f"a =_ #MEASURE.{kind}.s {tail}")
    g.rule(name, 0.3, "quantity", f"#NUM.time #MEASURE.{kind}.p {tail}")


def _people(g: Grammar) -> None:
  """Subjects and objects."""
  g.words("PRON.s3", [(t, PRONOUNS[t]) for t in ("he", "she")])
  g.words("PRON.pl", [(t, PRONOUNS[t]) for t in ("we", "they")])
  g.words("PRON.i", [("I", PRONOUNS["I"])])
  objects = [(t, PRONOUNS[s]) for t, s in OBJECT_PRONOUNS.items()]
  g.words("PRON.object", objects)
  for depth in ("flat", "rich"):
    single, several = f"#NP.anim.s.{depth}", f"#NP.anim.p.{depth}"
    name = f"SUBJ.anim.s3.{depth}"
    g.rule(name, 0.68, "", single)
    g.rule(name, 0.22, "name", "#NAME")
    g.rule(name, 0.1, "pronoun", "#PRON.s3")
    name = f"SUBJ.anim.pl.{depth}"
    g.rule(name, 0.62, "", several)
    g.rule(name, 0.2, "pronoun", "#PRON.pl")
    g.rule(name, 0.18, "both", "#BOTH and #BOTH")
    g.rule(f"SUBJ.anim.i.{depth}", 1, "pronoun", "#PRON.i")
    for kind in ("thing", "veh", "event"):
      for agreement, number in (("s3", "s"), ("pl", "p")):
        phrase = f"#NP.{kind}.{number}.{depth}"
        g.rule(f"SUBJ.{kind}.{agreement}.{depth}", 1, "", phrase)
    name = f"OBJ.anim.{depth}"
    g.rule(name, 0.55, "", single)
    g.rule(name, 0.2, "", several)
    g.rule(name, 0.15, "name", "#NAME")
    g.rule(name, 0.06, "pronoun", "#PRON.object")
    g.rule(name, 0.04, "both", "#BOTH and #BOTH")
    name = f"RECEIVER.{depth}"
    g.rule(name, 0.6, "", single)
    g.rule(name, 0.2, "", several)
    g.rule(name, 0.2, "name", "#NAME")
    name = f"OBJ.thing.{depth}"
    g.rule(name, 0.65, "", f"#NP.thing.s.{depth}")
    g.rule(name, 0.35, "", f"#NP.thing.p.{depth}")
    name = f"OBJ.any.{depth}"
    g.rule(name, 0.5, "", f"#OBJ.anim.{depth}")
    g.rule(name, 0.5, "", f"#OBJ.thing.{depth}")


def _times(g: Grammar) -> None:
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
  for weight, span in ((0.75, "#NUM.time #UNIT.p"), (0.25, "a =_ #UNIT.s")):
    g.rule("AGO", weight, "span", f"=ago {span} ago")
    g.rule("FOR", weight, "span", f"=for for {span}")
    g.rule("WITHIN", weight, "span", f"=in in {span}")
  shares = {"DAY": 14, "DAYPART": 10, "DATE": 12, "CLOCK": 14, "MONTH": 6}
  shares["WHENEVER"] = 14
  for tense, special in (("pres", "FUTURE"), ("past", "PAST")):
    name = f"TIME.{tense}"
    for group, share in (shares | {special: 14}).items():
      g.rule(name, share, "time", f"#TIME.{group}")
    g.rule(name, 6, "time", "#TIME.DAY #TIME.CLOCK")
  g.rule("TIME.pres", 8, "", "#WITHIN")
  g.rule("TIME.past", 6, "time", "#TIME.YEAR")
  g.rule("TIME.past", 6, "", "#AGO")
  g.rule("TIME.past", 4, "", "#FOR")
  g.rule("TIME.clock", 0.7, "time", "#TIME.CLOCK")
  g.rule("TIME.clock", 0.3, "time", "#TIME.DAY #TIME.CLOCK")


def _adverbials(g: Grammar) -> None:
  g.words("FREQUENCY", [(w.text, w) for w in lex.FREQUENCY])
  g.words("MANNER", [(w.text, w) for w in lex.MANNER])
  g.rule("ADV", 0.74, "", "=_")
  g.rule("ADV", 0.15, "", "#FREQUENCY")
  g.rule("ADV", 0.11, "", "#MANNER")
  g.rule("ADV.often", 0.74, "", "=_")
  g.rule("ADV.often", 0.26, "", "#FREQUENCY")
  where = "#DET.place #AP.place"
  g.words("AROUND", [(w.text, w) for w in lex.AROUND])
  g.words("N.place", [(w.text, w) for w in lex.PLACES])
  g.rule("PLACE", 0.3, "around", f"#AROUND {where} #N.place")
  for preposition in ("in", "at", "on"):
    words = [w for w in lex.PLACES if w.extra[1] == preposition]
    g.words(f"N.place.{preposition}", [(w.text, w) for w in words])
    share = 0.7 * len(words) / len(lex.PLACES)
    items = f"{preposition} {where} #N.place.{preposition}"
    g.rule("PLACE", share, "at", items)
  g.rule("TO", 1, "to", f"to {where} #N.place")


def _relative_clauses(g: Grammar) -> None:
  for kind, number in [(k, n) for k in _KINDS for n in "sp"]:
    name = f"REL.{kind}.{number}"
    agreement = "s3" if number == "s" else "pl"
    who = "who" if kind == "anim" else "that"
    for tense, weight in (("pres", 0.35), ("past", 0.25)):
      body = f"{who} #VP.{kind}.{agreement}.{tense}.rel"
      g.rule(name, weight, "rel_subject", body)
    if kind == "anim":
      frames, who = ("living", "any", "dative", "preposition"), "whom"
    elif kind == "thing":
      frames = ("thing", "any", "preposition")
    else:
      continue
    for subject, present, share in (("s3", "s3", 0.75), ("pl", "base", 0.25)):
      head = f"{who} #SUBJ.anim.{subject}.flat ={subject}"
      for frame in frames:
        weight = 0.4 * share / len(frames)
        for mood, form in (("pres", present), ("past", "past")):
          body = f"{head} ={frame} ={mood} #V.{frame}.{form}"
          g.rule(name, weight, "rel_object", body)


def add(g: Grammar) -> None:
  """Adds all of it; the VPs of relative clauses come from `english_clauses`."""
  _adjectives(g)
  _noun_phrases(g)
  _masses(g)
  _people(g)
  _times(g)
  _adverbials(g)
  _relative_clauses(g)
