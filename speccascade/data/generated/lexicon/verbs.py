"""Verbs by what they take, and modals."""

import dataclasses

from speccascade.data.generated import german
from speccascade.data.generated.lexicon.words import (
  Word,
  read_choice,
  read_lines,
  read_verbs,
)

THING_VERBS = read_verbs("""
buy, bought: kaufen gekauft
sell, sold: verkaufen verkauft
repair: reparieren repariert
carry: tragen getragen trägt
clean: reinigen gereinigt | säubern gesäubert | putzen geputzt
find, found: finden gefunden
lose, lost: verlieren verloren
hide, hid, hidden: verstecken versteckt | verbergen verborgen verbirgt
need: brauchen gebraucht | benötigen benötigt
look for: suchen gesucht
bring along, brought along: mit|bringen mit|gebracht
pick up: auf|heben auf|gehoben
keep, kept: behalten behalten behält
throw away, threw away, thrown away: weg|werfen weg|geworfen wirft
use: benutzen benutzt | verwenden verwendet
forget, forgot, forgotten: vergessen vergessen vergisst
wash: waschen gewaschen wäscht
steal, stole, stolen: stehlen gestohlen stiehlt
order: bestellen bestellt
borrow: aus|leihen aus|geliehen
choose, chose, chosen: aus|wählen aus|gewählt | aus|suchen aus|gesucht
""")
# Of these the agent passive is plain English.
PASSIVE_VERBS = [
  word
  for word in THING_VERBS
  if word.text not in ("need", "bring along", "keep", "look for", "forget")
]
LIVING_VERBS = read_verbs("""
visit: besuchen besucht
call: an|rufen an|gerufen
greet: begrüßen begrüßt | grüßen gegrüßt
invite: ein|laden ein|geladen lädt
wake, woke, woken: wecken geweckt | auf|wecken auf|geweckt
pick up: ab|holen ab|geholt
meet, met: treffen getroffen trifft
comfort: trösten getröstet
""")
ANY_VERBS = read_verbs("""
see, saw, seen: sehen gesehen sieht
hear, heard: hören gehört
draw, drew, drawn: zeichnen gezeichnet zeichnet
photograph: fotografieren fotografiert
describe: beschreiben beschrieben | schildern geschildert
love: lieben geliebt
admire: bewundern bewundert
watch: beobachten beobachtet
look at: an|sehen an|gesehen sieht | an|schauen an|geschaut
""")
DATIVE_VERBS = read_verbs("""
help: helfen geholfen hilft
thank: danken gedankt
follow: folgen gefolgt s
answer: antworten geantwortet
listen to: zu|hören zu|gehört
congratulate: gratulieren gratuliert
trust: vertrauen vertraut
""")
GIVING_VERBS = read_verbs("""
give, gave, given: geben gegeben gibt
show, showed, shown: zeigen gezeigt
send, sent: schicken geschickt | zu|schicken zu|geschickt
lend, lent: leihen geliehen | aus|leihen aus|geliehen
bring, brought: bringen gebracht
offer: an|bieten an|geboten
sell, sold: verkaufen verkauft
""")
EATING_VERBS = read_verbs("""
eat, ate, eaten: essen gegessen isst
share: teilen geteilt
""")
DRINKING_VERBS = read_verbs("""
drink, drank, drunk: trinken getrunken
spill, spilt: verschütten verschüttet
""")
STOCK_VERBS = read_verbs("""
buy, bought: kaufen gekauft
sell, sold: verkaufen verkauft
order: bestellen bestellt
bring along, brought along: mit|bringen mit|gebracht
need: brauchen gebraucht | benötigen benötigt
""")
PLAIN_VERBS = read_verbs("""
sleep, slept: schlafen geschlafen schläft
work: arbeiten gearbeitet
sing, sang, sung: singen gesungen
laugh: lachen gelacht
cry: weinen geweint
dance: tanzen getanzt
wait: warten gewartet
arrive: an|kommen an|gekommen s | ein|treffen ein|getroffen s trifft
get up, got up: auf|stehen auf|gestanden s
wake up, woke up, woken up: auf|wachen auf|gewacht s | erwachen erwacht s
fall asleep, fell asleep, fallen asleep: ein|schlafen ein|geschlafen s schläft
come back, came back: zurück|kommen zurück|gekommen s
""")
REFLEXIVE_VERBS = read_verbs("""
rest: aus|ruhen aus|geruht
hurry: beeilen beeilt
""")
MOTION_VERBS = read_verbs("""
go, went, gone: gehen gegangen s
run, ran, run: laufen gelaufen s läuft | rennen gerannt s
drive, drove, driven: fahren gefahren s fährt
travel, travelled: reisen gereist s | fahren gefahren s fährt
come, came, come: kommen gekommen s
""")
TRAFFIC_VERBS = read_verbs("""
arrive: an|kommen an|gekommen s | ein|treffen ein|getroffen s trifft
depart: ab|fahren ab|gefahren s fährt | los|fahren los|gefahren s fährt
""")
EVENT_VERBS = read_verbs("""
begin, began, begun: beginnen begonnen | an|fangen an|gefangen fängt
end: enden geendet | auf|hören auf|gehört
take place, took place: statt|finden statt|gefunden
""")
# Preposition and case of what the verb is about; True: reflexive.
PREPOSITION_VERBS = [
  dataclasses.replace(word, extra=extra)
  for extra, table in [
    (("auf", "acc", False), "wait for: warten gewartet"),
    (("von", "dat", False), "dream of: träumen geträumt"),
    (("an", "acc", False), "think of, thought of: denken gedacht"),
    (("über", "acc", False), "laugh about: lachen gelacht"),
    (
      ("über", "acc", False),
      "talk about: sprechen gesprochen spricht | reden geredet",
    ),
    (("um", "acc", False), "ask for: bitten gebeten"),
    (("an", "acc", True), "remember: erinnern erinnert"),
    (("auf", "acc", True), "look forward to: freuen gefreut"),
    (
      ("über", "acc", True),
      "complain about: beschweren beschwert | beklagen beklagt",
    ),
  ]
  for word in read_verbs(table)
]
# Before "that": sagt, dass ...
THAT_VERBS = read_verbs("""
say, said: sagen gesagt
believe: glauben geglaubt | meinen gemeint
know, knew, known: wissen gewusst weiß 1=weiß
hope: hoffen gehofft
claim: behaupten behauptet
report: berichten berichtet
""")
WHETHER_VERBS = read_verbs("""
ask: fragen gefragt
""")
# Before "to": versucht, ... zu ...; True: reflexive.
TO_VERBS = [
  dataclasses.replace(word, extra=(reflexive,))
  for reflexive, table in [
    (False, "try: versuchen versucht"),
    (False, "forget, forgot: vergessen vergessen vergisst"),
    (False, "hope: hoffen gehofft"),
    (False, "promise: versprechen versprochen verspricht"),
    (False, "begin, began: beginnen begonnen | an|fangen an|gefangen fängt"),
    (True, "refuse: weigern geweigert"),
  ]
  for word in read_verbs(table)
]


def _modals(table: str) -> list[Word]:
  return [
    Word(text, read_choice(renderings, german.MODALS.__getitem__))
    for text, renderings in read_lines(table)
  ]


# English form for "he", German present or past modal.
MODALS = {
  "s3": _modals("""
must: muss
can: kann
should: sollte | soll
wants to: will | möchte
will: wird
"""),
  "base": _modals("""
must: muss
can: kann
should: sollte | soll
want to: will | möchte
will: wird
"""),
  "past": _modals("""
had to: musste
wanted to: wollte
"""),
}
