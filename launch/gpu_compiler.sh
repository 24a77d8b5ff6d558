#!/usr/bin/env bash
# Makes an environment that compiles for an H100 without one (Linux, x86-64).
#
#   bash launch/gpu_compiler.sh              makes .venv-gpu-compiler, 1.7 GB
#   .venv-gpu-compiler/bin/python -m benchmarks.compiled --targets h100
#
# It has jax of constraints.txt, the plugin that compiles for CUDA, and NVIDIA's
# compiler and assembler; no CUDA libraries, with which it could run. VENV names
# another folder.
set -euo pipefail
VENV="${VENV:-.venv-gpu-compiler}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if [ $# -gt 0 ]; then
  head_of gpu_compiler.sh
  exit
fi
"$PYTHON" -c '' 2>/dev/null || make_venv
jax="$(sed -n 's/^jax==//p' "$CONSTRAINTS")"
install() {
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-compile "$@" \
    </dev/null || fail "the install failed, see above: run again to try once more"
}
say "installing jax $jax and its compiler for GPUs into $VENV"
install --constraint "$CONSTRAINTS" jax flax numpy
install --no-deps "jax-cuda12-plugin==$jax" "jax-cuda12-pjrt==$jax" \
  nvidia-cuda-nvcc-cu12 nvidia-cuda-nvrtc-cu12
say "installed; $PYTHON -m benchmarks.compiled --help shows what it does"
