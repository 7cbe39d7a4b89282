#!/usr/bin/env bash
# From a bare machine to the whole verdict: environment, lint, types, tests.
#
#   bash tests/run.sh             everything, real servers included
#   bash tests/run.sh fast        the inner loop: nothing that starts a server or takes more than seconds
#   bash tests/run.sh fast -x -k rollback        further arguments go to pytest
set -euo pipefail

root=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
fast=
if [[ ${1-} == fast ]]; then
  shift
  fast=yes
fi
further=("$@")

# tests MARKERS ARGUMENT... : what the further arguments select may lie wholly in the other part (pytest's status 5).
tests() {
  local status=0
  python -m pytest -m "$@" "${further[@]}" || status=$?
  ((status == 0 || (status == 5 && ${#further[@]}))) || exit "$status"
}

step() { printf '\n==> %s\n' "$*"; }

bash deploy/environment.sh --test
export PATH=$root/.venv/bin:$PATH
# Nothing here may ask a model hub or report usage.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
python deploy/prepare_model.py smollm2 noise deepseek tekken

step "ruff check" && ruff check .
step "ruff format" && ruff format --check .
step "mypy" && mypy
# A server takes the whole machine; what starts none shares it, a file at a time.
if [[ $fast ]]; then
  step "pytest" && tests "not server and not slow" -n auto --dist loadfile
else
  step "pytest, without servers" && tests "not server" -n auto --dist loadfile
  step "pytest, with real servers" && tests "server"
fi
