"""Imports TensorFlow and seqio for this package, without their messages."""

from speccascade.cli import quiet

tf = quiet.import_tensorflow()
with quiet.native_logs():
  import seqio

__all__ = ["seqio", "tf"]
