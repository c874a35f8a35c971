#!/usr/bin/env bash
# Installs what Fusion needs on a Debian 12 machine: Debian packages, LibTorch, the example data and Python packages.
# Nothing is installed twice: each part leaves a stamp and is skipped when the stamp matches.
#
#   setup/install.sh            everything
#   setup/install.sh --check    only say what is missing; exit 1 when something is
#
# LibTorch, the data and a Python with PyTorch go to $FUSION_CACHE (default: ~/.cache/fusion), which outlives the checkout.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FUSION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fusion}
check_only=false
[ "${1:-}" = "--check" ] && check_only=true

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

if [ ! -r /etc/os-release ] || ! (. /etc/os-release; [ "${ID:-}" = debian ] && [ "${VERSION_ID:-}" = 12 ]); then
  system=$( (. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-unknown}") || uname -s)
  die "this set-up knows Debian 12 (bookworm) only, and this machine is: ${system}.
       Install the packages of setup/packages.txt by your system's own means, then unpack the wheels of
       setup/wheels.txt as unpack_wheels below does, or use a Debian 12 machine or container."
fi
[ "$(uname -m)" = x86_64 ] || die "the pinned LibTorch wheel is for x86_64; this machine is $(uname -m)"

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo -E "$@"
  else die "installing Debian packages needs root: run as root or install sudo"; fi
}

install_packages() {
  local wanted missing
  mapfile -t wanted < <(grep -v '^#' "$here/packages.txt")
  missing=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null | awk '$2=="installed"{print $1}' |
    sort -u | comm -13 - <(printf '%s\n' "${wanted[@]}" | sort -u))
  [ -z "$missing" ] && return 0
  if $check_only; then say "missing Debian packages: $(echo $missing)"; return 1; fi
  say "installing $(echo "$missing" | wc -l) Debian packages: $(echo $missing)"
  as_root apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# The wheel's own copies of fmt and protobuf headers shadow Debian's and break spdlog and gRPC: they are left out.
unpack_wheels() {
  local stamp wheels
  stamp=$(sha256sum "$here/wheels.txt" | cut -c1-16)
  [ -e "$cache/wheels-$stamp.done" ] && return 0
  if $check_only; then say "missing LibTorch in $cache"; return 1; fi
  say "downloading LibTorch (540 MB, once) into $cache"
  wheels=$cache/wheels.partial
  rm -rf "$wheels" "$cache/torch.partial"
  mkdir -p "$wheels"
  /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary=:all: \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --python-version 3.11 --implementation cp --abi cp311 --dest "$wheels" -r "$here/wheels.txt"
  say "unpacking LibTorch"
  mkdir -p "$cache/torch.partial" "$cache/data"
  unzip -q "$wheels"/torch-*.whl 'torch/lib/*' 'torch/include/*' -x 'torch/include/fmt/*' 'torch/include/google/*' \
    'torch/lib/libtorch_python.so' -d "$cache/torch.partial"
  for wheel in "$wheels"/nvidia_cuda_*.whl; do unzip -q -o "$wheel" -d "$cache/torch.partial/nvidia-wheels"; done
  find "$cache/torch.partial/nvidia-wheels" -name '*.so*' -exec mv -t "$cache/torch.partial/torch/lib" {} +
  unzip -q -o -j "$wheels"/scikit_learn-*.whl 'sklearn/datasets/data/digits.csv.gz' \
    'sklearn/datasets/data/diabetes_*.csv.gz' -d "$cache/data"
  rm -rf "$cache/torch"
  mv "$cache/torch.partial/torch" "$cache/torch"
  mv "$wheels"/torch-*.whl "$cache/torch.whl"  # for python.sh
  rm -rf "$cache/torch.partial" "$wheels"
  touch "$cache/wheels-$stamp.done"
}

complete=true
install_packages || complete=false
unpack_wheels || complete=false
"$here/data.sh" $($check_only && echo --check) || complete=false
"$here/python.sh" $($check_only && echo --check) || complete=false
$complete
