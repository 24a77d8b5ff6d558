"""German forms against tables written out from grammar books."""

import functools

import pytest

from speccascade.data.generated import determiners as det
from speccascade.data.generated import (
  english_grammar,
  german,
  german_clauses,
  lattice,
  lexicon,
)

# Rows: nominative, accusative, dative, genitive.
# Columns: masculine, feminine, neuter, plural.
DEFINITE = """
der alte Hut | die alte Tür | das alte Buch | die alten Hüte
den alten Hut | die alte Tür | das alte Buch | die alten Hüte
dem alten Hut | der alten Tür | dem alten Buch | den alten Hüten
des alten Hutes | der alten Tür | des alten Buches | der alten Hüte
"""
DIESER = """
dieser alte Hut | diese alte Tür | dieses alte Buch | diese alten Hüte
diesen alten Hut | diese alte Tür | dieses alte Buch | diese alten Hüte
diesem alten Hut | dieser alten Tür | diesem alten Buch | diesen alten Hüten
dieses alten Hutes | dieser alten Tür | dieses alten Buches | dieser alten Hüte
"""
JEDER = """
jeder alte Hut | jede alte Tür | jedes alte Buch
jeden alten Hut | jede alte Tür | jedes alte Buch
jedem alten Hut | jeder alten Tür | jedem alten Buch
jedes alten Hutes | jeder alten Tür | jedes alten Buches
"""
INDEFINITE = """
ein alter Hut | eine alte Tür | ein altes Buch
einen alten Hut | eine alte Tür | ein altes Buch
einem alten Hut | einer alten Tür | einem alten Buch
eines alten Hutes | einer alten Tür | eines alten Buches
"""
KEIN = """
kein alter Hut | keine alte Tür | kein altes Buch | keine alten Hüte
keinen alten Hut | keine alte Tür | kein altes Buch | keine alten Hüte
keinem alten Hut | keiner alten Tür | keinem alten Buch | keinen alten Hüten
keines alten Hutes | keiner alten Tür | keines alten Buches | keiner alten Hüte
"""
IHR = """
ihr alter Hut | ihre alte Tür | ihr altes Buch | ihre alten Hüte
ihren alten Hut | ihre alte Tür | ihr altes Buch | ihre alten Hüte
ihrem alten Hut | ihrer alten Tür | ihrem alten Buch | ihren alten Hüten
ihres alten Hutes | ihrer alten Tür | ihres alten Buches | ihrer alten Hüte
"""
BARE = """
alter Hut | alte Tür | altes Buch | alte Hüte
alten Hut | alte Tür | altes Buch | alte Hüte
altem Hut | alter Tür | altem Buch | alten Hüten
alten Hutes | alter Tür | alten Buches | alter Hüte
"""
PLURALS = {
  "all": "alle alten Hüte | alle alten Hüte | allen alten Hüten | "
  "aller alten Hüte",
  "both": "beide alten Hüte | beide alten Hüte | beiden alten Hüten | "
  "beider alten Hüte",
  "many": "viele alte Hüte | viele alte Hüte | vielen alten Hüten | "
  "vieler alter Hüte",
  "some": "einige alte Hüte | einige alte Hüte | einigen alten Hüten | "
  "einiger alter Hüte",
  "several": "mehrere alte Hüte | mehrere alte Hüte | "
  "mehreren alten Hüten | mehrerer alter Hüte",
}


def _word(words, text):
  return next(word for word in words if word.text == text)


_grammar = functools.cache(english_grammar.build)


def _determiner(symbol, text):
  (entry,) = _grammar().symbol(symbol).table[tuple(text.split())]
  return entry


def _phrase(determiner, noun, number, case, adjective="old"):
  quality = _word(lexicon.ADJECTIVES + lexicon.LIFELESS, adjective)
  tree = (
    "np",
    determiner,
    ("ap", None, quality, None),
    None,
    _word(lexicon.THINGS, noun),
    number,
    None,
    None,
  )
  return german_clauses.noun_phrase(lattice.Draw(lambda: 0.0), tree, case)


@pytest.mark.parametrize(
  ("symbol", "text", "table"),
  [
    ("DET", "the", DEFINITE),
    ("DET", "this", DIESER),
    ("DET.s", "every", JEDER),
    ("DET.s", "a", INDEFINITE),
    ("DET", "no", KEIN),
    ("DET", "her", IHR),
    ("BARE", "", BARE),
  ],
)
def test_article_adjective_noun(symbol, text, table):
  rows = [line.split(" | ") for line in table.strip().splitlines()]
  for case, row in zip(german.CASES, rows):
    nouns = [("hat", "s"), ("door", "s"), ("book", "s"), ("hat", "p")]
    for wanted, (noun, number) in zip(row, nouns):
      if symbol == "BARE":
        determiner = det.BARE
      elif symbol == "DET" and text == "this" and number == "p":
        determiner = _determiner("DET.p", "these")
      else:
        name = symbol if "." in symbol else f"DET.{number}"
        determiner = _determiner(name, text)
      assert _phrase(determiner, noun, number, case) == wanted


@pytest.mark.parametrize("text", PLURALS)
def test_plural_determiners(text):
  determiner = _determiner("DET.p", text)
  for case, wanted in zip(german.CASES, PLURALS[text].split(" | ")):
    assert _phrase(determiner, "hat", "p", case) == wanted


def test_adjective_stems():
  the = det.THE
  assert _phrase(the, "table", "s", "nom", "expensive") == "der teure Tisch"
  assert _phrase(the, "table", "s", "dat", "dark") == "dem dunklen Tisch"
  assert german.adjective("müd", "mixed", "nom", "m") == "müder"
  assert german.adjective("müde", "strong", "gen", "m") == "müden"


@pytest.mark.parametrize(
  ("spec", "wanted"),
  [
    # nom acc dat gen singular; nom acc dat gen plural
    (
      "Tisch m Tische",
      "Tisch Tisch Tisch Tisches Tische Tische Tischen Tische",
    ),
    (
      "Junge m Jungen w",
      "Junge Jungen Jungen Jungen Jungen Jungen Jungen Jungen",
    ),
    (
      "Herr m Herren w=Herrn",
      "Herr Herrn Herrn Herrn Herren Herren Herren Herren",
    ),
    ("Auto n Autos", "Auto Auto Auto Autos Autos Autos Autos Autos"),
    (
      "Fenster n -",
      "Fenster Fenster Fenster Fensters Fenster Fenster Fenstern Fenster",
    ),
    ("Frau f Frauen", "Frau Frau Frau Frau Frauen Frauen Frauen Frauen"),
    ("Haus n Häuser", "Haus Haus Haus Hauses Häuser Häuser Häusern Häuser"),
    ("Bus m Busse g=Busses", "Bus Bus Bus Busses Busse Busse Bussen Busse"),
    ("See m Seen", "See See See Sees Seen Seen Seen Seen"),
  ],
)
def test_noun_forms(spec, wanted):
  noun = german.noun(spec)
  forms = [noun.forms[case, number] for number in "sp" for case in german.CASES]
  assert forms == wanted.split()


def test_every_noun_of_the_lexicon():
  """Gender, genitive and plural of all things, as in a dictionary."""
  wanted = """
der Tisch -es Tische; der Stuhl -es Stühle; die Lampe - Lampen;
die Tür - Türen; das Fenster -s Fenster; das Buch -es Bücher;
der Brief -es Briefe; der Mantel -s Mäntel; das Hemd -es Hemden;
der Hut -es Hüte; die Tasche - Taschen; der Koffer -s Koffer;
der Schlüssel -s Schlüssel; das Messer -s Messer; der Löffel -s Löffel;
die Gabel - Gabeln; der Teller -s Teller; die Tasse - Tassen;
die Flasche - Flaschen; das Bild -es Bilder; der Spiegel -s Spiegel;
das Bett -es Betten; der Schrank -es Schränke; das Sofa -s Sofas;
die Couch - Couchs; der Teppich -s Teppiche; die Uhr - Uhren;
das Fahrrad -s Fahrräder;
das Rad -es Räder; das Auto -s Autos; der Wagen -s Wagen;
die Zeitung - Zeitungen; der Kuchen -s Kuchen; der Apfel -s Äpfel;
das Ei -s Eier; die Blume - Blumen; der Baum -es Bäume; der Stein -es Steine;
der Ring -es Ringe; der Ball -es Bälle; die Puppe - Puppen;
die Gitarre - Gitarren; die Kamera - Kameras;
der Regenschirm -s Regenschirme; der Schirm -es Schirme;
der Schuh -es Schuhe; das Kleid -es Kleider; die Jacke - Jacken;
der Korb -es Körbe; die Kiste - Kisten; die Schachtel - Schachteln;
der Topf -es Töpfe; die Kerze - Kerzen; die Fahne - Fahnen;
die Flagge - Flaggen; das Zelt -es Zelte; das Boot -es Boote;
die Glocke - Glocken; das Kissen -s Kissen; das Kopfkissen -s Kopfkissen;
die Trommel - Trommeln
"""
  articles = {"m": "der", "f": "die", "n": "das"}
  found = []
  for word in lexicon.THINGS:
    for noun in word.german.values:
      nominative = noun.forms["nom", "s"]
      ending = noun.forms["gen", "s"].removeprefix(nominative)
      plural = noun.forms["nom", "p"]
      found.append(f"{articles[noun.gender]} {nominative} -{ending} {plural}")
  assert found == [" ".join(entry.split()) for entry in wanted.split(";")]


def test_compounds_take_the_forms_of_their_head():
  noun = german.noun("Kleid n Kleider").behind("Sonntags")
  assert noun.forms["dat", "p"] == "Sonntagskleidern"
  assert noun.gender == "n"


@pytest.mark.parametrize(
  ("infinitive", "i", "he", "perfect", "zu"),
  [
    ("anrufen", "rufe an", "ruft an", "hat angerufen", "anzurufen"),
    (
      "einschlafen",
      "schlafe ein",
      "schläft ein",
      "ist eingeschlafen",
      "einzuschlafen",
    ),
    ("warten", "warte", "wartet", "hat gewartet", "zu warten"),
    ("zeichnen", "zeichne", "zeichnet", "hat gezeichnet", "zu zeichnen"),
    ("bewundern", "bewundere", "bewundert", "hat bewundert", "zu bewundern"),
    ("wegwerfen", "werfe weg", "wirft weg", "hat weggeworfen", "wegzuwerfen"),
    ("behalten", "behalte", "behält", "hat behalten", "zu behalten"),
    ("wissen", "weiß", "weiß", "hat gewusst", "zu wissen"),
    ("einladen", "lade ein", "lädt ein", "hat eingeladen", "einzuladen"),
    ("reisen", "reise", "reist", "ist gereist", "zu reisen"),
    ("anbieten", "biete an", "bietet an", "hat angeboten", "anzubieten"),
    ("treffen", "treffe", "trifft", "hat getroffen", "zu treffen"),
    ("essen", "esse", "isst", "hat gegessen", "zu essen"),
    ("reparieren", "repariere", "repariert", "hat repariert", "zu reparieren"),
    (
      "stattfinden",
      "finde statt",
      "findet statt",
      "hat stattgefunden",
      "stattzufinden",
    ),
    ("folgen", "folge", "folgt", "ist gefolgt", "zu folgen"),
    ("laufen", "laufe", "läuft", "ist gelaufen", "zu laufen"),
    ("vergessen", "vergesse", "vergisst", "hat vergessen", "zu vergessen"),
  ],
)
def test_verb_forms(infinitive, i, he, perfect, zu):
  verbs = {
    verb.infinitive: verb
    for name in dir(lexicon)
    if name.endswith("_VERBS")
    for word in getattr(lexicon, name)
    for verb in word.german.values
  }
  verb = verbs[infinitive]
  auxiliary = {"haben": "hat", "sein": "ist"}[verb.auxiliary]
  assert f"{verb.finite['1s']} {verb.prefix}".strip() == i
  assert f"{verb.finite['3s']} {verb.prefix}".strip() == he
  assert f"{auxiliary} {verb.participle}" == perfect
  assert verb.zu == zu


NUMBERS = """
0 null; 1 eins; 2 zwei; 7 sieben; 10 zehn; 11 elf; 12 zwölf; 13 dreizehn;
16 sechzehn; 17 siebzehn; 18 achtzehn; 20 zwanzig; 21 einundzwanzig;
30 dreißig; 31 einunddreißig; 36 sechsunddreißig; 47 siebenundvierzig;
60 sechzig; 66 sechsundsechzig; 70 siebzig; 77 siebenundsiebzig;
80 achtzig; 99 neunundneunzig; 100 hundert; 101 hunderteins;
102 hundertzwei; 111 hundertelf; 116 hundertsechzehn;
117 hundertsiebzehn; 121 hunderteinundzwanzig; 200 zweihundert;
201 zweihunderteins; 666 sechshundertsechsundsechzig;
777 siebenhundertsiebenundsiebzig; 1000 tausend; 1001 tausendeins;
1011 tausendelf; 1100 tausendeinhundert; 1101 tausendeinhunderteins;
1234 tausendzweihundertvierunddreißig; 1616 tausendsechshundertsechzehn;
1999 tausendneunhundertneunundneunzig; 2000 zweitausend;
2017 zweitausendsiebzehn; 9999 neuntausendneunhundertneunundneunzig
"""


def test_numbers():
  for entry in NUMBERS.split(";"):
    value, word = entry.split()
    assert german.number(int(value)) == word
  assert german.number(100, long=True) == "einhundert"
  assert german.number(1116, long=True) == "eintausendeinhundertsechzehn"
  for wrong in (-1, 10_000):
    with pytest.raises(ValueError, match="0 to 9,999"):
      german.number(wrong)


_UNITS = "ein zwei drei vier fünf sechs sieben acht neun"


def _value(word: str) -> int:
  """An independent reader of number words."""
  total = 0
  for name, size in (("tausend", 1_000), ("hundert", 100)):
    head, found, rest = word.partition(name)
    if found:
      total += size * (_value(head) if head else 1)
      word = rest
  units = _UNITS.split()
  teens = {"zehn": 10, "elf": 11, "zwölf": 12, "sechzehn": 16, "siebzehn": 17}
  tens = dict(zwanzig=20, dreißig=30, vierzig=40, fünfzig=50, sechzig=60)
  tens |= dict(siebzig=70, achtzig=80, neunzig=90)
  if not word:
    return total
  if word in teens:
    return total + teens[word]
  if word in tens:
    return total + tens[word]
  if word.endswith("zehn"):
    return total + 10 + 1 + units.index(word.removesuffix("zehn"))
  if "und" in word:
    unit, _, ten = word.partition("und")
    return total + 1 + units.index(unit) + tens[ten]
  return total + 1 + units.index({"eins": "ein"}.get(word, word))


def test_all_numbers_read_back():
  for value in range(1, 10_000):
    assert _value(german.number(value)) == value
    assert _value(german.number(value, long=True)) == value


def test_years():
  wanted = {
    1100: "elfhundert",
    1201: "zwölfhunderteins",
    1517: "fünfzehnhundertsiebzehn",
    1700: "siebzehnhundert",
    1945: "neunzehnhundertfünfundvierzig",
  }
  assert {value: german.year(value) for value in wanted} == wanted


ORDINALS = """
erst zweit dritt viert fünft sechst siebt acht neunt zehnt elft zwölft
dreizehnt vierzehnt fünfzehnt sechzehnt siebzehnt achtzehnt neunzehnt
zwanzigst einundzwanzigst zweiundzwanzigst dreiundzwanzigst
vierundzwanzigst fünfundzwanzigst sechsundzwanzigst siebenundzwanzigst
achtundzwanzigst neunundzwanzigst dreißigst einunddreißigst
"""


def test_ordinals():
  assert [german.ordinal(n) for n in range(1, 32)] == ORDINALS.split()


def test_times_of_day():
  wanted = {
    (3, 0): ["drei Uhr", "drei"],
    (1, 0): ["ein Uhr", "eins"],
    (3, 5): ["fünf nach drei"],
    (3, 10): ["zehn nach drei"],
    (3, 15): ["Viertel nach drei"],
    (3, 20): ["zwanzig nach drei"],
    (3, 25): ["fünf vor halb vier"],
    (3, 30): ["halb vier"],
    (12, 30): ["halb eins"],
    (3, 35): ["fünf nach halb vier"],
    (3, 40): ["zwanzig vor vier"],
    (3, 45): ["Viertel vor vier"],
    (3, 50): ["zehn vor vier"],
    (12, 55): ["fünf vor eins"],
  }
  for (hour, minute), texts in wanted.items():
    assert [text for _, text in german.clock(hour, minute)] == texts


def test_contractions():
  wanted = {
    "in dem": "im",
    "in das": "ins",
    "an dem": "am",
    "zu dem": "zum",
    "zu der": "zur",
    "von dem": "vom",
    "in der": "in der",
    "auf dem": "auf dem",
    "von der": "von der",
    "hinter dem": "hinter dem",
  }
  for both, text in wanted.items():
    assert german.contract(*both.split()) == text


def test_relative_pronouns():
  wanted = """
der die das die
den die das die
dem der dem denen
dessen deren dessen deren
"""
  for case, row in zip(german.CASES, wanted.strip().splitlines()):
    assert [german.RELATIVE[case, c] for c in "mfnp"] == row.split()
