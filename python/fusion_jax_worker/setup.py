"""Adds the messages, which protoc makes of the checkout's protos, to the package: fusion.graph.v1, fusion.wire.v1 and so on."""

import pathlib
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py

PROTOS = pathlib.Path(__file__).resolve().parent.parent.parent / "proto"


class BuildWithMessages(build_py):
    def run(self):
        super().run()
        protoc = shutil.which("protoc")
        if protoc is None or not PROTOS.is_dir():
            raise SystemExit(f"fusion-jax-worker is built in a checkout of Fusion, with protoc on PATH; looked in {PROTOS}")
        protos = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("fusion/**/*.proto"))
        subprocess.run([protoc, f"--proto_path={PROTOS}", f"--python_out={self.build_lib}", *protos], check=True)


setup(packages=["fusion_jax_worker"], cmdclass={"build_py": BuildWithMessages})
