#!/usr/bin/env bash
# tests/fuzz.sh BUILD SECONDS JOBS [SEED]: runs every fuzzer of BUILD for SECONDS, JOBS at a time, and fails if one of them does.
# Each starts from the inputs in FOLDER/corpus/NAME/ of the sources and from what earlier runs found (BUILD/fuzz/NAME). SEED is
# libFuzzer's (1; 0 draws one), so that two runs over the same sources go much the same way. An input that fails is kept and printed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = --one ]; then
  program=$2 found=$3/fuzz/$(basename "$2") seconds=$4 seed=$5
  name=$(basename "$program")
  mkdir -p "$found"
  corpora=("$found")
  for corpus in $(find . -path '*/corpus/*' -prune -type d -not -path './build*'); do
    [ "$(sed -E 's,^\./,,; s,/corpus/,/,; s,/,_,g' <<<"$corpus")" = "$name" ] && corpora+=("$corpus")
  done
  case $name in  # what the sources have anyway
    proto_*) corpora+=(examples) ;;
    graph_graph_file_fuzzer) corpora+=(examples/custom-graph) ;;
  esac
  "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -seed="$seed" -print_final_stats=1 -verbosity=1 \
    -artifact_prefix="$found-" "${corpora[@]}" >"$found.log" 2>&1
  status=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$found.log")
  coverage=$(sed -nE 's/.* cov: ([0-9]+) .*/\1/p' "$found.log" | tail -1)
  if [ $status = 0 ]; then
    echo "$name: ${runs:-0} inputs, ${coverage:-0} edges"
  else
    echo "$name: FAILED after ${runs:-?} inputs"
    grep -vE '^#[0-9]+\s+(NEW|REDUCE|pulse|INITED|RELOAD)' "$found.log" | tail -60
  fi
  exit $status
fi

build=$1 seconds=$2 jobs=$3 seed=${4:-1}
echo "$(ls "$build"/bin/*_fuzzer | wc -l) fuzzers, $seconds s each, $jobs at a time, seed $seed"
printf '%s\n' "$build"/bin/*_fuzzer | xargs -P "$jobs" -I{} "$0" --one {} "$build" "$seconds" "$seed"
