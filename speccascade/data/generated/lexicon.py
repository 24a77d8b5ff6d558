"""The words of the generated task: English beside its German renderings.

A line is `english: german | german`, several renderings with the likeliest
first; a number behind one is its share of the draws (default: see `SHARES`).
Every rendering listed is right wherever the grammar uses the entry.
"""

import dataclasses

from speccascade.data.generated import english, german

# Shares of two, three renderings where the line gives none. Skewed, so that
# the best single guess (greedy) beats a random draw.
SHARES = {1: (1.0,), 2: (0.72, 0.28), 3: (0.6, 0.25, 0.15)}


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
  """Right renderings with their probabilities, the likeliest first."""

  weights: tuple[float, ...]
  values: tuple

  def keep(self, condition) -> "Choice":
    """The choice among the values that fulfil `condition`."""
    pairs = [(w, v) for w, v in zip(self.weights, self.values) if condition(v)]
    total = sum(w for w, _ in pairs)
    return Choice(
      tuple(w / total for w, _ in pairs), tuple(v for _, v in pairs)
    )


def choice(values, weights=None) -> Choice:
  """A `Choice` with given weights or the shares for that many values."""
  weights = SHARES[len(values)] if weights is None else tuple(weights)
  return Choice(tuple(weights), tuple(values))


@dataclasses.dataclass(frozen=True, eq=False)
class Word:
  """An English word or phrase with its renderings and other forms.

  Attributes:
    text: the phrase whose forms the others are.
    german: `Choice` among strings, `german.Noun`s, `german.Verb`s, ...
    forms: name of an English form -> text.
    extra: what a construction needs beside (preposition, case, number).
  """

  text: str
  german: Choice
  forms: dict[str, str] = dataclasses.field(default_factory=dict)
  extra: tuple = ()


def _lines(table: str) -> list[tuple[str, str]]:
  lines = [line for line in table.strip().splitlines() if line.strip()]
  return [tuple(part.strip() for part in l.split(":", 1)) for l in lines]


def _choice(text: str, build=lambda spec: spec) -> Choice:
  return choice([build(part.strip()) for part in text.split(" | ")])


def _nouns(table: str) -> list[Word]:
  words = []
  for forms, renderings in _lines(table):
    singular, _, plural = forms.partition("/")
    plural = plural or english.plural(singular)
    entry = _choice(renderings, german.noun)
    joint = entry.keep(lambda n: n.joins)
    words.append(Word(singular, entry, {"s": singular, "p": plural}, (joint,)))
  return words


def _verbs(table: str, extra: tuple = ()) -> list[Word]:
  """Verbs: `base, past, participle: ...`; regular ones give the base only."""
  words = []
  for forms, renderings in _lines(table):
    base, *rest = [form.strip() for form in forms.split(",")]
    past = rest[0] if rest else english.regular_past(base)
    table = {
      "base": base,
      "s3": english.third_person(base),
      "past": past,
      "part": rest[1] if len(rest) > 1 else past,
    }
    words.append(Word(base, _choice(renderings, german.verb), table, extra))
  return words


THINGS = _nouns("""
table: Tisch m Tische
chair: Stuhl m Stühle
lamp: Lampe f Lampen
door: Tür f Türen
window: Fenster n -
book: Buch n Bücher
letter: Brief m Briefe
coat: Mantel m Mäntel
shirt: Hemd n Hemden
hat: Hut m Hüte
bag: Tasche f Taschen
suitcase: Koffer m -
key: Schlüssel m -
knife/knives: Messer n -
spoon: Löffel m -
fork: Gabel f Gabeln
plate: Teller m -
cup: Tasse f Tassen
bottle: Flasche f Flaschen
picture: Bild n Bilder
mirror: Spiegel m -
bed: Bett n Betten
cupboard: Schrank m Schränke
sofa: Sofa n Sofas | Couch f Couchs
carpet: Teppich m Teppiche
clock: Uhr f Uhren
bicycle: Fahrrad n Fahrräder | Rad n Räder
car: Auto n Autos | Wagen m - x
newspaper: Zeitung f Zeitungen
cake: Kuchen m -
apple: Apfel m Äpfel
egg: Ei n Eier
flower: Blume f Blumen
tree: Baum m Bäume
stone: Stein m Steine
ring: Ring m Ringe
ball: Ball m Bälle
doll: Puppe f Puppen
guitar: Gitarre f Gitarren
camera: Kamera f Kameras
umbrella: Regenschirm m Regenschirme | Schirm m Schirme
shoe: Schuh m Schuhe
dress: Kleid n Kleider
jacket: Jacke f Jacken
basket: Korb m Körbe
box: Kiste f Kisten | Schachtel f Schachteln
pot: Topf m Töpfe
candle: Kerze f Kerzen
flag: Fahne f Fahnen | Flagge f Flaggen
tent: Zelt n Zelte
boat: Boot n Boote
bell: Glocke f Glocken
pillow: Kissen n - | Kopfkissen n - x
drum: Trommel f Trommeln
""")

PERSONS = _nouns("""
man/men: Mann m Männer
woman/women: Frau f Frauen
boy: Junge m Jungen w
girl: Mädchen n -
child/children: Kind n Kinder
father: Vater m Väter
mother: Mutter f Mütter
brother: Bruder m Brüder
sister: Schwester f Schwestern
uncle: Onkel m -
aunt: Tante f Tanten
grandfather: Großvater m Großväter | Opa m Opas
grandmother: Großmutter f Großmütter | Oma f Omas
son: Sohn m Söhne
daughter: Tochter f Töchter
king: König m Könige
queen: Königin f Königinnen
prince: Prinz m Prinzen w
teacher: Lehrer m - | Lehrerin f Lehrerinnen
doctor: Arzt m Ärzte | Ärztin f Ärztinnen
neighbour: Nachbar m Nachbarn w | Nachbarin f Nachbarinnen
waiter: Kellner m -
gentleman/gentlemen: Herr m Herren w=Herrn
lady: Dame f Damen
thief/thieves: Dieb m Diebe | Diebin f Diebinnen
student: Student m Studenten w | Studentin f Studentinnen
friend: Freund m Freunde | Freundin f Freundinnen
singer: Sänger m - | Sängerin f Sängerinnen
colleague: Kollege m Kollegen w | Kollegin f Kolleginnen
guest: Gast m Gäste
""")

ANIMALS = _nouns("""
dog: Hund m Hunde
cat: Katze f Katzen
horse: Pferd n Pferde
cow: Kuh f Kühe
bird: Vogel m Vögel
mouse/mice: Maus f Mäuse
bear: Bär m Bären w
lion: Löwe m Löwen w
elephant: Elefant m Elefanten w
rabbit: Kaninchen n -
monkey: Affe m Affen w
frog: Frosch m Frösche
pig: Schwein n Schweine
""")

VEHICLES = _nouns("""
train: Zug m Züge
bus: Bus m Busse g=Busses
ship: Schiff n Schiffe
tram: Straßenbahn f Straßenbahnen
plane: Flugzeug n Flugzeuge
ferry: Fähre f Fähren
""")

EVENTS = _nouns("""
film: Film m Filme g=Films
concert: Konzert n Konzerte
party: Feier f Feiern | Party f Partys
lesson: Stunde f Stunden | Unterrichtsstunde f Unterrichtsstunden
meeting: Sitzung f Sitzungen | Besprechung f Besprechungen
match: Spiel n Spiele
course: Kurs m Kurse
journey: Reise f Reisen
""")

FOOD = _nouns("""
bread: Brot n 0
cheese: Käse m 0
butter: Butter f 0
soup: Suppe f 0
honey: Honig m 0
sugar: Zucker m 0
rice: Reis m 0
meat: Fleisch n 0
chocolate: Schokolade f 0
""")

DRINKS = _nouns("""
milk: Milch f 0
water: Wasser n 0
tea: Tee m 0
coffee: Kaffee m 0
wine: Wein m 0
beer: Bier n 0
juice: Saft m 0
""")

# Containers and weights: "drei Gläser Milch"; some also uncounted, "drei Glas".
MEASURES_FOOD = _nouns("""
kilo: Kilo n Kilo i
pound: Pfund n Pfund i
sack: Sack m Säcke | Sack m Sack i
plate: Teller m -
""")
MEASURES_DRINK = _nouns("""
glass: Glas n Gläser | Glas n Glas i
cup: Tasse f Tassen
bottle: Flasche f Flaschen
litre: Liter m -
barrel: Fass n Fässer | Fass n Fass i
""")

# place: English preposition, German preposition of rest, of motion | noun.
_PLACES = """
in, in: kitchen: Küche f Küchen
in, in: garden: Garten m Gärten
at, an: station: Bahnhof m Bahnhöfe
at, auf: market: Markt m Märkte
on, auf: bridge: Brücke f Brücken
in, in: forest: Wald m Wälder
in, in: church: Kirche f Kirchen
in, in: school: Schule f Schulen
in, in: hotel: Hotel n Hotels
in, in: museum: Museum n Museen
on, an: beach: Strand m Strände
at, an: lake: See m Seen
in, in: city: Stadt f Städte
in, in: village: Dorf n Dörfer
in, in: cellar: Keller m -
in, in: castle: Schloss n Schlösser
in, in: library: Bibliothek f Bibliotheken
in, in: restaurant: Restaurant n Restaurants
on, auf: island: Insel f Inseln
on, auf: mountain: Berg m Berge
in, in: hospital: Krankenhaus n Krankenhäuser
on, auf: farm: Bauernhof m Bauernhöfe
"""


def _places() -> list[Word]:
  words = []
  for prepositions, rest in _lines(_PLACES):
    english_preposition, at = prepositions.split(", ")
    (word,) = _nouns(rest)
    words.append(
      dataclasses.replace(word, extra=(*word.extra, english_preposition, at))
    )
  return words


PLACES = _places()

# Prepositions any place takes: "hinter dem Schloss".
AROUND = [
  Word(text, choice([preposition]), extra=(case,))
  for text, preposition, case in [
    ("behind", "hinter", "dat"),
    ("in front of", "vor", "dat"),
    ("next to", "neben", "dat"),
    ("not far from", "unweit", "gen"),
  ]
]

PREFIXES = [
  Word(text, _choice(renderings))
  for text, renderings in _lines("""
summer: Sommer
winter: Winter
garden: Garten
kitchen: Küchen
children's: Kinder
school: Schul
leather: Leder
birthday: Geburtstags
travel: Reise
city: Stadt
toy: Spielzeug
Sunday: Sonntags
iron: Eisen
dream: Traum
""")
]

_NAMES = """
Anna Peter Maria Paul Laura Martin Julia Theo Lena Stefan Clara Daniel Eva
Michael Sophie Robert Nina Simon Emma Florian Marta David Hannah Oskar Lisa
Jakob Frieda Anton Paula Emil Greta Viktor Ida Karl Lotte Konrad Rosa Walter
Helena Georg Karin Ludwig Sabine Erik Monika Otto
"""
NAMES = [Word(name, choice([name])) for name in _NAMES.split()]


def _adjectives(table: str) -> list[Word]:
  """Lines `old: alt/älter`: predicative[, attributive stem][/comparative]."""

  def build(spec: str) -> tuple[str, str, str]:
    forms, _, comparative = spec.partition("/")
    predicative, _, stem = forms.partition(",")
    stem = stem or predicative
    return predicative, stem, comparative or stem.removesuffix("e") + "er"

  words = []
  for forms, renderings in _lines(table):
    text, _, comparative = forms.partition("/")
    words.append(Word(text, _choice(renderings, build), {"er": comparative}))
  return words


# For persons, animals and things.
ADJECTIVES = _adjectives("""
old/older: alt/älter
big/bigger: groß/größer
small/smaller: klein
beautiful: schön | hübsch
ugly/uglier: hässlich
strange/stranger: seltsam | merkwürdig | komisch
famous: berühmt | bekannt
dirty/dirtier: schmutzig | dreckig
heavy/heavier: schwer
huge: riesig | gewaltig
dangerous: gefährlich
wonderful: wunderbar | herrlich | wundervoll
terrible: schrecklich | furchtbar | entsetzlich
loud/louder: laut
clean/cleaner: sauber
warm/warmer: warm/wärmer
""")
# For persons and animals.
LIVELY = _adjectives("""
young/younger: jung/jünger
tired: müde
happy/happier: glücklich | froh | fröhlich
sad/sadder: traurig
clever/cleverer: klug/klüger | schlau | gescheit
brave/braver: mutig | tapfer
hungry/hungrier: hungrig
lazy/lazier: faul | träge
friendly/friendlier: freundlich | nett
sick/sicker: krank/kränker
healthy/healthier: gesund/gesünder
strong/stronger: stark/stärker | kräftig
weak/weaker: schwach/schwächer
funny/funnier: lustig | witzig
calm/calmer: ruhig | gelassen
""")
# For things and places.
LIFELESS = _adjectives("""
new/newer: neu
cheap/cheaper: billig | preiswert
expensive: teuer,teur/teurer | kostspielig
modern: modern
round: rund
long/longer: lang/länger
short/shorter: kurz/kürzer
empty: leer
dark/darker: dunkel,dunkl/dunkler | finster
broken: kaputt | defekt
simple/simpler: einfach | schlicht
valuable: wertvoll | kostbar
""")
COLOURS = _adjectives("""
red: rot
blue: blau
green: grün
white: weiß
black: schwarz
yellow: gelb
grey: grau
brown: braun
golden: golden
wooden: hölzern
""")
TASTES = _adjectives("""
cold: kalt
warm: warm
hot: heiß
fresh: frisch
good: gut
sweet: süß
cheap: billig | preiswert
expensive: teuer,teur
""")

DEGREES = [
  Word(text, _choice(renderings))
  for text, renderings in _lines("""
very: sehr
quite: ziemlich | recht
extremely: äußerst | extrem
""")
]

# How often and how likely: for every verb, "be" too.
FREQUENCY = [
  Word(text, _choice(renderings))
  for text, renderings in _lines("""
often: oft | häufig
always: immer | stets
never: nie | niemals
sometimes: manchmal | ab und zu
rarely: selten
usually: meistens | normalerweise | gewöhnlich
probably: wahrscheinlich | vermutlich | wohl
also: auch | ebenfalls
""")
]
# How: for what one does.
MANNER = [
  Word(text, _choice(renderings))
  for text, renderings in _lines("""
quickly: schnell | rasch
secretly: heimlich
gladly: gern | gerne
suddenly: plötzlich | auf einmal
finally: endlich | schließlich
quietly: leise
immediately: sofort | umgehend | unverzüglich
""")
]

# ---- verbs by frame ------------------------------------------------------

THING_VERBS = _verbs("""
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
LIVING_VERBS = _verbs("""
visit: besuchen besucht
call: an|rufen an|gerufen
greet: begrüßen begrüßt | grüßen gegrüßt
invite: ein|laden ein|geladen lädt
wake, woke, woken: wecken geweckt | auf|wecken auf|geweckt
pick up: ab|holen ab|geholt
meet, met: treffen getroffen trifft
comfort: trösten getröstet
""")
ANY_VERBS = _verbs("""
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
DATIVE_VERBS = _verbs("""
help: helfen geholfen hilft
thank: danken gedankt
follow: folgen gefolgt s
answer: antworten geantwortet
listen to: zu|hören zu|gehört
congratulate: gratulieren gratuliert
trust: vertrauen vertraut
""")
GIVING_VERBS = _verbs("""
give, gave, given: geben gegeben gibt
show, showed, shown: zeigen gezeigt
send, sent: schicken geschickt | zu|schicken zu|geschickt
lend, lent: leihen geliehen | aus|leihen aus|geliehen
bring, brought: bringen gebracht
offer: an|bieten an|geboten
sell, sold: verkaufen verkauft
""")
EATING_VERBS = _verbs("""
eat, ate, eaten: essen gegessen isst
share: teilen geteilt
""")
DRINKING_VERBS = _verbs("""
drink, drank, drunk: trinken getrunken
spill, spilt: verschütten verschüttet
""")
STOCK_VERBS = _verbs("""
buy, bought: kaufen gekauft
sell, sold: verkaufen verkauft
order: bestellen bestellt
bring along, brought along: mit|bringen mit|gebracht
need: brauchen gebraucht | benötigen benötigt
""")
PLAIN_VERBS = _verbs("""
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
REFLEXIVE_VERBS = _verbs("""
rest: aus|ruhen aus|geruht
hurry: beeilen beeilt
""")
MOTION_VERBS = _verbs("""
go, went, gone: gehen gegangen s
run, ran, run: laufen gelaufen s läuft | rennen gerannt s
drive, drove, driven: fahren gefahren s fährt
travel, travelled: reisen gereist s | fahren gefahren s fährt
come, came, come: kommen gekommen s
""")
TRAFFIC_VERBS = _verbs("""
arrive: an|kommen an|gekommen s | ein|treffen ein|getroffen s trifft
depart: ab|fahren ab|gefahren s fährt | los|fahren los|gefahren s fährt
""")
EVENT_VERBS = _verbs("""
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
  for word in _verbs(table)
]
# Before "that": sagt, dass ...
THAT_VERBS = _verbs("""
say, said: sagen gesagt
believe: glauben geglaubt | meinen gemeint
know, knew, known: wissen gewusst weiß 1=weiß
hope: hoffen gehofft
claim: behaupten behauptet
report: berichten berichtet
""")
WHETHER_VERBS = _verbs("""
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
  for word in _verbs(table)
]


def _modals(table: str) -> list[Word]:
  return [
    Word(text, _choice(renderings, german.MODALS.__getitem__))
    for text, renderings in _lines(table)
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
UNITS = _nouns("""
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
