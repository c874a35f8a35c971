#!/usr/bin/python3
"""Checks the documentation against the project: its commands run, its YAML is valid, its file names and targets exist.

    tests/docs_test.py SOURCE BUILD
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = pathlib.Path(sys.argv.pop(1)), pathlib.Path(sys.argv.pop(1))
# The Python of setup/python.sh.
PYTHON = pathlib.Path(os.environ.get("FUSION_CACHE") or
                      pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fusion") / "python"
PAGES = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def blocks(language):
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text()):
            if match.group(1) == language:
                yield page.name, match.group(2)


class Documentation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = pathlib.Path(tempfile.mkdtemp(prefix="fusion-docs-"))
        shutil.copytree(SOURCE / "examples", cls.scratch / "examples", symlinks=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.scratch)

    def run_line(self, line):
        return subprocess.run(["bash", "-euc", line], cwd=self.scratch, capture_output=True, text=True, timeout=300, check=False,
                              env={"PATH": f"{BUILD / 'bin'}:/usr/bin:/bin:{PYTHON / 'bin'}", "HOME": str(self.scratch),
                                   "PYTHONPATH": str(SOURCE / "python" / "fusion_export")})

    def test_every_shell_command_runs(self):
        ran = 0
        for page, block in blocks("sh"):
            for line in filter(None, map(str.strip, block.splitlines())):
                with self.subTest(page=page, command=line):
                    run = self.run_line(line)
                    self.assertEqual(run.returncode, 0, run.stderr[-2000:])
                    ran += 1
        self.assertGreater(ran, 5)

    def test_every_example_file_is_valid(self):
        for example in sorted((SOURCE / "examples").rglob("*.yaml")):
            with self.subTest(example=example.name):
                run = self.run_line(f"fusionctl validate -f examples/{example.relative_to(SOURCE / 'examples')}")
                self.assertEqual(run.returncode, 0, run.stderr)

    def test_whole_jobs_in_yaml_blocks_are_valid(self):
        checked = 0
        for page, block in blocks("yaml"):
            if "kind: FusionJob" not in block:
                continue
            (self.scratch / "data").mkdir(exist_ok=True)
            (self.scratch / "data" / "corpus.txt").write_text("A line of text to learn from.\n" * 400)
            (self.scratch / "block.yaml").write_text(block)
            with self.subTest(page=page):
                run = self.run_line("fusionctl validate -f block.yaml")
                self.assertEqual(run.returncode, 0, run.stderr)
                checked += 1
        self.assertGreater(checked, 0)

    def test_every_named_file_exists(self):
        folders = "proto|graph|codec|scheduler|worker|operator|cli|tests|bench|docs|examples|python|setup|lint|cmake|crds"
        name = re.compile(rf"`((?:{folders})/[\w./*-]+)`")
        for page in PAGES:
            for path in name.findall(page.read_text()):
                if path.startswith("examples/data"):
                    continue
                with self.subTest(page=page.name, path=path):
                    self.assertTrue(list(SOURCE.glob(path.rstrip("/"))), f"{path} does not exist")

    def test_every_named_test_exists(self):
        declared = set()
        macro = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)\((\w+),\s*(\w+)", re.M)
        for folder in ("proto", "graph", "codec", "scheduler", "worker", "operator", "cli", "tests", "bench"):
            for source in [*(SOURCE / folder).rglob("*_test.cc"), *(SOURCE / folder).rglob("*_test.h")]:
                declared.update(f"{suite}.{name}" for suite, name in macro.findall(source.read_text()))
        for source in (SOURCE / "python").rglob("*_test.py"):
            for suite, body in re.findall(r"^class (\w+)\(.*?\):\n((?:[ \t].*\n|\n)*)", source.read_text(), re.M):
                declared.update(f"{suite}.{name}" for name in re.findall(r"def (test_\w+)", body))
        for name in re.findall(r"`([A-Z]\w+\.(?:[A-Z]|test_)\w+)`", (SOURCE / "docs" / "features.md").read_text()):
            with self.subTest(test=name):
                self.assertIn(name, declared)

    def test_every_make_target_exists(self):
        makefile = (SOURCE / "Makefile").read_text()
        for page in PAGES:
            for target in re.findall(r"`make ([a-z-]+)`|^    make ([a-z-]+)", page.read_text(), re.M):
                target = target[0] or target[1]
                with self.subTest(page=page.name, target=target):
                    self.assertRegex(makefile, rf"(?m)^{target}:")

    def test_links_between_pages_lead_somewhere(self):
        for page in PAGES:
            for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
                with self.subTest(page=page.name, link=link):
                    self.assertTrue((page.parent / link).exists(), link)


if __name__ == "__main__":
    unittest.main(verbosity=2)
