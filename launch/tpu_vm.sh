#!/usr/bin/env bash
# Runs a command of the README on a TPU VM, on every worker of its slice.
#
#   bash launch/tpu_vm.sh STEP... --zone=ZONE [--OPTION=VALUE...] \
#     [-- COMMAND...]
#
# Steps:
#   create     makes the VM, again if it was preempted
#   install    copies this checkout to every worker, makes .venv, and installs
#   run        starts COMMAND there; it continues when the connection is lost
#   follow     shows its output until it ends, and has its exit code; takes a
#              preempted VM and its COMMAND up again
#   copy_back  copies the output folder of worker 0 here
#   stop       ends it: SIGTERM, on which training saves
#   delete     deletes the VM with its disk
#
# Options:
#   --zone=ZONE                such as us-central2-b
#   --project=PROJECT          gcloud's own, where none is given
#   --accelerator_type=TYPE    such as v4-32
#   --version=VERSION          of the image (tpu-ubuntu2204-base)
#   --spot                     a VM that may be preempted; what is to outlive
#                              that belongs on gs://
#   --worker=WORKER            a number, for what one worker does (all)
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/remote.sh"

steps="create install run follow copy_back stop delete"
options="zone project accelerator_type version worker" switches="spot"
zone="" project="" accelerator_type="" version=tpu-ubuntu2204-base worker=all
spot=false jax=tpu

tpu_vm() {  # VERB ARGUMENT...
  perform gcloud compute tpus tpu-vm "$@" --zone="$zone" \
    ${project:+--project="$project"} --quiet
}

on_machine() { tpu_vm ssh "$name" --worker="$worker" --command="$1"; }
send() { tpu_vm scp "$1" "$name:$2" --worker="$worker"; }
fetch() {
  perform mkdir -p -- "$2" && tpu_vm scp --recurse "$name:$1" "$2" --worker=0
}

# The VM's state, or nothing where there is none; in a dry run what is given.
state() {
  local listed
  listed="$(tpu_vm list --format='value(name.basename(),state)')" || return
  if $dry_run; then listed="$name $1"; fi
  awk -v name="$name" '$1 == name { print $2 }' <<<"$listed"
}

create() {
  local now
  hint="see above, and run again, in another zone where this one is full"
  now="$(state "")" || return
  case "$now" in
    "") ;;
    READY) say "$name is there" && return ;;
    STOPPED) tpu_vm start "$name" && return ;;
    PREEMPTED | TERMINATED) remove || return ;;
    *) hint="it is $now; run again when it is READY" && return 1 ;;
  esac
  $spot && set -- --spot
  tpu_vm create "$name" --accelerator-type="$accelerator_type" \
    --version="$version" "$@"
}

remove() { tpu_vm delete "$name"; }

delete() {
  local now
  hint="see above, and run again: it may still cost money"
  now="$(state READY)" || return
  if [ -z "$now" ]; then say "$name is gone" && return; fi
  remove
}

follow() {
  local code now again
  for ((again = 0; again <= restarts; again++)); do
    if [ "$again" -gt 0 ]; then
      say "$name was preempted, and is taken up again ($again of $restarts)"
      { create && install && run; } || return
    fi
    code=0
    watch_job || code=$?
    if [ "$code" = 0 ] || [ ${#command[@]} = 0 ]; then return "$code"; fi
    now="$(state READY)" || return "$code"
    if [ "$now" = READY ]; then return "$code"; fi
  done
  return "$code"
}

read_arguments "$@"
for step in $steps; do wants "$step" zone; done
wants create accelerator_type
case "$worker" in all) wants_command several ;; *) wants_command 1 ;; esac
do_steps
