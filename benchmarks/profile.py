"""Where a block's time goes: operations by step of a round, and by kind.

  python -m benchmarks.profile --pair out/quickstart --method spec_decode

Decodes one random source by a pair as the quick start leaves it, some times by
the clock and once under JAX's profiler. A step is a `jax.named_scope` of the
loop, and has the operations whose result is its. The profiler lengthens each
operation by about a microsecond: trust counts and shares, and the clock for the
sum. On a GPU an operation is a launch, and the models' passes are XLA's.
"""

import collections
import gzip
import json
import pathlib
import re
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import built_in
from benchmarks.compiled.rounds import step_of
from speccascade.checkpoints import restore
from speccascade.decoding.laws import draws, sampling
from speccascade.decoding.programs import decoders
from speccascade.models import T5LM
from speccascade.study.measuring.environment import device_name
from speccascade.tools.planning import hlo

CONTROL = ("while", "conditional", "call")  # what is in them is counted


def operations(text: str) -> dict[str, tuple[str, str]]:
  """Returns (step, kind) of each instruction of a compiled program's text."""
  known = {}
  for computation in hlo.Program(text).computations.values():
    for each in computation.values():
      if each.opcode in CONTROL:
        continue
      step = step_of(each)
      if step == "rest":
        is_inside = "body" in each.path.split("/")
        step = "rest of the loop" if is_inside else "not named, or outside"
      target = re.search(r'custom_call_target="([^"]*)"', each.line)
      kind = target[1] if target else re.sub(r"[.\d]+$", "", each.name)
      known[each.name] = step, kind
  return known


def measure(folder: str, module: str, known: dict) -> dict:
  """Returns [number, microseconds] by (step, kind) of what a trace holds."""
  [file] = pathlib.Path(folder).glob("plugins/profile/*/*.trace.json.gz")
  events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
  found = collections.defaultdict(lambda: np.zeros(2))
  for event in events:
    about = event.get("args", {})
    operation = about.get("hlo_op")
    if about.get("hlo_module") == module and operation in known:
      found[known[operation]] += 1, event["dur"]
  return found


def table(title: str, found: dict, part: int, blocks: int, num: int) -> str:
  """Returns a table of the `num` dearest steps (part 0) or kinds (part 1)."""
  sums = collections.defaultdict(lambda: np.zeros(2))
  for key, values in found.items():
    sums[key[part]] += values / blocks
  rows = sorted(sums.items(), key=lambda item: -item[1][1])
  total = sum(sums.values())
  lines = [f"| {title} | operations a block | us a block |"]
  lines += ["| --- | ---: | ---: |"]
  for name, (count, us) in [*rows[:num], ("all", total)]:
    lines += [f"| {name} | {count:.1f} | {us:.1f} |"]
  return "\n".join(lines)


def main():
  parser = built_in.parser("profile", __doc__)
  add = parser.add_argument
  add("--method", default="spec_decode")
  add("--alpha", type=float, help="None takes the method's default")
  add("--gamma", type=int, default=5)
  add("--tree", type=int, nargs="*", help="children of a draft at each depth")
  add("--drawing", help="how the drafts of a tree are chosen")
  add("--verification", default="token")
  add("--temperature", type=float, default=1.0)
  add("--max_decode_len", type=int, default=built_in.MAX_DECODE_LEN)
  add("--rows", type=int, default=1, help="of the batch")
  add("--repeats", type=int, default=20)
  add("--kinds", type=int, default=15, help="how many to print")
  args = parser.parse_args()
  models = {}
  for name in ("small", "large"):
    checkpoint = restore.load(args.pair / name)
    models[name] = T5LM.create(
      checkpoint.config, checkpoint.params, kernel_dtype="float32"
    )
  decoder = decoders.decoder(
    args.method,
    gamma=len(args.tree) if args.tree else args.gamma,
    tree=tuple(args.tree) if args.tree else None,
    drawing=args.drawing,
    verification=args.verification,
    max_decode_len=args.max_decode_len,
    eos_id=-1,
  )
  method, how = decoder.method, sampling.Sampling.create(args.temperature)
  alpha = method.default_alpha if args.alpha is None else args.alpha
  needs = method.execution
  drafter = models["small"] if needs.needs_drafter else None
  verifier = models["large"] if needs.needs_verifier else None
  decoder.check(drafter, verifier, alpha, how)
  vocab_size = models["large"].vocab_size
  rng = np.random.default_rng(0)
  inputs = (
    drafter,
    verifier,
    jnp.asarray(rng.integers(3, vocab_size, (args.rows, 24)), jnp.int32),
    draws.row_keys(0, 0, jnp.arange(args.rows)),
    jnp.asarray(needs.host_alpha(alpha), jnp.float32),
    jnp.float32(0),
    how,
  )
  program, index = decoder.program(how.greedy)
  begin = time.perf_counter()
  run = jax.jit(program.run).lower(*inputs, jnp.int32(index)).compile()
  compile_s = time.perf_counter() - begin
  call = lambda: jax.block_until_ready(run(*inputs, jnp.int32(index)))
  decoded, times = call(), []
  for _ in range(args.repeats):
    begin = time.perf_counter()
    call()
    times.append(time.perf_counter() - begin)
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      call()
    text = run.as_text()
    module = re.match(r"HloModule ([\w.\-]+)", text).group(1)
    found = measure(folder, module, operations(text))
  # A method without blocks makes one of each token.
  blocks = int(decoded.stats.num_blocks.max()) or int(decoded.lengths.max())
  least, middle = 1e6 * min(times), 1e6 * statistics.median(times)
  print(f"{method.label}, T {args.temperature:g}, {device_name()}")
  print(f"compiled in {compile_s:.1f} s, {blocks} blocks; wall-clock, with")
  print(
    f"encoders, {middle / blocks:.0f} us a block, at best {least / blocks:.0f}"
  )
  print(f"\n{table('step', found, 0, blocks, len(found))}")
  print(f"\n{table('kind', found, 1, blocks, args.kinds)}")


if __name__ == "__main__":
  main()
