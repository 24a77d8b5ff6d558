"""A pair of models in a program or a notebook.

`load_pair` reads a pair, and `built_in_pair` the package's own pair. A pair has
the methods `generate` (module generation), `compare` (comparison), `stream` and
`chat` (text_stream and conversation in `generate/turns/`).
"""

from speccascade.generate.api.generation import Generation
from speccascade.generate.api.loading import built_in_pair, load_pair
from speccascade.generate.api.pair import Pair
from speccascade.generate.pair.pair_checks import PairError
from speccascade.generate.turns.conversation import Chat
from speccascade.generate.turns.text_stream import TextStream

__all__ = [
  "Chat",
  "Generation",
  "Pair",
  "PairError",
  "TextStream",
  "built_in_pair",
  "load_pair",
]
