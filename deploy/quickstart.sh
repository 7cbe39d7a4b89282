#!/usr/bin/env bash
# From a bare machine to a structured answer served by a pinned backend.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: bash deploy/quickstart.sh [options] [-- arguments for vllm serve]

Makes .venv in the checkout with vLLM and this package, prepares a small real model, starts `vllm serve` with a pinned
backend, sends an OpenAI response_format request, prints the answer and how it was served, and stops the server.
What one run made, the next one uses.

  --backend NAME   guidance (default) or xgrammar
  --model MODEL    directory or hub id of the model to serve; default: a 135M-parameter chat model from a package
  --port PORT      default: a free one
  --keep           leave the server running; print a curl line and how to stop it
  --help           this text

Examples:
  bash deploy/quickstart.sh
  bash deploy/quickstart.sh --backend xgrammar --keep --port 8000
  bash deploy/quickstart.sh --model /models/my-model -- --max-model-len 4096
TEXT
}

root=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
backend=guidance
model=
dtype=bfloat16 # on a CPU
port=
keep=
server=
client=
log=
extra=()

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

say() { printf '==> %s\n' "$*"; }

parse() {
  while (($#)); do
    case $1 in
      --backend | --model | --port)
        [[ -n ${2-} ]] || fail "$1 needs a value; see --help"
        printf -v "${1#--}" '%s' "$2"
        shift 2
        ;;
      --backend=* | --model=* | --port=*)
        local name=${1%%=*}
        printf -v "${name#--}" '%s' "${1#*=}"
        shift
        ;;
      --keep) keep=yes && shift ;;
      -h | --help) usage && exit 0 ;;
      --) shift && extra=("$@") && break ;;
      *) fail "unknown option $1; see --help" ;;
    esac
  done
  [[ -z $port || ($port =~ ^[0-9]{1,5}$ && $port -ge 1 && $port -le 65535) ]] || fail "--port $port is not a port"
}

# The server is the leader of a process group of its own; vLLM's other processes are in it.
stop_server() {
  [[ -n $server ]] || return 0
  local group=$server tenths=0
  server=
  say "stopping the server"
  kill -TERM -- "-$group" 2>/dev/null || return 0
  while kill -0 -- "-$group" 2>/dev/null; do
    if ((tenths++ > 150)); then # one that is still starting may not listen
      kill -KILL -- "-$group" 2>/dev/null || true
      break
    fi
    sleep 0.1
  done
  wait "$group" 2>/dev/null || true
  say "stopped"
}

finish() {
  local status=$?
  trap '' INT TERM HUP # a second Ctrl-C must not leave half a server
  [[ -z $client ]] || kill "$client" 2>/dev/null || true
  stop_server
  exit "$status"
}

start_server() {
  local arguments=(
    serve "$model" --served-model-name "$(basename "$model")" --host 127.0.0.1 --port "$port"
    --structured-outputs-backend "$backend" --enforce-eager --max-model-len 2048 --max-num-seqs 16
  )
  export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
  [[ -d $model ]] && export HF_HUB_OFFLINE=1
  if ! nvidia-smi -L >/dev/null 2>&1; then
    export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
    arguments+=(--dtype "$dtype")
  fi
  mkdir -p "$root/.cache/logs"
  log=$root/.cache/logs/quickstart-$port.log
  say "starting vllm ${arguments[*]} ${extra[*]-}"
  say "log: $log"
  setsid "$root/.venv/bin/vllm" "${arguments[@]}" "${extra[@]}" >"$log" 2>&1 </dev/null &
  server=$!
}

# In the background, so that a signal is handled at once and not when the command has ended.
client() {
  "$python" "$root/deploy/ask.py" "$@" &
  client=$!
  wait "$client"
  client=
}

main() {
  parse "$@"
  bash "$root/deploy/environment.sh"
  if [[ -z $model ]]; then
    model=$("$python" "$root/deploy/prepare_model.py" smollm2)
    dtype=float32 # small, and three times as fast where the CPU has no instructions for bfloat16
  fi
  [[ -n $port ]] || port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  local url=http://127.0.0.1:$port
  if "$python" -c "import socket; socket.create_connection(('127.0.0.1', $port), 1)" 2>/dev/null; then
    fail "port $port is taken; name another with --port"
  fi
  trap finish EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
  start_server
  client wait "$url" --pid "$server" --log "$log"
  say "asking"
  client send "$url" --log "$log"
  if [[ -n $keep ]]; then
    say "the server keeps running at $url; ask it with"
    "$python" "$root/deploy/ask.py" curl "$url"
    say "stop it with"
    echo "kill -- -$server"
    server=
  fi
}

main "$@"
