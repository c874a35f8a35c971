#!/usr/bin/python3
"""Checks that folders include only what the architecture allows (docs/architecture.md), and that headers say pragma once.

Prints each offence as FILE:LINE: reason and exits 1 when there is one.
"""
import re
import subprocess
import sys

# Folder -> folders it may include; each may include itself. Generated messages ("fusion/…") belong to proto.
ARROWS = {
    "proto": set(),
    "codec": set(),
    "graph": {"proto"},
    "scheduler": {"proto", "graph", "codec"},
    "worker": {"proto", "graph", "codec"},
    "operator": {"proto", "graph", "codec", "scheduler"},
    "cli": {"proto", "graph", "codec", "scheduler", "operator"},
}
TORCH = re.compile(r'#include [<"](torch|ATen|c10)/')
INCLUDE = re.compile(r'#include "([a-z]+)/')


def offences(path, text):
    folder = path.split("/")[0]
    if path.endswith(".h") and "#pragma once" not in text:
        yield 1, "a header without '#pragma once'"
    for number, line in enumerate(text.splitlines(), 1):
        if TORCH.match(line) and not path.startswith("worker/engine/"):
            yield number, "LibTorch is included by worker/engine only"
        included = INCLUDE.match(line)
        if folder in ARROWS and included and included.group(1) in ARROWS:
            target = included.group(1)
            if target != folder and target not in ARROWS[folder]:
                yield number, f"{folder} may not include {target}"
            if folder == "codec" and target != "codec":
                yield number, "codec is a leaf"


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cc"], capture_output=True, text=True,
                            check=True).stdout.split()
    found = 0
    for path in listed:
        with open(path, encoding="utf-8") as file:
            for line, reason in offences(path, file.read()):
                print(f"{path}:{line}: {reason}")
                found += 1
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
