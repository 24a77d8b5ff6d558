"""Checks that the vocabulary fits the grammar, without unknown pieces."""

import numpy as np

from speccascade.tasks import generated
from speccascade.tasks.generated import task_pieces
from speccascade.text import pieces


def test_ids_and_size():
  processor = task_pieces.load()
  assert len(processor) == task_pieces.SIZE
  assert (processor.pad_id(), processor.eos_id()) == (0, 1)
  assert (processor.unk_id(), processor.bos_id()) == (2, -1)


def test_the_file_is_of_this_grammar(tmp_path):
  """Rounding on another machine may cost a piece or two."""
  path = tmp_path / "again.model"
  path.write_bytes(task_pieces.train())
  again = type(task_pieces.load())(model_file=str(path))
  pieces = (
    {processor.id_to_piece(i) for i in range(task_pieces.SIZE)}
    for processor in (task_pieces.load(), again)
  )
  assert len(set.intersection(*pieces)) > 0.99 * task_pieces.SIZE


def test_no_unknown_pieces_and_all_text_comes_back():
  """Other pairs than those it was trained from, of every split."""
  texts = [
    text
    for split, start in (("train", 900_000), ("validation", 0), ("test", 0))
    for i in range(300)
    for text in generated.pair(split, start + i)
  ]
  rows = generated.encode(texts)
  for row in rows:
    assert row.dtype == np.int32
    assert row[-1] == pieces.EOS
    special = [pieces.PAD, pieces.EOS, pieces.UNK]
    assert not np.isin(row[:-1], special).any()
  decode = task_pieces.load().decode
  assert [decode(row[:-1].tolist()) for row in rows] == texts
  lengths = np.array([len(row) for row in rows])
  assert 15 < lengths.mean() < 30
  assert (lengths <= 40).mean() > 0.95
