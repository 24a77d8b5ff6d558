"""Times configurations of the products of a layer, and writes the best.

`speccascade/native/gpu/configurations.json` has what replaces a kernel's own
arithmetic. `write` makes such a file, with the rows of this device.
"""

from collections.abc import Callable
import dataclasses
import functools
import importlib
import json
import math
import pathlib
from typing import Any

import jax

from benchmarks.gpu_battery import models, programs
from benchmarks.gpu_battery.ahead import Ahead
from benchmarks.gpu_battery.records import Records, ratio_spread, spread
from speccascade.models import T5Config
from speccascade.native.gpu import kernel_tables, row_products
from speccascade.runtime import files

PART = "kernels"
# A configuration is written if it takes at most this share of the time.
WORTH = 0.98
# Kernels of one call: no cache holds them all, so memory is read each time.
_BYTES, _MOST_KERNELS = 128 << 20, 48


@dataclasses.dataclass(frozen=True)
class Product:
  """A product of a layer.

  Attributes:
    num_in: inputs.
    widths: outputs of each kernel.
    normed: whether a norm is before it; else a residual is added after it.
    activations: after it, as in `RowProducts.reference`.
  """

  num_in: int
  widths: tuple[int, ...]
  normed: bool
  activations: tuple[str, ...] = ()

  def arrays(self) -> tuple[jax.Array, list, list]:
    """Returns shapes: a row, the kernels of each call, and what is around."""

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
      return jax.ShapeDtypeStruct(sizes, models.DTYPE)

    kernels = tuple(shape(self.num_in, width) for width in self.widths)
    num_bytes = sum(2 * math.prod(each.shape) for each in kernels)
    num = max(1, min(_MOST_KERNELS, _BYTES // num_bytes))
    around = shape(self.num_in) if self.normed else shape(1, self.widths[0])
    return shape(1, self.num_in), [kernels] * num, around

  def run(self, implementation: str, configuration: Any) -> Callable:
    """Returns the program of all calls, one after the other."""

    def program(x, kernels, around):
      options = {"norm" if self.normed else "residual": around}
      results = []
      for each in kernels:
        found = row_products(
          x,
          each,
          activations=self.activations,
          implementation=implementation,
          configuration=configuration,
          **options,
        )
        x, found = jax.lax.optimization_barrier((x, found))
        results.append(found)
      return results

    return program

  @property
  def key(self) -> str:
    """The sizes by which `configurations.json` knows it."""
    x, [kernels, *_], around = self.arrays()
    return row_products.key(
      x,
      kernels,
      norm=around if self.normed else None,
      activations=self.activations,
    )


def products(config: T5Config) -> list[Product]:
  """Returns the different products of a T5's decoder layer."""
  heads = config.num_heads * config.head_dim
  gates = tuple(config.mlp_activations)
  return [
    Product(config.emb_dim, (heads,) * 3, True),
    Product(heads, (config.emb_dim,), False),
    Product(config.emb_dim, (heads,), True),
    Product(config.emb_dim, (config.mlp_dim,) * len(gates), True, gates),
    Product(config.mlp_dim, (config.emb_dim,), False),
  ]


def candidates(product: Product) -> dict[str, Any]:
  """Returns configurations by what they change in the worked out one.

  The first, "{}", is the worked out one.
  """
  module = importlib.import_module(row_products.modules["triton"])
  x, [kernels, *_], around = product.arrays()
  norm = around if product.normed else None
  plain = module.configuration(x, kernels, norm=norm)
  changes: list[dict[str, int]] = [{}, {"stages": 3}]
  changes += [{"stages": plain.stages + 2}, {"warps": 2}, {"warps": 8}]
  changes += [{"columns": 2 * plain.columns}]
  changed = {
    json.dumps(each): dataclasses.replace(plain, **each) for each in changes
  }
  return {
    name: each
    for name, each in changed.items()
    if name == "{}" or each != plain
  }


class Tuning:
  """The configurations that are timed.

  Args:
    ahead: where their programs are added.
    configs: the T5s whose layers are timed.
  """

  def __init__(self, ahead: Ahead, configs: list[T5Config]):
    self.ahead = ahead
    is_gpu = jax.default_backend() == "gpu"
    self.kernel = "triton" if is_gpu else "interpreted"
    found = [each for config in configs for each in products(config)]
    self.products = {each.key: each for each in found}
    for key, product in self.products.items():
      ahead.add(f"{key}, xla", product.run("xla", None), *product.arrays())
      for change, how in candidates(product).items():
        run = product.run(self.kernel, how)
        ahead.add(f"{key}, {change}", run, *product.arrays())

  def measure(self, records: Records, rounds: int) -> dict[str, dict]:
    """Adds a row for each; returns what to change, by the product's sizes."""
    better = {}
    for key, product in self.products.items():
      x, kernels, around = product.arrays()
      filled = jax.tree.map(_filled, (x, kernels, around))
      names = [f"{key}, {name}" for name in ("xla", *candidates(product))]
      calls = {
        name.removeprefix(f"{key}, "): functools.partial(run, *filled)
        for name, run in self.ahead.ready(*names).items()
      }
      times = programs.in_turn(calls, rounds)
      plain = times.get("{}")
      for name, each in times.items():
        records.add(
          PART,
          "Products, by configuration",
          sizes=key,
          changed=name,
          us_each=[1e6 * x / len(kernels) for x in spread(each)],
          over_worked_out=ratio_spread(each, plain) if plain else "",
        )
      del times["xla"]
      best = min(times, key=lambda name: spread(times[name])[0], default="{}")
      if plain and spread(times[best])[0] <= WORTH * spread(plain)[0]:
        better[key] = json.loads(best)
    return better


def _filled(shape: jax.ShapeDtypeStruct) -> jax.Array:
  """Returns an array of its own, of ones."""
  return jax.numpy.ones(shape.shape, shape.dtype)


def write(folder: pathlib.Path, device: str, better: dict[str, dict]):
  """Writes the package's table with the rows of a device in place of its own.

  Args:
    folder: where the file goes.
    device: the kind of the device.
    better: what to change, by the sizes of products.
  """
  table = dict(kernel_tables.read(kernel_tables.CONFIGURATIONS))
  table[device] = dict(table.get(device, {}))
  table[device][f"{row_products.name} triton"] = better
  text = json.dumps(table, indent=2, sort_keys=True) + "\n"
  files.write_whole(folder / kernel_tables.CONFIGURATIONS, text)
