#!/usr/bin/env bash
# Makes the example data in $FUSION_CACHE/data (default ~/.cache/fusion/data), hash-checked:
#   fortunes.txt  English text of Debian's fortunes and fortunes-min packages
#   diabetes.csv  442 rows, 10 columns and the target, with a header
# and links examples/data to that folder.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FUSION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fusion}
data=$cache/data
fortunes_sha256=fbc2d796dde8ea64a51345ce4c18ff486a778a2d2259603987073bedb3fc3cd7
say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

make_fortunes() {
  local scratch
  scratch=$(mktemp -d)
  ( cd "$scratch"
    apt-get -qq download fortunes fortunes-min
    for package in *.deb; do dpkg-deb -x "$package" unpacked; done
    cd unpacked/usr/share/games/fortunes
    find . -maxdepth 1 -type f ! -name '*.dat' ! -name '*.u8' -printf '%f\n' | LC_ALL=C sort | xargs cat ) >"$scratch/text"
  echo "$fortunes_sha256  $scratch/text" | sha256sum --quiet -c -
  mv "$scratch/text" "$data/fortunes.txt"
  rm -rf "$scratch"
}

make_diabetes() {
  { echo age,sex,bmi,bp,s1,s2,s3,s4,s5,s6,target
    paste -d, <(zcat "$data/diabetes_data_raw.csv.gz" | tr -s ' ' ',') <(zcat "$data/diabetes_target.csv.gz"); } >"$data/diabetes.partial"
  [ "$(wc -l <"$data/diabetes.partial")" = 443 ] || { echo "setup: the diabetes data has not 442 rows" >&2; exit 1; }
  mv "$data/diabetes.partial" "$data/diabetes.csv"
}

if [ ! -s "$data/fortunes.txt" ] || [ ! -s "$data/diabetes.csv" ]; then
  if [ "${1:-}" = --check ]; then say "missing example data in $data"; exit 1; fi
  say "preparing example data in $data"
  mkdir -p "$data"
  [ -s "$data/fortunes.txt" ] || make_fortunes
  [ -s "$data/diabetes.csv" ] || make_diabetes
fi
ln -sfn "$data" "$here/../examples/data"
