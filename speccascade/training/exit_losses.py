"""What an early exit learns: the next tokens, as a model of its own.

The exit reads a batch as the language model of the verifier's first layers and
of its own. Only its own layers and its norm have a gradient.
"""

import dataclasses
from typing import cast

from speccascade.models.taught_exit import ExitNetwork, merged
from speccascade.training.lesson import Reading


def of_whole(reading: Reading) -> Reading:
  """Returns a reading of an exit as one of the language model that it is.

  Args:
    reading: the exit, its own parameters, and its verifier as the teacher.
  """
  module = cast(ExitNetwork, reading.module)
  verifier = reading.teacher
  assert verifier is not None
  params = merged(module.config, verifier.params, reading.params)
  return dataclasses.replace(reading, module=module.network(), params=params)
