#!/usr/bin/env bash
# Format, lint, types, doctests, tests. Fresh machine: makes .venv and installs first.
#
#   bash launch/test.sh            what every change must pass
#   bash launch/test.sh --nightly  a quarter of the large samples, another each day
#   bash launch/test.sh --nightly --share 1/1   all of them
#   bash launch/test.sh ... ARGS   further arguments go to pytest
#
# With JAX_COMPILATION_CACHE_DIR=FOLDER compiled programs are kept in FOLDER, and
# a second run takes a fraction of the time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

nightly=false
if [ "${1:-}" = --nightly ]; then
  nightly=true
  shift
fi

environment dev

# Tests run on the CPU, one thread a worker, two workers where there are cores.
export JAX_PLATFORMS=cpu CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=3
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NPROC=1
export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false ${XLA_FLAGS:-}"
if [ -z "${JAX_COMPILATION_CACHE_DIR:-}" ]; then
  export JAX_ENABLE_COMPILATION_CACHE=false
else
  export JAX_ENABLE_COMPILATION_CACHE=true
  export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.1
fi
cores="$("$PYTHON" -c 'import os; print(len(os.sched_getaffinity(0))
      if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)')"
workers=(-n 2 --dist worksteal)
if [ "$cores" -lt 2 ]; then workers=(-n 0); fi

run_pytest() {
  "$PYTHON" -m pytest --quiet --durations=15 "${workers[@]}" "$@" </dev/null
}

if $nightly; then
  share="$(($(date +%s) / 86400 % 4 + 1))/4"
  say "tests marked slow, share $share where no other one is asked for"
  run_pytest -m slow --share "$share" "$@"
  say "nightly tests passed"
  exit
fi

say "ruff format --check"
"$PYTHON" -m ruff format --check --quiet .
say "ruff check"
"$PYTHON" -m ruff check --quiet .
say "types of the core"
"$PYTHON" -m mypy --no-error-summary
say "doctests"
# (One module imports T5X, which is no dependency.)
"$PYTHON" -m pytest --quiet --doctest-modules speccascade \
  --ignore=speccascade/integrations/t5x_models.py </dev/null
say "tests"
run_pytest -m "not slow" "$@"
say "all passed"
