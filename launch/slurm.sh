#!/usr/bin/env bash
# Runs a command of the README as a Slurm job, in a checkout that its nodes see.
#
#   bash launch/slurm.sh STEP... [--OPTION=VALUE...] [-- COMMAND...]
#
# Steps:
#   install    makes .venv here, and installs
#   run        submits COMMAND, where no job of that name is in the queue
#   follow     shows its output until it ends, and has its exit code
#   stop       cancels it
#
# It gets a signal five minutes before its time is up, and saves; then, and
# when it was preempted, it is queued again and continues from its folder.
#
# Options:
#   --nodes=N             (1)
#   --gpus_per_node=N     (0)
#   --tasks_per_node=N    one for each GPU, else one
#   --time=TIME           as sbatch takes it (1-00:00:00)
#   --sbatch=OPTIONS      more of sbatch's: --sbatch="--partition=a --account=b"
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/remote.sh"

steps="install run follow stop"
shared_options="name jax logs restarts"
options="nodes gpus_per_node tasks_per_node time sbatch"
nodes=1 gpus_per_node=0 tasks_per_node="" time=1-00:00:00 sbatch="" jax=cuda12

# The numbers of the jobs of this name; in a dry run there are none.
queued() {
  perform squeue --noheader --name="$name" --user="$(id -un)" --format=%i
}

batch_script() {
  local more lines=("job-name=$name" "nodes=$nodes"
    "ntasks-per-node=$tasks_per_node" "time=$time"
    "output=$logs/$name.log" open-mode=append requeue signal=TERM@300)
  if [ "$gpus_per_node" != 0 ]; then lines+=("gpus-per-node=$gpus_per_node"); fi
  echo "#!/usr/bin/env bash"
  printf '#SBATCH --%s\n' "${lines[@]}"
  read -ra more <<<"$sbatch"
  if [ -n "$sbatch" ]; then printf '#SBATCH %s\n' "${more[@]}"; fi
  cat <<END
source $(quoted "$PWD/launch/environment.sh")
activate
rm -f $(quoted "$logs/$name.exit_code")
code=0
srun --kill-on-bad-exit=1 $(quoted "${command[@]}") || code=\$?
# 143: it got the signal, and saved. A job that is cancelled ends before this.
if [ "\$code" = 143 ] && [ "\${SLURM_RESTART_COUNT:-0}" -lt $restarts ]; then
  scontrol requeue "\$SLURM_JOB_ID" && exit 143
fi
echo "\$code" >$(quoted "$logs/$name.exit_code")
exit "\$code"
END
}

install() {
  hint="see above, and run again"
  perform bash launch/job.sh install "$jax"
}

run() {
  local jobs
  hint="see above, and run again"
  jobs="$(queued)" || return
  if [ -n "$jobs" ]; then say "$name is in the queue: $jobs" && return; fi
  if $dry_run; then batch_script | sed 's/^/# /'
  else batch_script >"$logs/$name.sbatch"; fi
  perform sbatch "$logs/$name.sbatch"
}

follow() {
  local tail="" jobs=x code
  hint="its log is $logs/$name.log"
  if $dry_run; then queued && return; fi
  touch "$logs/$name.log"
  tail -n +1 -F "$logs/$name.log" &
  tail=$!
  while [ -n "$jobs" ]; do
    sleep "$poll_s"
    jobs="$(queued)" || break
  done
  kill "$tail"
  code="$(cat "$logs/$name.exit_code" 2>/dev/null)" || return 1
  return "$code"
}

stop() { perform scancel --name="$name" --user="$(id -un)"; }

read_arguments "$@"
are_numbers 1 nodes
are_numbers 0 gpus_per_node
: "${tasks_per_node:=$((gpus_per_node > 0 ? gpus_per_node : 1))}"
are_numbers 1 tasks_per_node
case "$time" in
  *[!0-9A-Za-z:-]*) usage "--time=$time: want a time such as 1-00:00:00" ;;
esac
case "$logs" in /*) ;; *) logs="$PWD/$logs" ;; esac
wants_command $((nodes * tasks_per_node))
do_steps
