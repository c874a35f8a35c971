#!/usr/bin/env bash
# Makes a Python with PyTorch for the CPU, and transformers, in $FUSION_CACHE/python (default ~/.cache/fusion/python):
# tests compare with them, and python/fusion_export exports models with them.
#
#   setup/python.sh            makes it where it is missing or old
#   setup/python.sh --check    only says so; exit 1 when it is
#
# It is the PyTorch of setup/wheels.txt, its libraries shared with the C++ side. CUDA libraries that PyTorch's Python half is
# linked against are replaced by stand-ins (setup/cuda_stubs.py) instead of 2 GB of downloads.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FUSION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fusion}
say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

stamp=$(cat "$here"/{wheels.txt,python.txt,python.sh,cuda_stubs.py} | sha256sum | cut -c1-16)
[ -e "$cache/python/$stamp.done" ] && exit 0
if [ "${1:-}" = --check ]; then say "missing Python packages in $cache/python"; exit 1; fi

partial=$cache/python.partial
rm -rf "$partial"
mkdir -p "$partial"
wheel=$cache/torch.whl  # left by install.sh, which has just unpacked it
if [ ! -e "$wheel" ]; then
  say "downloading PyTorch (540 MB, once)"
  grep '^torch==' "$here/wheels.txt" >"$partial/torch.txt"
  /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary=:all: \
    --platform manylinux_2_28_x86_64 --python-version 3.11 --implementation cp --abi cp311 --dest "$partial" -r "$partial/torch.txt"
  wheel=$(echo "$partial"/torch-*.whl)
fi

say "making $cache/python with PyTorch and transformers"
/usr/bin/python3 -m venv --without-pip "$partial/python"
packages=$partial/python/lib/python3.11/site-packages
/usr/bin/python3 -m pip install --quiet --disable-pip-version-check --no-warn-script-location --require-hashes --no-deps \
  --only-binary=:all: --no-compile --target "$packages" -r "$here/python.txt"
unzip -q "$wheel" -x 'torch/include/*' 'torch/lib/lib*' 'torch/bin/protoc*' -d "$packages"
unzip -q "$wheel" 'torch/lib/libtorch_python.so' -d "$packages"
ln -s "$cache"/torch/lib/*.so* "$packages/torch/lib/"
# shellcheck disable=SC2046
"$here/cuda_stubs.py" "$packages/torch/lib" $(
  comm -23 <(readelf -d "$packages"/torch/lib/*.so* | sed -nE 's/.*NEEDED.*\[(libcu.*|libnv.*|libnccl.*)\]/\1/p' | sort -u) \
    <(ls "$packages/torch/lib" | sort))
"$partial/python/bin/python" -c 'import torch; assert float(torch.ones(3).sum()) == 3'
touch "$partial/python/$stamp.done"
rm -rf "$cache/python" "$cache/torch.whl"
mv "$partial/python" "$cache/python"
rm -rf "$partial"
