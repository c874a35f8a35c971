#!/usr/bin/python3
"""Runs clang-tidy over the sources of a build folder, each only when it, a project header behind it or the rules changed.

    lint/tidy.py BUILD [--jobs N] [--budget SECONDS] [--advisory] [FILE ...]

A clean file leaves a stamp in $FUSION_CACHE/tidy (default ~/.cache/fusion/tidy) named by the hash of all that the result
depends on, so that another checkout of the same sources finds it: runs add up. Those that changed last come first. With --budget,
files that would start later than that are counted as skipped, and the exit status is still 0 when nothing was found in the others.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

CLANG_TIDY = "clang-tidy-16"
PRECOMPILED = re.compile(r"-Winvalid-pch -include \S+cmake_pch\.hxx ")
INCLUDE = re.compile(rb'#include "([^"]+)"')
ROOT = pathlib.Path(__file__).resolve().parent.parent


def closure(path, seen):
    """Adds path and all project files that it includes; a generated header stands for its proto file."""
    if path in seen or not path.is_file():
        return seen
    seen.add(path)
    for name in INCLUDE.findall(path.read_bytes()):
        name = name.decode()
        proto = re.sub(r"(\.grpc)?\.pb\.h$", ".proto", name)
        closure(ROOT / "proto" / proto if proto != name else ROOT / name, seen)
    return seen


def changed():
    """When each file last changed: its last commit's time, or infinity where it is not committed."""
    git = ["git", "-C", str(ROOT), "-c", "core.quotePath=false"]
    log = subprocess.run([*git, "log", "--format=@%ct", "--name-only"], capture_output=True, text=True, check=True).stdout
    times, time_of_commit = {}, 0
    for line in filter(None, log.splitlines()):
        if line.startswith("@"):
            time_of_commit = int(line[1:])
        else:
            times.setdefault(ROOT / line, time_of_commit)
    dirty = subprocess.run([*git, "status", "--porcelain", "--no-renames", "-uall"], capture_output=True, text=True, check=True)
    times.update((ROOT / line[3:], float("inf")) for line in dirty.stdout.splitlines())
    return times


def stamp_of(source, rules):
    digest = hashlib.sha256(rules)
    for path in sorted(closure(source, set())):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()

    cache = pathlib.Path(os.environ.get("FUSION_CACHE") or
                         pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fusion")
    stamps = cache / "tidy"
    stamps.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, check=True).stdout
    rules = version + (ROOT / ".clang-tidy").read_bytes()
    wanted = {path.resolve() for path in arguments.files}
    database = json.loads((arguments.build / "compile_commands.json").read_text())
    # Clang reads no precompiled header of GCC's: the sources include what they need by themselves.
    folder = arguments.build / "tidy"
    folder.mkdir(exist_ok=True)
    for entry in database:
        entry["command"] = PRECOMPILED.sub("", entry["command"])
    (folder / "compile_commands.json").write_text(json.dumps(database))
    sources = sorted({pathlib.Path(entry["file"]).resolve() for entry in database})
    sources = [path for path in sources if ROOT in path.parents and arguments.build.resolve() not in path.parents and
               (not wanted or path in wanted)]
    pending = [(path, stamps / stamp_of(path, rules)) for path in sources]
    pending = [(path, stamp) for path, stamp in pending if not stamp.exists()]
    times = changed()
    pending.sort(key=lambda item: -times.get(item[0], 0))
    print(f"clang-tidy: {len(sources)} files, {len(sources) - len(pending)} unchanged since they were found clean", flush=True)

    start = time.monotonic()
    skipped, failed = [], []

    def check(item):
        path, stamp = item
        if time.monotonic() - start > arguments.budget:
            skipped.append(path)
            return
        run = subprocess.run([CLANG_TIDY, "--quiet", "-p", str(folder), str(path)], capture_output=True, text=True,
                             check=False)
        if run.returncode == 0:
            stamp.touch()
        else:
            failed.append(path)
            print(run.stdout, flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for number, _ in enumerate(pool.map(check, pending), 1):
            if number % 10 == 0 or number == len(pending):
                print(f"clang-tidy: {number}/{len(pending)}", flush=True)
    if skipped:
        print(f"clang-tidy: {len(skipped)} files skipped for want of time, from {skipped[0].relative_to(ROOT)} on")
    if failed:
        print(f"clang-tidy: {len(failed)} files have findings: {' '.join(str(p.relative_to(ROOT)) for p in sorted(failed))}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
