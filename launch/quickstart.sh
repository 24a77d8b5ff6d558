#!/usr/bin/env bash
# Trains a small pair on the built-in task, decodes with a dozen methods, and
# writes the trade-off. Fresh machine: makes .venv and installs first.
#
#   bash launch/quickstart.sh [flags of python -m speccascade.quickstart]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

check_flags "output_dir" "fast all_methods" "$@"
environment lab
export SPECCASCADE_INSTALL_S=$SECONDS
hint_at_accelerator
say "running python -m speccascade.quickstart $*"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
run_command "$PYTHON" -m speccascade.quickstart "$@"
say_done
