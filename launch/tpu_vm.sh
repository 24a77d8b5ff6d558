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
#   --version=VERSION          of the image; by default the one that Google names
#                              for the accelerator type
#   --spot                     a VM that may be preempted; what is to outlive
#                              that belongs on gs://
#   --queued                   waits in Google's queue until there is such a VM;
#                              delete needs it as well
#   --worker=WORKER            a number, for what one worker does (all)
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/remote.sh"

steps="create install run follow copy_back stop delete"
options="zone project accelerator_type version worker" switches="spot queued"
zone="" project="" accelerator_type="" version="" worker=all
spot=false queued=false jax=tpu

tpus() {  # KIND VERB ARGUMENT...
  perform gcloud compute tpus "$@" --zone="$zone" \
    ${project:+--project="$project"} --quiet
}

tpu_vm() { tpus tpu-vm "$@"; }

# docs.cloud.google.com/tpu/docs/runtimes
image_of() {
  case "$1" in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

on_machine() { tpu_vm ssh "$name" --worker="$worker" --command="$1"; }
send() { tpu_vm scp "$1" "$name:$2" --worker="$worker"; }
fetch() {
  perform mkdir -p -- "$2" && tpu_vm scp --recurse "$name:$1" "$2" --worker=0
}

# The state of a VM or of a request, or nothing where there is none; in a dry run
# what is given: state_of KIND FIELD STATE.
state_of() {
  local listed
  listed="$(tpus "$1" list --format="value(name.basename(),$2)")" || return
  if $dry_run; then listed="$name $3"; fi
  awk -v name="$name" '$1 == name { print $2 }' <<<"$listed"
}

state() { state_of tpu-vm state "$1"; }
request() { state_of queued-resources state.state "$1"; }

create() {
  local now
  hint="see above, and run again, in another zone where this one is full"
  now="$(state "")" || return
  case "$now" in
    "") ;;
    READY) say "$name is there" && return ;;
    STOPPED) tpu_vm start "$name" && return ;;
    PREEMPTED | TERMINATED) remove || return ;;
    *) $queued || { hint="it is $now; run again when it is READY" && return 1; } ;;
  esac
  $spot && set -- --spot
  if $queued; then
    enqueue "$@"
  else
    tpu_vm create "$name" --accelerator-type="$accelerator_type" \
      --version="$version" "$@"
  fi
}

# Asks for the VM, unless that was done before, and waits until there is one.
enqueue() {
  local now before=""
  now="$(request "")" || return
  case "$now" in
    FAILED | SUSPENDED | SUSPENDING) remove && now="" || return ;;
  esac
  [ -n "$now" ] || tpus queued-resources create "$name" --node-id="$name" \
    --accelerator-type="$accelerator_type" --runtime-version="$version" "$@" ||
    return
  while true; do
    now="$(request ACTIVE)" || return
    if [ "$now" != "$before" ] && ! $dry_run; then
      say "the request for $name is ${now:-gone}"
    fi
    before="$now"
    case "$now" in
      ACTIVE) return ;;
      "" | FAILED | SUSPENDED) return 1 ;;
    esac
    sleep "$poll_s"
  done
}

remove() {
  if $queued; then
    # With its VM.
    tpus queued-resources delete "$name" --force
  else
    tpu_vm delete "$name"
  fi
}

delete() {
  local now
  hint="see above, and run again: it may still cost money"
  if $queued; then
    now="$(request ACTIVE)" || return
  else
    now="$(state READY)" || return
  fi
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
version="${version:-$(image_of "$accelerator_type")}"
case "$accelerator_type" in
  tpu7*) usage "--accelerator_type=$accelerator_type: TPU7x has no TPU VMs; see" \
    "docs/accelerators.md for GKE" ;;
esac
case "$worker" in all) wants_command several ;; *) wants_command 1 ;; esac
do_steps
