"""Imports TensorFlow and seqio for this package, without their messages."""

from speccascade.cli import quiet
from speccascade.runtime.standard_error import native_logs

tf = quiet.import_tensorflow()
with native_logs():
  import seqio

__all__ = ["seqio", "tf"]
