"""Verb phrases, clauses and sentences of the English grammar."""

from speccascade.data.generated import lexicon as lex
from speccascade.data.generated.cfg import Grammar

AGREEMENTS = {"s3": "3s", "i": "1s", "pl": "p"}
KINDS = ("anim", "thing", "veh", "event")

# frame -> (share, verbs, objects), by kind of subject.
FRAMES = {
  "anim": {
    "thing": (0.2, lex.THING_VERBS, ["#OBJ.thing"]),
    "living": (0.1, lex.LIVING_VERBS, ["#OBJ.anim"]),
    "any": (0.13, lex.ANY_VERBS, ["#OBJ.any"]),
    "dative": (0.08, lex.DATIVE_VERBS, ["#OBJ.anim"]),
    "giving": (0.1, lex.GIVING_VERBS, ["#RECEIVER", "#OBJ.thing"]),
    "eating": (0.04, lex.EATING_VERBS, ["#MASS.food"]),
    "drinking": (0.04, lex.DRINKING_VERBS, ["#MASS.drink"]),
    "stock.food": (0.02, lex.STOCK_VERBS, ["#MASS.food"]),
    "stock.drink": (0.02, lex.STOCK_VERBS, ["#MASS.drink"]),
    "plain": (0.08, lex.PLAIN_VERBS, []),
    "reflexive": (0.02, lex.REFLEXIVE_VERBS, []),
    "motion": (0.07, lex.MOTION_VERBS, ["#TO"]),
    "preposition": (0.09, lex.PREPOSITION_VERBS, ["#OBJ.any"]),
  },
  "thing": {},
  "veh": {"traffic": (0.85, lex.TRAFFIC_VERBS, [])},
  "event": {"event": (0.85, lex.EVENT_VERBS, [])},
}
# Shares of "be ADJ", "be ADJer than ...", price, passive.
_BE = {
  "anim": (0.05, 0.04, 0, 0),
  "thing": (0.2, 0.1, 0.35, 0.35),
  "veh": (0.1, 0.05, 0, 0),
  "event": (0.15, 0, 0, 0),
}
_FORMS_OF_BE = {
  ("pres", "s3"): "is",
  ("pres", "i"): "am",
  ("pres", "pl"): "are",
  ("past", "s3"): "was",
  ("past", "i"): "was",
  ("past", "pl"): "were",
}
# level -> [(share, has a place, has a time)]; a fronted time is counted out.
_ADJUNCTS = {
  "top": [(0.4, 0, 0), (0.26, 0, 1), (0.2, 1, 0), (0.14, 1, 1)],
  "front": [(0.65, 0, 0), (0.35, 1, 0)],
  "inf": [(0.7, 0, 0), (0.3, 1, 0)],
  "rel": [(1.0, 0, 0)],
}
CONJUNCTIONS = {
  "any": [
    lex.Word("because", lex.choice(["weil", "da"])),
    lex.Word("although", lex.choice(["obwohl", "obgleich"], [0.8, 0.2])),
    lex.Word("while", lex.choice(["während"])),
  ],
  # Of what is, not of what was: "if" with a past could be unreal.
  "pres": [
    lex.Word("if", lex.choice(["wenn", "falls"])),
    lex.Word("as soon as", lex.choice(["sobald"])),
    lex.Word("before", lex.choice(["bevor", "ehe"], [0.8, 0.2])),
  ],
}


def _words(g: Grammar) -> None:
  verbs = {"that": lex.THAT_VERBS, "whether": lex.WHETHER_VERBS}
  verbs["to"] = lex.TO_VERBS
  for frames in FRAMES.values():
    verbs |= {frame: entry[1] for frame, entry in frames.items()}
  for name, words in verbs.items():
    for form in ("base", "s3", "past"):
      g.words(f"V.{name}.{form}", [(w.forms[form], w) for w in words])
  g.words("V.passive", [(w.forms["part"], w) for w in lex.PASSIVE_VERBS])
  for form, words in lex.MODALS.items():
    g.words(f"MODAL.{form}", [(w.text, w) for w in words])
  for name, words in CONJUNCTIONS.items():
    g.words(f"CONJ.{name}", [(w.text, w) for w in words])
  g.rule("PRICE", 0.65, "price", "#NUM.price euros =_")
  g.rule("PRICE", 0.35, "price", "#NUM.price euros and #NUM.cents cents")


def _verb_phrase(g: Grammar, kind, agreement, tense, level) -> None:
  """Defines the VP symbol of these features.

  Its nodes are ("vp", frame, mood, modal, adverb, verb, first object, second
  object, place, time). tense is "pres", "past" or "inf".
  """
  name = f"VP.{kind}.{agreement}.{tense}.{level}"
  present = "s3" if agreement == "s3" else "base"
  moods = {
    "pres": [
      (0.72, "=pres =_", present),
      (0.28, f"=modal #MODAL.{present}", "base"),
    ],
    "past": [(0.82, "=past =_", "past"), (0.18, "=modal #MODAL.past", "base")],
    "inf": [(1.0, "=inf =_", "base")],
  }[tense]
  clocked = kind in ("veh", "event")
  for share, has_place, has_time in _ADJUNCTS[level]:
    time = (
      ("#TIME.clock" if clocked else f"#TIME.{tense}") if has_time else "=_"
    )
    where = "#PLACE" if has_place else "=_"
    # Behind a relative clause, adverbials would seem to belong to it.
    free = not (has_place or has_time) and level in ("top", "front")
    depth = "rich" if free else "flat"
    for frame, (weight, _, names) in FRAMES[kind].items():
      if frame == "motion" and has_place:  # "to the station" is place enough
        continue
      objects = " ".join(_objects(names, depth))
      for part, mood, form in moods:
        items = f"={frame} {mood} #ADV #V.{frame}.{form} {objects}"
        g.rule(name, share * part * weight, "vp", f"{items} {where} {time}")
    if tense == "inf":
      continue
    be, compare, price, passive = _BE[kind]
    is_form = _FORMS_OF_BE[tense, agreement]
    head = f"=passive =passive.{tense} =_ {is_form} #ADV #V.passive"
    by = f"{head} by #RECEIVER.{depth} =_ {where} {time}"
    g.rule(name, share * passive * 0.6, "vp", by)
    g.rule(name, share * passive * 0.4, "vp", f"{head} =_ =_ {where} {time}")
    if has_place or has_time:
      continue
    head = f"={tense} =_ {is_form} #ADV.often =_"
    g.rule(name, be, "vp", f"=be {head} #PRED.{kind} =_ =_ =_")
    than = f"#ADJ.{kind}.er than #THAN.{kind} =_ =_"
    g.rule(name, compare, "vp", f"=compare {head} {than}")
    if tense == "pres":  # "cost" alone could be present or past
      costs = "costs" if agreement == "s3" else "cost"
      items = f"=price =pres =_ #ADV.often {costs} =_ #PRICE =_ =_ =_"
      g.rule(name, price, "vp", items)


def _objects(names: list[str], depth: str) -> list[str]:
  """Two objects, "=_" for none; only the last may be rich."""
  full = [
    name if name == "#TO" or "MASS" in name else f"{name}.{depth}"
    for name in names
  ]
  if len(full) == 2:
    full[0] = f"{names[0]}.flat"
  return [*full, "=_", "=_"][:2]


def _verb_phrases(g: Grammar) -> None:
  for kind in KINDS:
    for agreement in AGREEMENTS:
      if agreement == "i" and kind != "anim":
        continue
      for tense in ("pres", "past"):
        for level in ("top", "front", "rel"):
          _verb_phrase(g, kind, agreement, tense, level)
  _verb_phrase(g, "anim", "pl", "inf", "inf")


def _clauses(g: Grammar) -> None:
  """Nodes ("clause", fronted time, subject, person, VP).

  MAIN may open with an adverbial; CL (subordinate) and INV (main, behind a
  subordinate clause) may not.
  """
  kinds = zip(KINDS, (0.74, 0.14, 0.06, 0.06))
  agreements = (("s3", 0.7), ("pl", 0.25), ("i", 0.05))
  for kind, share in kinds:
    for agreement, part in agreements:
      if agreement == "i" and kind != "anim":
        continue
      subject = f"#SUBJ.{kind}.{agreement}.rich ={AGREEMENTS[agreement]}"
      for tense, weight in (("pres", 0.6), ("past", 0.4)):
        phrase = f"#VP.{kind}.{agreement}.{tense}"
        plain = f"=_ {subject} {phrase}.top"
        clocked = kind in ("veh", "event")
        time = "#TIME.clock" if clocked else f"#TIME.{tense}"
        fronted = f"{time} {subject} {phrase}.front"
        both = weight * share * part
        for name in ("MAIN", "MAIN.anim") if kind == "anim" else ("MAIN",):
          g.rule(name, both * 0.72, "clause", plain)
          g.rule(name, both * 0.28, "clause", fronted)
        g.rule("CL", both, "clause", plain)
        g.rule("INV", both, "clause", plain)
        g.rule(f"CL.{tense}", share * part, "clause", plain)


def _matrices(g: Grammar) -> None:
  """Nodes ("matrix", subject, person, tense, verb): "Anna hopes"."""
  for agreement, part in (("s3", 0.75), ("pl", 0.2), ("i", 0.05)):
    subject = f"#SUBJ.anim.{agreement}.flat ={AGREEMENTS[agreement]}"
    present = "s3" if agreement == "s3" else "base"
    for name, verb in (("SAY", "that"), ("ASK", "whether"), ("TRY", "to")):
      for tense, form, weight in (
        ("pres", present, 0.6),
        ("past", "past", 0.4),
      ):
        items = f"{subject} ={tense} #V.{verb}.{form}"
        g.rule(name, weight * part, "matrix", items)


def _sentences(g: Grammar) -> None:
  g.rule("SUB", 0.6, "sub", "#CONJ.any #CL")
  g.rule("SUB", 0.4, "sub", "#CONJ.pres #CL.pres")
  g.rule("THAT", 0.75, "that", "#SAY that #CL")
  g.rule("THAT", 0.25, "whether", "#ASK whether #CL")
  infinitive = "#VP.anim.pl.inf.inf"
  for weight, rule, items in [
    (0.5, "", "#MAIN"),
    # Two clauses.
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
    g.rule("S", weight, rule, items)


def add(g: Grammar) -> None:
  """Adds all of it; noun phrases and adverbials come from elsewhere."""
  _words(g)
  _verb_phrases(g)
  _clauses(g)
  _matrices(g)
  _sentences(g)
