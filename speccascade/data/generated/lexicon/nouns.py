"""Nouns, names and places."""

import dataclasses

from speccascade.data.generated.lexicon.words import (
  Word,
  choice,
  read_choice,
  read_lines,
  read_nouns,
)

THINGS = read_nouns("""
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

PERSONS = read_nouns("""
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

ANIMALS = read_nouns("""
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

VEHICLES = read_nouns("""
train: Zug m Züge
bus: Bus m Busse g=Busses
ship: Schiff n Schiffe
tram: Straßenbahn f Straßenbahnen
plane: Flugzeug n Flugzeuge
ferry: Fähre f Fähren
""")

EVENTS = read_nouns("""
film: Film m Filme g=Films
concert: Konzert n Konzerte
party: Feier f Feiern | Party f Partys
lesson: Stunde f Stunden | Unterrichtsstunde f Unterrichtsstunden
meeting: Sitzung f Sitzungen | Besprechung f Besprechungen
match: Spiel n Spiele
course: Kurs m Kurse
journey: Reise f Reisen
""")

FOOD = read_nouns("""
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

DRINKS = read_nouns("""
milk: Milch f 0
water: Wasser n 0
tea: Tee m 0
coffee: Kaffee m 0
wine: Wein m 0
beer: Bier n 0
juice: Saft m 0
""")

# Containers and weights: "drei Gläser Milch"; some also uncounted, "drei Glas".
MEASURES_FOOD = read_nouns("""
kilo: Kilo n Kilo i
pound: Pfund n Pfund i
sack: Sack m Säcke | Sack m Sack i
plate: Teller m -
""")
MEASURES_DRINK = read_nouns("""
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
  for prepositions, rest in read_lines(_PLACES):
    english_preposition, at = prepositions.split(", ")
    (word,) = read_nouns(rest)
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
  Word(text, read_choice(renderings))
  for text, renderings in read_lines("""
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
