# shellcheck shell=bash
# Sourced by tpu_vm.sh, gpu_box.sh and slurm.sh: options, steps, and how what
# they do is done, or printed.
#
# A script sets $steps and its own options, calls `read_arguments "$@"`, and
# then `do_steps`. It has a function for each step; those here need three:
#
#   on_machine COMMAND   runs a shell's command there, on every worker
#   send FILE NAME       copies a file into the home folder there
#   fetch PATH FOLDER    copies a folder from there into a folder here

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

script="$(basename "$0")"
shared_options="name output_dir jax folder logs restarts"
# shellcheck disable=SC2034  # scripts read them
output_dir=out jax="" folder=speccascade logs=out/launch restarts=10
name=speccascade
# Options of scripts: those with a value, and those without.
steps="" options="" switches=""
dry_run=false
todo=() command=() hint=""
poll_s="${POLL_S:-10}"
lost=255 # ssh's own exit code

help() {
  head_of "$script"
  awk -v known=" $shared_options dry_run " '
    /^  --/ { key = substr($1, 3); sub(/=.*/, "", key) }
    !/^  / { key = "" }
    key == "" || index(known, " " key " ")' <<'END'
Options that the launch scripts share:
  --name=NAME         of the job, and of what is created (speccascade)
  --output_dir=PATH   what copy_back copies, to the same path here (out); a
                      gs:// path stays where it is
  --jax=KIND          tpu, cuda12 or cuda13: which jax is installed
  --folder=FOLDER     where the checkout lies there, in the home (speccascade)
  --logs=FOLDER       where logs are kept here (out/launch)
  --restarts=N        how often what was preempted is taken up again (10)
  --dry_run           prints the commands, and runs none
Steps are done in the order given. Where one fails, those after it are left out,
but for copy_back after follow, and delete; nothing is deleted that could not be
copied back, or that may still run since only the connection is lost. All can be run
again: what exists is not made again, and what is gone is not an error.
COMMAND is one of the README, such as
  python -m speccascade.train --gin_file=... --distributed
END
}

read_arguments() {
  local key
  while [ $# -gt 0 ]; do
    key="${1%%=*}" && key="${key#--}"
    case "$1" in
      --) shift && command=("$@") && break ;;
      --help | -h) help && exit ;;
      --*)
        if has "dry_run $switches" "$key"; then
          [ "$1" = "--$key" ] || usage "--$key takes no value"
          printf -v "$key" true
        elif has "$shared_options $options" "$key"; then
          case "$1" in *=?*) ;; *) usage "--$key wants --$key=VALUE" ;; esac
          check_value "$key" "${1#*=}"
          printf -v "$key" %s "${1#*=}"
        else
          usage "--$key is not an option of $script"
        fi
        ;;
      *)
        has "$steps" "$1" || usage "'$1' is not a step of $script: $steps"
        todo+=("$1")
        ;;
    esac
    shift
  done
  [ ${#todo[@]} -gt 0 ] || usage "$script wants steps: $steps"
  check_name "$name"
  check_jax "$jax"
  are_numbers 0 restarts
  case "/$output_dir/" in
    /gs://*) ;;
    //* | /~* | */../*) usage "--output_dir=$output_dir: want gs:// or a path" \
      "below the checkout" ;;
  esac
}

# A value that other programs would take for an option, or for two lines.
check_value() {  # OPTION VALUE
  case "$2" in
    *[[:cntrl:]]*) usage "--$1 has a line break or another control character" ;;
  esac
  if [ "$1" != sbatch ] && [ "${2#-}" != "$2" ]; then
    usage "--$1=$2: want a value that does not begin with -"
  fi
}

are_numbers() {  # LEAST OPTION...
  local key least="$1"
  for key in "${@:2}"; do
    [[ ${!key} =~ ^(0|[1-9][0-9]{0,8})$ ]] && [ "${!key}" -ge "$least" ] ||
      usage "--$key=${!key} is not a number from $least to 999999999"
  done
}

# A step's options: wants STEP OPTION...
wants() {
  local step="$1" key
  has "${todo[*]}" "$step" || return 0
  for key in "${@:2}"; do
    [ -n "${!key}" ] || usage "$step wants --$key=VALUE"
  done
}

wants_command() {  # how many processes run it, or "several"
  has "${todo[*]}" run || return 0
  [ ${#command[@]} -gt 0 ] || usage "run wants a command: -- python -m ..."
  case "$1 ${command[*]} " in
    *" --distributed "* | *" --multiprocess_gpu "* | "1 "*) ;;
    *" -m speccascade"*) usage "several processes run this command: give it" \
      "--distributed, or let one of them run it" ;;
  esac
}

perform() {
  if $dry_run; then
    quoted "$@" >&3
  else
    "$@" 3>&-
  fi
}

do_steps() {
  local step how code=0 failed=""
  exec 3>&1
  $dry_run || mkdir -p "$logs"
  for step in "${todo[@]}"; do
    case "$failed $step" in
      " $step" | "follow copy_back") ;;
      "copy_back "* | "lost "*) continue ;;
      *" delete") ;;
      *) continue ;;
    esac
    if $dry_run; then echo "# $step"; else say "$step"; fi
    how=0
    "$step" || how=$?
    if [ "$how" != 0 ]; then
      failed="$step"
      [ "$step $how" != "follow $lost" ] || failed=lost
      [ "$code" != 0 ] || code="$how"
      say "$step failed${hint:+: $hint}" >&2
    fi
  done
  exit "$code"
}

job() { echo "cd $(quoted "$folder") && bash launch/job.sh $(quoted "$@")"; }

install() {
  local archive="$logs/$name.tar.gz" unpack
  unpack="mkdir -p $(quoted "$folder") && tar -xzf $(quoted "$name.tar.gz")"
  unpack="$unpack -C $(quoted "$folder") && $(job install "$jax")"
  hint="see above, and run again"
  perform tar --exclude=__pycache__ -czf "$archive" setup.py constraints.txt \
    README.md LICENSE launch configs speccascade benchmarks &&
    send "$archive" "$name.tar.gz" && on_machine "$unpack"
}

run() {
  hint="see above, and run again"
  on_machine "$(job start "$name" "${command[@]}")"
}

# Follows the job; where ssh says that it lost the connection, a few times.
watch_job() {
  local watch code tries
  hint="its log is $logs/$name.log"
  watch="$(job follow "$name")"
  if $dry_run; then on_machine "$watch" && return; fi
  for tries in 1 2 3; do
    code=0
    on_machine "$watch" 2>&1 | tee -a "$logs/$name.log" || code=$?
    if [ "$code" != "$lost" ]; then return "$code"; fi
    [ "$tries" = 3 ] || sleep "$poll_s"
  done
  hint="the connection is lost, and the job may still run: follow it again"
  return "$code"
}

follow() { watch_job; }

stop() { on_machine "$(job stop "$name")"; }

copy_back() {
  hint="see above, and run again: nothing was deleted"
  case "$output_dir" in
    gs://*) echo "# $output_dir stays where it is" ;;
    *) fetch "$folder/$output_dir" "$(dirname "$output_dir")" ;;
  esac
}
