"""Vocabularies for tasks of seqio: with the operations of TensorFlow."""

import numpy as np

from speccascade.tasks._tf import seqio, tf
from speccascade.text import byte_vocabulary
from speccascade.text.byte_vocabulary import ByteVocabulary
from speccascade.text.sentence_pieces import T5_MODEL, SentencePieces
from speccascade.text.tokenizer import TokenizerVocabulary


class Vocabulary(SentencePieces, seqio.SentencePieceVocabulary):
  """A SentencePiece model for a task; see `SentencePieces`."""

  # seqio's class loads a file and counts sentinels when it is made. This class
  # does both when the vocabulary is first used.
  def __init__(self, path: str = T5_MODEL, extra_ids: int | None = None):
    SentencePieces.__init__(self, path, extra_ids)
    self._use_fast_tokenizer = False  # read by seqio's `tf_tokenizer`

  # seqio's own copies leave out `_model`, which is not here.
  def __getstate__(self):
    return dict(self.__dict__)

  def __setstate__(self, state):
    self.__dict__.update(state)


class _TaskTokenizer(TokenizerVocabulary, seqio.Vocabulary):
  """A tokenizer of Hugging Face for a task; see `TokenizerVocabulary`."""

  # These are abstract in seqio's class.
  _encode = TokenizerVocabulary.encode
  _decode = TokenizerVocabulary.decode
  _base_vocab_size = TokenizerVocabulary.vocab_size

  def _encode_tf(self, s):
    def encode(text):
      # Eager TensorFlow passes an array, a graph passes bytes.
      text = text if isinstance(text, bytes) else text.item()
      return np.asarray(self.encode(tf.compat.as_text(text)), np.int32)

    ids = tf.numpy_function(encode, [s], tf.int32, stateful=False)
    return tf.ensure_shape(ids, [None])

  def _decode_tf(self, ids):
    text = tf.numpy_function(
      lambda row: self.text(row).encode(), [ids], tf.string, stateful=False
    )
    return tf.ensure_shape(text, [])


class _TaskBytes(ByteVocabulary, seqio.ByteVocabulary):
  """The bytes of UTF-8 for a task; see `ByteVocabulary`."""

  def __init__(self, path: str = byte_vocabulary.NAME, extra_ids: int = 0):
    seqio.ByteVocabulary.__init__(self, extra_ids)
    self.path = path


def named(path: str, extra_ids: int | None = None):
  """Returns the vocabulary of a name or a path, whose file is read later.

  Args:
    path: path of a SentencePiece model, or "bytes".
    extra_ids: as `vocabularies.load` takes them.
  """
  if path == byte_vocabulary.NAME:
    return _TaskBytes(extra_ids=extra_ids or 0)
  return Vocabulary(path, extra_ids)


def of(vocabulary):
  """Returns a vocabulary that a task of seqio can use.

  Args:
    vocabulary: a vocabulary of this package, which may know nothing of
      TensorFlow, or any vocabulary of seqio, which is returned as it is.
  """
  kind = type(vocabulary)
  if kind is SentencePieces:
    return Vocabulary(vocabulary.path, vocabulary.extra_ids)
  if kind is TokenizerVocabulary:
    return _TaskTokenizer(vocabulary.path)
  if kind is ByteVocabulary:
    return _TaskBytes(vocabulary.path, vocabulary.extra_ids)
  return vocabulary
