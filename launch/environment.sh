# Sourced by the scripts beside it: finds Python, makes .venv, installs.
#
#   environment base|dev   leaves a working interpreter in $PYTHON
#
# VENV names another folder than .venv. An install is done once: a stamp in the
# environment holds the hash of setup.py and constraints.txt.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
VENV="${VENV:-.venv}"
PYTHON="$VENV/bin/python"
SECONDS=0

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

# The first interpreter that runs and is new enough; 3.11 and 3.12 are tested.
find_python() {
  local name
  for name in python3.11 python3.12 python3.13 python3 python; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
      >/dev/null 2>&1; then
      command -v "$name"
      return
    fi
  done
  return 1
}

make_venv() {
  local python
  python="$(find_python)" || fail "no Python 3.11 or newer among" \
    "python3.11, python3.12, python3.13, python3: install one and run again"
  say "making $VENV with $("$python" --version)"
  "$python" -m venv --clear "$VENV" || fail "$python -m venv failed:" \
    "install its venv module (Debian, Ubuntu: apt install python3-venv)"
}

environment() {
  local extras="$1" target="." stamp hash
  if [ "$extras" = dev ]; then target=".[dev]"; fi
  if ! "$PYTHON" -c '' >/dev/null 2>&1; then make_venv; fi
  "$PYTHON" -m pip --version >/dev/null 2>&1 ||
    "$PYTHON" -m ensurepip >/dev/null 2>&1 ||
    fail "$VENV has no pip: remove the folder $VENV and run again"

  stamp="$VENV/installed-$extras"
  hash="$(cat setup.py constraints.txt |
    "$PYTHON" -c 'import hashlib, sys
print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')"
  if [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ]; then
    say "$VENV is up to date"
    return
  fi
  say "installing $target with constraints.txt into $VENV (1 to 2 minutes)"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --use-pep517 \
    --constraint constraints.txt --editable "$target" </dev/null ||
    fail "the install failed, see above: run again to try once more"
  echo "$hash" >"$stamp"
  say "installed"
}
