#!/usr/bin/env bash
# Format, lint, types, doctests, tests. Fresh machine: makes .venv and installs first.
#
#   bash launch/test.sh --quick    under two minutes: format, lint, types, the
#                                  law of each execution, the README
#   bash launch/test.sh            what every change must pass
#   bash launch/test.sh --nightly  a sixth of the large samples, another each day
#   bash launch/test.sh --nightly --share 1/1   all of them
#   bash launch/test.sh ... ARGS   further arguments go to pytest
#
# Programs that one test compiles are read by the others, from a folder that lasts
# as long as the run. With JAX_COMPILATION_CACHE_DIR=FOLDER they are kept in FOLDER,
# and a second run takes a fraction of the time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

# What --quick runs. pytest collects these files alone.
QUICK=(tests/decoding/test_execution_laws.py tests/test_readme.py)

part=all
case "${1:-}" in
  --help | -h) head_of test.sh && exit ;;
  --quick | --nightly) part="${1#--}" && shift ;;
esac

environment dev

# Tests run on the CPU, one thread a worker, two workers where there are cores.
export JAX_PLATFORMS=cpu CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=3
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NPROC=1
# Compiling takes most of the time. The workers share the cores already, so that a
# program is compiled in one piece.
export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false \
--xla_cpu_parallel_codegen_split_count=1 ${XLA_FLAGS:-}"
# XLA's emitters of fusions would take twice as long. (tests/conftest.py leaves out
# LLVM's optimisations, too.) A jaxlib that has no other ones ends at the flag.
fast="--xla_cpu_use_fusion_emitters=false $XLA_FLAGS"
if XLA_FLAGS="$fast" "$PYTHON" -c 'import jax; jax.devices()' &>/dev/null; then
  XLA_FLAGS="$fast"
fi
if [ -z "${JAX_COMPILATION_CACHE_DIR:-}" ]; then
  JAX_COMPILATION_CACHE_DIR="$(mktemp -d)"
  trap 'rm -rf "$JAX_COMPILATION_CACHE_DIR"' EXIT
fi
export JAX_COMPILATION_CACHE_DIR JAX_ENABLE_COMPILATION_CACHE=true
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.1
cores="$("$PYTHON" -c 'import os; print(len(os.sched_getaffinity(0))
      if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)')"
workers=(-n 2 --dist worksteal)
if [ "$cores" -lt 2 ]; then workers=(-n 0); fi

run_pytest() {
  "$PYTHON" -m pytest --quiet --durations=15 "$@" </dev/null
}

if [ $part = nightly ]; then
  share="$(($(date +%s) / 86400 % 6 + 1))/6"
  say "tests marked slow, share $share where no other one is asked for"
  run_pytest "${workers[@]}" -m slow --share "$share" "$@"
  say "nightly tests passed"
  exit
fi

say "ruff format --check"
"$PYTHON" -m ruff format --check --quiet .
say "ruff check"
"$PYTHON" -m ruff check --quiet .
say "imports between the rings"
"$VENV/bin/lint-imports" --no-cache >"$VENV/imports" || { cat "$VENV/imports"; exit 1; }
# Types take one core, and what follows them the other.
say "types of the core"
"$PYTHON" -m mypy --no-error-summary </dev/null &
types=$!
if [ $part = quick ]; then
  say "the law of each execution, the README"
  run_pytest -m "not slow" "${QUICK[@]}" "$@"
  wait $types
  say "the quick part passed"
  exit
fi
say "doctests"
# (One module imports T5X, which is not a dependency.)
JAX_DISABLE_MOST_OPTIMIZATIONS=true run_pytest --doctest-modules speccascade \
  --ignore=speccascade/tools/integrations/t5x_models.py
wait $types
say "tests"
run_pytest "${workers[@]}" -m "not slow" "$@"
say "all passed"
