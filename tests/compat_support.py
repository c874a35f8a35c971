"""Jobs of Fusion run from tests that compare its checkpoints with those of PyTorch's libraries.

    $FUSION_CACHE/python/bin/python tests/checkpoint_compat_FAMILY_test.py BUILD
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
FRACTION = 0.2  # of the data, for validation
STEPS = 3

NODES = "".join(f"""---
apiVersion: fusion.dev/v1alpha1
kind: Compnode
metadata: {{name: n{i}}}
spec: {{cluster: home, devices: [{{name: cpu, memory: 4Gi, peakFlops: {{fp32: 5e10}}}}]}}
""" for i in range(2))


class CompatibilityTest(unittest.TestCase):
    """A class of a family sets MODEL, DATA (lines of YAML below spec), BATCH, MICRO and BATCHES, and writes its data."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="fusion-compat-"))
        cls.write_data(cls.folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def validation_rows(cls, rows):
        """Those of `rows` that a validation reads: spread evenly over the tail, as worker/data/row_order.cc has it."""
        tail, count = rows[len(rows) - int(len(rows) * FRACTION):], cls.BATCH * cls.BATCHES
        return [tail[i * len(tail) // count] for i in range(count)]

    def run_job(self, name, task, model, training, expect=0, **environment):
        (self.folder / f"{name}.yaml").write_text(f"""apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {{name: {name}}}
spec:
  task: {task}
  model:
{self.MODEL}
{model}
  data: {{{self.DATA}, validationFraction: {FRACTION}}}
  training:
    batch: {{global: {self.BATCH}, micro: {self.MICRO}}}
    validation: {{batches: {self.BATCHES}}}
{training}
  placement: {{policy: EqualNumber}}
  communication: {{compression: {{type: None}}}}
{NODES}""")
        run = subprocess.run([BUILD / "bin" / "fusionctl", "run", "-f", f"{name}.yaml", "-o", "json"], cwd=self.folder,
                             capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment})
        self.assertEqual(run.returncode, expect, run.stderr + run.stdout)
        return json.loads(run.stdout)

    def train(self, name, **environment):
        training = f"""    steps: {STEPS}
    optimizer: {{type: AdamW, learningRate: 1e-2}}"""
        return self.run_job(name, "Train", "", training, **environment)

    def evaluate(self, name, uri, expect=0):
        return self.run_job(name, "Evaluate", f"    initFrom: {{uri: {uri}}}", "", expect)

    def assert_close(self, loss, expected):
        self.assertLess(abs(loss - expected), 1e-6 * abs(expected), (loss, expected))

    def from_pretrained(self, kind, result, **options):
        """transformers' model of our checkpoint, of which it wants every tensor and no other."""
        model, info = kind.from_pretrained(self.folder / result["checkpoint"], output_loading_info=True, **options)
        for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[keys], keys)
        return model.eval()
