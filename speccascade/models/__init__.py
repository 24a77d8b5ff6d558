"""Language models behind the decoding door: T5."""

from speccascade.models.t5.config import T5Config
from speccascade.models.t5.network import Transformer
from speccascade.models.t5_lm import T5LM

__all__ = ["T5LM", "T5Config", "Transformer"]
