#!/usr/bin/python3
"""run.py JAX_PYTHON BUILD MESSAGES TEST [ARGUMENT…]: runs a test by the Python of setup/jax.sh; status 77 (skipped) where there is none."""

import os
import pathlib
import sys

python, build, messages, test, *more = sys.argv[1:]
if not os.access(python, os.X_OK):
    print(f"{python} is not there: run setup/jax.sh")
    sys.exit(77)
source = pathlib.Path(__file__).resolve().parent.parent
os.environ["PYTHONPATH"] = f"{messages}:{source}"
os.environ["FUSION_BUILD"] = build
os.execv(python, [python, "-P", test, *more])
