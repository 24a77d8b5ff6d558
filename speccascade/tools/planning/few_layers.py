"""Compiles decodes whose weights are shapes, with all layers or with few."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
import dataclasses

import jax
import jax.numpy as jnp

from speccascade.decoding import row_keys
from speccascade.generate.pair.pairs import PairSpec
from speccascade.generate.points.point import Point
from speccascade.generate.run import Run
from speccascade.models import architectures, parameters
from speccascade.models.parameters import Config
from speccascade.models.sharding.partitioning import Layout
from speccascade.tasks.inputs import Inputs
from speccascade.tools.planning import decoding_plan, hlo


def shape_model(config: Config, layout: Layout, kernel_dtype: str):
  """Returns a language model whose parameters are shapes without numbers.

  Args:
    config: the architecture.
    layout: where the parameters lie.
    kernel_dtype: dtype of the kernels, as in `T5LM.create`.

  Raises:
    ValueError: kernels of this dtype do not lie on a mesh.
  """
  parameters.check_one_device(kernel_dtype)
  leaves = {
    name: jax.ShapeDtypeStruct(
      parameter.shape,
      parameters.storage(config, name, kernel_dtype).dtype,
      sharding=layout.sharding(*parameter.axes),
    )
    for name, parameter in parameters.describe(config).items()
  }
  kind = architectures.row_of(config).model
  return kind(parameters.tree(leaves), parameters.network(config), layout)


def compile_decode(
  models: Mapping[str, Config],
  layout: Layout,
  pair: PairSpec,
  inputs: Inputs,
  point: Point,
  run: Run,
) -> jax.stages.Compiled:
  """Returns the program of a decode, whose weights are shapes.

  Besides the first two, the arguments are settings of `infer.infer`.

  Args:
    models: architectures by role, as `decoding_plan.architectures` gives them.
    layout: where the verifier lies, on devices that may only compile.
    pair: where a drafter lies, and the dtype of kernels.
    inputs: the length of inputs.
    point: the method and its settings.
    run: rows of a batch, and the longest output.
  """
  lms = {}
  for role, config in models.items():
    is_whole = role != "verifier" and pair.mesh.drafter == "whole"
    place = layout.whole() if is_whole else layout
    place.check(config, role.upper())
    kernel_dtype = decoding_plan.kernel_dtype(pair, role)
    lms[role] = shape_model(config, place, kernel_dtype)
  verifier = lms.pop("verifier", None)
  drafters = tuple(lms.values())
  drafter = drafters[0] if len(drafters) == 1 else drafters or None
  shape = (run.batch_size, inputs.task_feature_lengths["inputs"])
  rows = jax.eval_shape(
    lambda: (jnp.ones(shape, jnp.int32), row_keys(0, 0, jnp.arange(shape[0])))
  )
  place = layout.rows_sharding(run.batch_size)
  rows = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place) for x in rows]
  decoder = point.decoder(max_decode_len=run.max_decode_len, eos_id=1)
  # Phases of alpha add next to nothing to a program.
  alpha = point.with_parameters(point.alpha)
  lowered = decoder.lower(drafter, verifier, *rows, alpha, point.sampling)
  return lowered.compile()


def with_layers(config: Config, num: int) -> Config:
  """Returns an architecture whose stacks have so many layers."""
  counts = dict.fromkeys(parameters.layer_counts(config), num)
  return dataclasses.replace(config, **counts)


def extrapolate(
  models: Mapping[str, Config],
  grown: Iterable[str],
  count: Callable[[dict[str, Config]], Mapping[str, Counter]],
) -> dict[str, Counter]:
  """Returns the numbers of a decode from programs with one and two layers.

  All layers of a model are alike: with 5 operations for one layer and 8 for
  two, a layer has 3 and the rest of the program 2, so that 12 layers have 5 +
  11 * 3 = 38.

  Args:
    models: architectures by role.
    grown: the roles whose layers change the numbers.
    count: a function from such architectures to {ONCE: numbers, ROUND:
      numbers}, or one of the two.
  """
  shallow = {role: with_layers(each, 1) for role, each in models.items()}
  first = count(shallow)
  total = {when: Counter(numbers) for when, numbers in first.items()}
  for role in grown:
    deeper = count(shallow | {role: with_layers(models[role], 2)})
    # An encoder, where there is one, runs once, and a decoder in each round.
    layers = [*parameters.layer_counts(models[role]).values()]
    num_layers = {hlo.ONCE: layers[0], hlo.ROUND: layers[-1]}
    for when, numbers in deeper.items():
      for name in dict.fromkeys([*numbers, *first[when]]):
        layer = numbers[name] - first[when][name]
        total[when][name] += (num_layers[when] - 1) * layer
  return {when: +numbers for when, numbers in total.items()}
