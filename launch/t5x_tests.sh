#!/usr/bin/env bash
# Runs the tests that need the real T5X. T5X and what it imports are cloned from
# GitHub, at the revisions that docs/t5x.md names. Fresh machine: makes .venv and
# installs first.
#
#   bash launch/t5x_tests.sh         fetches what is not there yet, runs the tests
#   bash launch/t5x_tests.sh ARGS    further arguments go to pytest
#
# T5X_CLONES names another folder of clones than out/t5x_clones. A clone there at
# another revision is set to the one of docs/t5x.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

case "${1:-}" in --help | -h) head_of t5x_tests.sh && exit ;; esac

TESTS=(tests/tools/integrations tests/checkpoints/test_real_t5x.py)

command -v git >/dev/null || fail "no git here: install it and run again"
sources="$(sed -nE 's|^ *git\+(https://[^ @]+)@([0-9a-f]{40}).*|\1 \2|p' \
  docs/t5x.md)"
[ -n "$sources" ] || fail "docs/t5x.md names no revision of T5X"
environment t5x

clones="${T5X_CLONES:-out/t5x_clones}"
mkdir -p "$clones" && clones="$(cd "$clones" && pwd)"
path="$PWD"
while read -r url revision; do
  folder="$clones/${url##*/}"
  path="$path:$folder"
  # Without a repository of its own, git would take the one around it.
  git init --quiet "$folder"
  if [ "$(git -C "$folder" rev-parse --quiet --verify HEAD)" != "$revision" ]
  then
    say "fetching $url at $revision"
    { git -C "$folder" fetch --quiet --depth 1 "$url" "$revision" &&
      git -C "$folder" checkout --quiet --detach "$revision"; } </dev/null ||
      fail "git cannot fetch $url, see above: it wants a network; or name a" \
        "folder of clones by T5X_CLONES=FOLDER"
  fi
done <<<"$sources"

# The tests run on the CPU.
export JAX_PLATFORMS=cpu CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=3
export PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}"
# pytest would skip the tests, and pass, if T5X lacked a package.
"$PYTHON" -c 'import t5x.checkpoints, t5x.models' ||
  fail "T5X cannot be imported, see above"
say "tests with T5X"
"$PYTHON" -m pytest --quiet --durations=5 "${TESTS[@]}" "$@" </dev/null
say "all passed"
