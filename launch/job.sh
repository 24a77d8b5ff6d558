#!/usr/bin/env bash
# Runs a command that outlives the connection that started it. The other
# launch scripts run this one on the machines that they reach.
#
#   bash launch/job.sh install [JAX]          makes .venv; JAX: tpu, cuda12, ...
#   bash launch/job.sh start NAME COMMAND...  nothing where NAME runs already
#   bash launch/job.sh follow NAME            its output, then its exit code
#   bash launch/job.sh stop NAME              SIGTERM, on which training saves
#
# out/launch/NAME/ keeps its log, command, process and exit code; a lock there
# is held as long as it runs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[ $# -gt 0 ] || fail "job.sh wants install, start, follow or stop"
step="$1" name="${2:-}"
folder="out/launch/$name"
case "$step" in
  --help | -h) head_of job.sh && exit ;;
  install) check_jax "$name" ;;
  start | follow | stop)
    [ -n "$name" ] || fail "job.sh $step wants a name"
    check_name "$name"
    ;;
  *) fail "'$step' is not a step of job.sh: install, start, follow or stop" ;;
esac

if [ "$step" = install ]; then
  if ! find_python >/dev/null && command -v apt-get >/dev/null; then
    say "installing python3.11"
    apt=(sudo apt-get -qq -o DPkg::Lock::Timeout=600)
    { "${apt[@]}" update && "${apt[@]}" install -y python3.11 python3.11-venv
    } </dev/null >/dev/null ||
      fail "there is no Python 3.11, and apt-get failed to install it"
  fi
  SPECCASCADE_JAX="$name" environment lab
  exit
fi
case "$step" in
  start)
    [ $# -gt 2 ] || fail "job.sh start $name wants a command"
    mkdir -p "$folder"
    ;;
  follow) [ -e "$folder/log" ] || fail "there is no job $name here" ;;
  stop)
    if [ ! -e "$folder/lock" ]; then
      say "$name does not run"
      exit
    fi
    ;;
esac
exec 9>>"$folder/lock"

case "$step" in
  start)
    shift 2
    if ! flock --nonblock 9; then
      say "$name runs already: $(cat "$folder/command")"
      exit
    fi
    activate
    rm -f "$folder/exit_code"
    [ ! -e "$folder/log" ] || mv "$folder/log" "$folder/log.before"
    quoted "$@" >"$folder/command"
    # The shell outlives a SIGTERM to say how the command ended; it has fd 9.
    setsid bash -c 'trap : TERM; "${@:2}"; echo $? >"$1/exit_code"' \
      job "$folder" "$@" </dev/null >"$folder/log" 2>&1 &
    echo $! >"$folder/pid"
    say "$name started"
    ;;
  follow)
    if flock --nonblock 9; then
      cat "$folder/log"
    else
      tail -n +1 -s 0.2 -f --pid="$(cat "$folder/pid")" "$folder/log"
    fi
    code="$(cat "$folder/exit_code" 2>/dev/null)" ||
      fail "$name was killed on $(uname -n), and left no exit code"
    say "$name ended with exit code $code on $(uname -n)"
    exit "$code"
    ;;
  stop)
    if flock --nonblock 9; then
      say "$name does not run"
      exit
    fi
    kill -TERM -- "-$(cat "$folder/pid")"
    flock --timeout 600 9 || fail "$name has not ended in ten minutes"
    say "$name has ended"
    ;;
esac
