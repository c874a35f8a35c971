#!/usr/bin/env bash
# tests/properties.sh BUILD JOBS CASES SEED…: runs every RapidCheck property of BUILD with CASES cases from each seed, and prints
# those that fail with their counterexample. `make test` runs 100 cases of one fixed seed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = --one ]; then
  output=$("$2" --gtest_filter="$3" 2>&1) && exit
  printf '==> FAILED: RC_PARAMS="%s" %s --gtest_filter=%s\n%s\n' "$RC_PARAMS" "$2" "$3" "$output"
  exit 1
fi

build=$1 jobs=$2 cases=$3
shift 3
filter=$(grep -rhoE --include='*_test.cc' --exclude-dir='build*' '^RC_GTEST_PROP\(\w+, \w+' -- */ | sed -E 's/.*\((\w+), /\1./' | sort -u | paste -sd:)
for program in "$build"/bin/*_test; do
  "$program" --gtest_list_tests --gtest_filter="$filter" | awk -v program="$program" '/^[^ ]/ {suite=$1} /^ / {print program, suite $1}'
done >"$build/properties.txt"
failed=0
for seed in "$@"; do
  echo "==> $(wc -l <"$build/properties.txt") properties, $cases cases each, seed $seed"
  RC_PARAMS="seed=$seed max_success=$cases" xargs -P "$jobs" -L1 "$0" --one <"$build/properties.txt" || failed=1
done
exit $failed
