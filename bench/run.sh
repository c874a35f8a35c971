#!/usr/bin/env bash
# Every benchmark of docs/benchmarks.md but the convergence study: bench/run.sh [BUILD]. About 12 minutes on two cores.
# Exit status 1 when a bound is broken; all are run in any case.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${1:-build}
status=0

# title, limit in seconds, command
run() {
  printf '\n\033[1m==> %s\033[0m\n' "$1"
  timeout --foreground "$2" "${@:3}" || { echo "bench: $1: exit status $?" >&2; status=1; }
}

printf '%s, %s cores, load %s\n' "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs)" "$(nproc)" "$(cut -d' ' -f1-3 /proc/loadavg)"
run "codecs" 120 "$build/bin/codec_benchmark" --benchmark_min_time=0.1
run "prediction" 600 "$here/prediction.py" --build "$build"
run "overlap" 180 "$here/overlap.py" --build "$build"
run "demo-compare" 600 "$here/demo_compare.py" --build "$build" --job "$here/../examples/gpt2-two-sites.yaml"
exit $status
