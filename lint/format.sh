#!/usr/bin/env bash
# Formats all C++ sources in place; with --check only lists those that differ and exits 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -t sources < <(git ls-files -co --exclude-standard -- '*.h' '*.cc')
if [ "${1:-}" != --check ]; then
  clang-format-16 -i "${sources[@]}"
  exit
fi
differing=0
for source in "${sources[@]}"; do
  if ! clang-format-16 --dry-run -Werror "$source" 2>/dev/null; then
    echo "not formatted: $source"
    differing=1
  fi
done
[ $differing = 0 ] || { echo "run 'make format'"; exit 1; }
