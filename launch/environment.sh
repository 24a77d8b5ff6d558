# shellcheck shell=bash
# Sourced by the scripts beside it: finds Python, makes .venv, installs.
#
#   environment base|lab|dev|t5x   leaves a working interpreter in $PYTHON
#   activate                       has `python` mean it
#   run_command COMMAND...         passes signals on, and says how to continue
#   say_done                       says how to activate it
#
# VENV names another folder than .venv. An install is done once: a stamp in the
# environment holds the hash of setup.py and of the constraints.
# SPECCASCADE_CONSTRAINTS names another tested set of versions than that of
# constraints.txt: constraints-newest.txt. SPECCASCADE_JAX (tpu, cuda12, cuda13)
# installs jax for that accelerator; an environment that has a jax before
# anything was installed by these scripts keeps it as it is.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
VENV="${VENV:-.venv}"
PYTHON="$VENV/bin/python"
CONSTRAINTS="${SPECCASCADE_CONSTRAINTS:-constraints.txt}"
SECONDS=0
script_arguments=("$@")  # those of the script that sources this

# glibc gives freed memory back to the system and takes it again for every array
# of every step. Keeping it, in huge pages, saves a third of a training step.
export MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_:-4294967296}"
export MALLOC_MMAP_THRESHOLD_="${MALLOC_MMAP_THRESHOLD_:-4294967296}"
export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}"

say() {
  printf '[%02d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"
}

fail() {
  say "$*" >&2
  exit 1
}

# Ends for a wrong argument.
usage() {
  printf 'error: %s; --help shows how\n' "${*//[$'\n\r']/ }" >&2
  exit 2
}

has() {  # WORDS WORD
  case "$2" in "" | *[[:space:]]*) return 1 ;; esac
  case " $1 " in *" $2 "*) ;; *) return 1 ;; esac
}

# What is at the head of a script.
head_of() {
  sed -n '2,/^set /p' "launch/$1" | sed '$d; s/^# \{0,1\}//'
}

# Ends where an argument is not a flag of the main that a script runs. The main
# checks its flags too, but an install of minutes comes before it.
#
#   check_flags "FLAGS WITH A VALUE" "FLAGS WITHOUT ONE" ARGUMENT...
check_flags() {
  local valued="$1" plain="$2" key script
  script="$(basename "$0")"
  shift 2
  while [ $# -gt 0 ]; do
    key="${1%%=*}" && key="${key#--}"
    case "$1" in
      --help | -h)
        head_of "$script"
        printf '\nFlags:\n'
        [ -z "$valued" ] || printf '  --%s=VALUE\n' $valued
        [ -z "$plain" ] || printf '  --%s\n' $plain
        exit
        ;;
      --*=?*)
        if has "$plain" "$key"; then usage "--$key takes no value"; fi
        has "$valued" "$key" || usage "--$key is not a flag of $script"
        ;;
      --*)
        if has "$valued" "$key"; then
          if [ "$1" != "--$key" ] || [ $# = 1 ]; then
            usage "--$key wants --$key=VALUE"
          fi
          shift
        elif ! has "$plain" "$key" || [ "$1" != "--$key" ]; then
          usage "--$key is not a flag of $script"
        fi
        ;;
      *) usage "'$1' is not a flag of $script" ;;
    esac
    shift
  done
}

# Ends where a name of a job is none: it names folders, and what is created.
check_name() {
  case "$1" in
    [!a-z]* | *[!a-z0-9-]* | "") usage "--name=$1: want a-z, 0-9 and -" ;;
  esac
  [ ${#1} -le 63 ] || usage "--name=$1: want 63 letters at most"
}

# Ends where what jax is installed for is not a word, such as tpu or cuda12.
check_jax() {
  case "$1" in
    [!a-z]* | *[!a-z0-9-]*) usage "--jax=$1: want tpu, cuda12 or cuda13" ;;
  esac
}

# Minor version of the oldest Python 3 that has all versions of the constraints.
least_python() {
  local least
  least="$(sed -n 's/^# .*Python 3\.\([0-9]*\) or newer.*/\1/p' "$CONSTRAINTS")"
  echo "${least:-11}"
}

# The first interpreter that runs and is new enough; 3.11 and 3.12 are tested.
find_python() {
  local name
  for name in python3.11 python3.12 python3.13 python3 python; do
    if "$name" -c "import sys; sys.exit(sys.version_info < (3, $(least_python)))" \
      >/dev/null 2>&1; then
      command -v "$name"
      return
    fi
  done
  return 1
}

make_venv() {
  local python
  python="$(find_python)" || fail "no Python 3.$(least_python) or newer among" \
    "python3.11, python3.12, python3.13, python3: install one and run again"
  say "making $VENV with $("$python" --version)"
  "$python" -m venv --clear "$VENV" || fail "$python -m venv failed:" \
    "install its venv module (Debian, Ubuntu: apt install python3-venv)"
}

# The packages of another jax than the CPU's, by the words that their names have.
_jax_lines='^(jax|jaxlib|libtpu)([-_=]|$)'

has_jax() {
  "$PYTHON" -c 'import importlib.metadata as m; m.version("jax")' 2>/dev/null
}

# Says so where there is an accelerator that the installed jax does not use.
hint_at_accelerator() {
  local jax_for=""
  if command -v nvidia-smi >/dev/null; then jax_for=cuda12; fi
  if compgen -G '/dev/accel*' >/dev/null ||
    compgen -G '/dev/vfio/[0-9]*' >/dev/null; then jax_for=tpu; fi
  if [ -n "$jax_for" ] && [ -z "${JAX_PLATFORMS:-}" ] && ! "$PYTHON" -c \
    'import jax, sys; sys.exit(jax.default_backend() == "cpu")' 2>/dev/null; then
    say "an accelerator is here that this jax does not use; to install one that" \
      "does: SPECCASCADE_JAX=$jax_for bash $0 (docs/accelerators.md)"
  fi
}

environment() {
  local extras="$1" target="." stamp hash jax_for constraints="$CONSTRAINTS"
  # Python compiles a module when it is first imported, and keeps that if it
  # may. To compile all of them takes half of an install.
  local compile=--no-compile
  if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then compile=--compile; fi
  case "$extras" in
    lab | dev) target=".[$extras]" ;;
    t5x) target=".[dev,t5x]" ;;
  esac
  [ -f "$CONSTRAINTS" ] || fail "SPECCASCADE_CONSTRAINTS=$CONSTRAINTS is not" \
    "a file: give constraints.txt or constraints-newest.txt"
  if ! "$PYTHON" -c '' >/dev/null 2>&1; then make_venv; fi
  "$PYTHON" -c "import sys; sys.exit(sys.version_info < (3, $(least_python)))" ||
    fail "$CONSTRAINTS needs Python 3.$(least_python) or newer, and $VENV has an" \
      "older one: name another folder, as in VENV=.venv-newest"
  "$PYTHON" -m pip --version >/dev/null 2>&1 ||
    "$PYTHON" -m ensurepip >/dev/null 2>&1 ||
    fail "$VENV has no pip: remove the folder $VENV and run again"

  if ! compgen -G "$VENV/installed-*" >/dev/null && has_jax; then
    touch "$VENV/own-jax"
  fi
  jax_for="${SPECCASCADE_JAX:-$(cat "$VENV/jax-for" 2>/dev/null || true)}"
  if [ -e "$VENV/own-jax" ]; then
    say "keeping the jax that $VENV had"
    constraints="$VENV/constraints.txt" jax_for=""
    grep -Ev "$_jax_lines" "$CONSTRAINTS" >"$constraints"
  fi
  stamp="$VENV/installed-$extras"
  hash="$({ cat setup.py "$constraints" && echo "$jax_for"; } |
    "$PYTHON" -c 'import hashlib, sys
print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')"
  if [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ]; then
    say "$VENV is up to date"
    return
  fi
  say "installing $target${jax_for:+ and jax[$jax_for]} with $CONSTRAINTS" \
    "into $VENV (1 to 2 minutes)"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --use-pep517 \
    "$compile" --constraint "$constraints" ${jax_for:+"jax[$jax_for]"} \
    --editable "$target" </dev/null ||
    fail "the install failed, see above: run again to try once more"
  if [ -n "$jax_for" ]; then echo "$jax_for" >"$VENV/jax-for"; fi
  echo "$hash" >"$stamp"
  say "installed"
}

activate() {
  PATH="$(cd "$VENV/bin" && pwd):$PATH" || fail "$VENV is not there: install"
  export PATH
}

# Runs a command, which gets the signals that this script gets. Where a signal
# ended it, the last line says how to continue.
run_command() {
  local child code=0
  # A job of its own group: the command of another one would ignore Ctrl-C.
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  trap 'kill -INT "$child" 2>/dev/null' INT
  trap 'kill -TERM "$child" 2>/dev/null' TERM HUP
  wait "$child" || code=$?
  # A signal ends `wait`, and not the command.
  while kill -0 "$child" 2>/dev/null; do
    code=0
    wait "$child" || code=$?
  done
  trap - INT TERM HUP
  if [ "$code" -gt 128 ]; then
    say "stopped; to continue, run again: bash $(quoted "$0" \
      ${script_arguments[@]+"${script_arguments[@]}"})" >&2
  fi
  [ "$code" = 0 ] || exit "$code"
}

say_done() {
  if [ "${VIRTUAL_ENV:-}" = "$(cd "$VENV" && pwd)" ]; then
    say "done"
  else
    say "done; before other commands in this shell: . $VENV/bin/activate"
  fi
}

# Words as a shell reads them back.
quoted() {
  local word words="" quote="'" escaped="'\\''"
  for word in "$@"; do
    case "$word" in
      "" | *[!A-Za-z0-9_./:=@,+%-]*) word="'${word//$quote/$escaped}'" ;;
    esac
    words="$words${words:+ }$word"
  done
  printf '%s\n' "$words"
}
