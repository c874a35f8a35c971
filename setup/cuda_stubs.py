#!/usr/bin/env python3
"""Makes stand-ins for the CUDA libraries that PyTorch's Python half is linked against and this machine lacks.

    setup/cuda_stubs.py FOLDER SONAME…

PyTorch's wheel binds its extension module to cuBLAS, cuDNN and so on (2 GB) even where only the CPU computes. For each SONAME a
library FOLDER/SONAME is written that defines the symbols which libraries of FOLDER import from it: all zero bytes, so that a
call, which no CPU computation makes, ends the process at once instead of computing nonsense. Needs gcc and readelf.
"""
import collections
import pathlib
import re
import subprocess
import sys

# Libraries whose symbols carry no version; those of the others say where they come from.
UNVERSIONED = {"nccl": "libnccl.so.2", "cuFile": "libcufile.so.0", "cusparseLt": "libcusparseLt.so.0"}
# Whose version is not the name of the library.
VERSIONS = {"NVSHMEM": "libnvshmem_host.so.3"}


def imports(library: pathlib.Path):
    """Yields (symbol, version or '') of what the library does not define itself."""
    listing = subprocess.run(["readelf", "--dyn-syms", "-W", library], check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        field = line.split()
        if len(field) >= 8 and field[6] == "UND":
            name, _, version = field[7].partition("@")
            yield name, version.lstrip("@")


def source_of(name: str, version: str) -> str:
    if version:
        return VERSIONS.get(version, version)
    return next((soname for prefix, soname in UNVERSIONED.items() if name.startswith(prefix)), "")


def main(folder: pathlib.Path, sonames: list[str]) -> None:
    symbols: dict[str, dict[str, set[str]]] = {soname: collections.defaultdict(set) for soname in sonames}
    for library in sorted(folder.glob("*.so*")):
        for name, version in imports(library):
            source = source_of(name, version)
            if source in symbols:
                symbols[source][version].add(name)
    for soname, by_version in symbols.items():
        names = sorted(set().union(*by_version.values()))
        # Data that no one may execute: 64 bytes each, for those that are variables.
        assembly = ".data\n" + "".join(f".globl {n}\n.type {n},@object\n.size {n},64\n{n}: .zero 64\n" for n in names)
        script = "".join(f"{version} {{ global: {' '.join(n + ';' for n in sorted(by_version[version]))} }};\n"
                         for version in sorted(by_version) if version)
        arguments = ["gcc", "-shared", "-nostdlib", "-Wl,-z,noexecstack", f"-Wl,-soname,{soname}", "-o", folder / soname]
        if script:
            (folder / "versions.map").write_text(script)
            arguments.append(f"-Wl,--version-script={folder / 'versions.map'}")
        subprocess.run([*arguments, "-x", "assembler", "-"], input=assembly, text=True, check=True)
        (folder / "versions.map").unlink(missing_ok=True)


if __name__ == "__main__":
    if len(sys.argv) < 3 or not re.fullmatch(r"lib\S+\.so\.\d+", sys.argv[2]):
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
