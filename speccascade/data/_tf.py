"""TensorFlow and seqio for the modules of this package, loaded in silence."""

from speccascade.cli import quiet

tf = quiet.import_tensorflow()
with quiet.native_logs():
  import seqio

__all__ = ["seqio", "tf"]
