#!/usr/bin/env bash
# From a bare machine to the whole verdict: environment, lint, types, tests.
#
#   bash tests/run.sh             everything, real servers included
#   bash tests/run.sh fast        the inner loop: nothing that starts a server or takes more than seconds
#   bash tests/run.sh fast -x -k rollback        further arguments go to pytest
set -euo pipefail

root=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
select=()
if [[ ${1-} == fast ]]; then
  shift
  select=(-m "not server and not slow")
fi

step() { printf '\n==> %s\n' "$*"; }

bash deploy/environment.sh --test
export PATH=$root/.venv/bin:$PATH
# Nothing here may ask a model hub or report usage.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
python deploy/prepare_model.py smollm2 noise deepseek tekken

step "ruff check" && ruff check .
step "ruff format" && ruff format --check .
step "mypy" && mypy
step "pytest" && exec python -m pytest "${select[@]}" "$@"
