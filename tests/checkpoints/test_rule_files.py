"""Files of rule parameters: round trips, and files that are refused."""

import jax
import numpy as np
import pytest

from speccascade.checkpoints import rule_files
from speccascade.decoding.laws import learned


def parameters(seed=0):
  """Returns drawn parameters of every kind."""
  rng = np.random.default_rng(seed)
  return {
    name: jax.tree.map(
      lambda leaf: rng.normal(size=leaf.shape).astype(np.float32),
      kind.plug_in(),
    )
    for name, kind in learned.KINDS.items()
  }


def test_a_file_gives_back_what_was_written(tmp_path):
  path, wanted = tmp_path / "rule.npz", parameters()
  rule_files.write(path, wanted, {"task": "a"})
  found = rule_files.read(path)
  assert found.about == {"task": "a"}
  assert found.parameters.keys() == wanted.keys()
  jax.tree.map(np.testing.assert_array_equal, dict(found.parameters), wanted)
  # Another content under the same name is read again, and has another digest.
  rule_files.write(path, {"heads": parameters(1)["heads"]}, {})
  other = rule_files.read(path)
  assert [*other.parameters] == ["heads"]
  assert other.digest != found.digest
  assert len(found.digest) == 12


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda a: a.pop("heads/out"), "no array heads/out; fit"),
    (
      lambda a: a.update({"mixture/bias": np.zeros(3, np.float32)}),
      r"mixture/bias of shape \[3\], .*\[16\]",
    ),
    (
      lambda a: a.update({"heads/shift": np.float32([np.nan, 0])}),
      "heads/shift that are not finite",
    ),
    (lambda a: a.clear(), "no parameters of heads, mixture"),
  ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, change, message):
  path = tmp_path / "rule.npz"
  rule_files.write(path, parameters(), {})
  arrays = dict(np.load(path))
  change(arrays)
  np.savez(path, **arrays)
  with pytest.raises(ValueError, match=message) as caught:
    rule_files.read(path)
  assert str(caught.value).startswith("RULE_PARAMETERS")
  assert "\n" not in str(caught.value)


def test_a_missing_or_damaged_file_is_one_line(tmp_path):
  with pytest.raises(
    ValueError, match=r"No such file.*speccascade\.learned_ru"
  ):
    rule_files.read(tmp_path / "none.npz")
  (tmp_path / "rule.npz").write_bytes(b"no zip")
  with pytest.raises(ValueError, match=r"RULE_PARAMETERS: .*rule\.npz"):
    rule_files.read(tmp_path / "rule.npz")
