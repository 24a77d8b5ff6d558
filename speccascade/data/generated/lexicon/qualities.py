"""Adjectives and adverbs."""

from speccascade.data.generated.lexicon.words import (
  Word,
  read_choice,
  read_lines,
)


def _adjectives(table: str) -> list[Word]:
  """Lines `old: alt/älter`: predicative[, attributive stem][/comparative]."""

  def build(spec: str) -> tuple[str, str, str]:
    forms, _, comparative = spec.partition("/")
    predicative, _, stem = forms.partition(",")
    stem = stem or predicative
    return predicative, stem, comparative or stem.removesuffix("e") + "er"

  words = []
  for forms, renderings in read_lines(table):
    text, _, comparative = forms.partition("/")
    words.append(
      Word(text, read_choice(renderings, build), {"er": comparative})
    )
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
  Word(text, read_choice(renderings))
  for text, renderings in read_lines("""
very: sehr
quite: ziemlich | recht
extremely: äußerst | extrem
""")
]

# How often and how likely: for every verb, "be" too.
FREQUENCY = [
  Word(text, read_choice(renderings))
  for text, renderings in read_lines("""
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
  Word(text, read_choice(renderings))
  for text, renderings in read_lines("""
quickly: schnell | rasch
secretly: heimlich
gladly: gern | gerne
suddenly: plötzlich | auf einmal
finally: endlich | schließlich
quietly: leise
immediately: sofort | umgehend | unverzüglich
""")
]
