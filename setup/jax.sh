#!/usr/bin/env bash
# Installs JAX for the second engine (python/fusion_jax_worker) into $FUSION_CACHE/jax, a virtual environment of Debian's
# Python: about 150 MB to download, 620 MB on disk. `make test` calls it; everything else does without. Not twice: a stamp.
#
#   setup/jax.sh            install
#   setup/jax.sh --check    only say whether it is missing; exit 1 when it is
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FUSION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fusion}
say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

stamp=$cache/jax/wheels-$(sha256sum "$here/jax-wheels.txt" | cut -c1-16).done
[ -e "$stamp" ] && exit 0
if [ "${1:-}" = --check ]; then say "missing JAX in $cache/jax"; exit 1; fi
say "installing JAX (150 MB, once) into $cache/jax"
mkdir -p "$cache"
rm -rf "$cache/jax"
# Without pip in it: Debian's pip installs from outside, and python3-venv is not needed.
/usr/bin/python3 -m venv --without-pip "$cache/jax"
/usr/bin/python3 -m pip --python "$cache/jax/bin/python" install --quiet --disable-pip-version-check --require-hashes --no-deps \
  --only-binary=:all: -r "$here/jax-wheels.txt"
"$cache/jax/bin/python" -c 'import grpc, jax, xxhash, google.protobuf'
touch "$stamp"
