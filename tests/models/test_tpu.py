"""Programs compile for a TPU, by the compiler alone; blocks have no loop."""

from tests import tpu_compiler

pytestmark = tpu_compiler.NEEDED


def test_blocks_of_many_rows_have_no_loop():
  assert tpu_compiler.said("tpu_programs", "blocks", 32) == [[]]
