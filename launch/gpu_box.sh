#!/usr/bin/env bash
# Runs a command of the README on a machine that ssh reaches.
#
#   bash launch/gpu_box.sh STEP... --host=USER@HOST [--OPTION=VALUE...] \
#     [-- COMMAND...]
#
# Steps:
#   install    copies this checkout there, makes .venv, and installs
#   run        starts COMMAND there; it continues when the connection is lost
#   follow     shows its output until it ends, and has its exit code
#   copy_back  copies the output folder here
#   stop       ends it: SIGTERM, on which training saves
#
# Options:
#   --host=USER@HOST    as ssh takes it; ports and keys belong to ~/.ssh/config
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/remote.sh"

steps="install run follow copy_back stop"
shared_options="name output_dir jax folder logs" options="host"
host="" jax=cuda12

on_machine() { perform ssh -- "$host" "$1"; }
send() { perform scp -- "$1" "$host:$2"; }
fetch() { perform mkdir -p -- "$2" && perform scp -rp -- "$host:$1" "$2"; }

read_arguments "$@"
for step in $steps; do wants "$step" host; done
wants_command 1
do_steps
