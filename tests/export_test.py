#!/usr/bin/env python
"""Models exported from PyTorch, trained by Fusion over four stages, against PyTorch itself.

    python tests/export_test.py SOURCE BUILD      with the Python of setup/python.sh
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn

SOURCE, BUILD = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
sys.path.insert(0, str(SOURCE / "python" / "fusion_export"))
import fusion_export  # noqa: E402

ROWS, COLUMNS = 24, 6
COMPNODES = "".join(f"""---
apiVersion: fusion.dev/v1alpha1
kind: Compnode
metadata: {{name: n{i}}}
spec: {{cluster: home, devices: [{{name: cpu, kind: CPU, memory: 1Gi}}]}}
""" for i in range(4))


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(COLUMNS, 16)
        self.body = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.SiLU()) for _ in range(3))
        self.last = nn.Linear(32, 2)

    def forward(self, x):
        x = first = self.first(x)
        for part in self.body:
            x = x + torch.cumsum(part(x), 1) / 16
        return self.last(torch.cat([x, first], 1))


class Trained(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="fusion-export-")
        self.folder = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def fusionctl(self, *arguments):
        run = subprocess.run([BUILD / "bin" / "fusionctl", *arguments], cwd=self.folder, capture_output=True, text=True,
                             timeout=240, check=False)
        self.assertEqual(run.returncode, 0, run.stderr[-3000:])
        return run.stdout

    def job(self, spec, compnodes=COMPNODES):
        text = f"apiVersion: fusion.dev/v1alpha1\nkind: FusionJob\nmetadata: {{name: job}}\nspec: {json.dumps(spec)}\n{compnodes}"
        (self.folder / "job.yaml").write_text(text)

    def losses(self):
        return [json.loads(line)["loss"] for line in (self.folder / "fusion-work/job/metrics.jsonl").read_text().splitlines()]

    def test_pytorch_and_four_stages_learn_the_same(self):
        """Every step sees all rows, so that their order is of no account."""
        generator = random.Random(5)
        rows = [[round(generator.uniform(-1, 1), 4) for _ in range(COLUMNS)] for _ in range(ROWS)]
        rows = [r + [round(sum(r), 4), round(r[0] * r[1], 4)] for r in rows]
        header = ",".join([f"c{i}" for i in range(COLUMNS)] + ["y0", "y1"])
        (self.folder / "rows.csv").write_text("\n".join([header, *[",".join(map(str, r)) for r in rows]]) + "\n")
        torch.manual_seed(2)
        module = Skip()
        fusion_export.export(module, (torch.randn(4, COLUMNS), torch.randn(4, 2)), loss=nn.MSELoss(),
                             path=self.folder / "model.json")
        self.job({"model": {"graph": {"uri": "model.json"}},
                  "data": {"kind": "table", "uri": "rows.csv", "standardize": False, "validationFraction": 0},
                  "training": {"steps": 20, "batch": {"global": ROWS, "micro": 6}, "seed": 1,
                               "optimizer": {"type": "SGD", "learningRate": 0.05, "momentum": 0.9}},
                  "placement": {"policy": "EqualNumber"}, "communication": {"compression": {"type": "None"}}})
        self.fusionctl("run", "-f", "job.yaml")
        plan = json.loads((self.folder / "fusion-work/job/plan.json").read_text())
        self.assertEqual(len(plan["stages"]), 4)
        self.assertIn((0, 3), {(link["from"], link["to"]) for link in plan["links"]}, "the skip passes by two stages")

        data = torch.tensor(rows)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        expected = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(module(data[:, :COLUMNS]), data[:, COLUMNS:])
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        self.assertLess(expected[-1], 0.3 * expected[0], "nothing was learned")
        for step, (ours, theirs) in enumerate(zip(self.losses(), expected, strict=True), 1):
            self.assertAlmostEqual(ours / theirs, 1, delta=1e-5, msg=f"step {step}")

        from safetensors.torch import load_file
        saved = load_file(self.folder / "fusion-work/job/checkpoints/step-20/model.safetensors")
        self.assertEqual(set(saved), set(module.state_dict()))
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(saved[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")

    def test_an_operator_that_libtorch_does_not_have_is_named_before_training(self):
        fusion_export.export(nn.Linear(COLUMNS, 1), (torch.randn(4, COLUMNS), torch.randn(4, 1)), loss=nn.MSELoss(),
                             path=self.folder / "model.json")
        text = (self.folder / "model.json").read_text()
        (self.folder / "model.json").write_text(text.replace('"type": "aten.mse_loss"', '"type": "aten.mean_loss"'))
        (self.folder / "rows.csv").write_text("a,b,c,d,e,f,y\n" + "1,2,3,4,5,6,7\n" * 8)
        self.job({"model": {"graph": {"uri": "model.json"}}, "data": {"kind": "table", "uri": "rows.csv", "standardize": False},
                  "training": {"steps": 2, "batch": {"global": 4, "micro": 4}, "optimizer": {"type": "SGD", "learningRate": 0.1}}})
        run = subprocess.run([BUILD / "bin" / "fusionctl", "run", "-f", "job.yaml"], cwd=self.folder, capture_output=True,
                             text=True, timeout=240, check=False)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("'loss' (aten.mean_loss)", run.stderr)
        self.assertFalse((self.folder / "fusion-work/job/metrics.jsonl").exists())


class Package(unittest.TestCase):
    def test_the_example_is_what_its_program_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "model.py"
            copy.write_text((SOURCE / "examples/custom-graph/model.py").read_text())
            subprocess.run([sys.executable, copy], check=True, capture_output=True,
                           env={"PYTHONPATH": str(SOURCE / "python/fusion_export"), "HOME": folder, "PATH": "/usr/bin:/bin"})
            for name in ("model.json", "model.safetensors"):
                self.assertEqual((pathlib.Path(folder) / name).read_bytes(), (SOURCE / "examples/custom-graph" / name).read_bytes(),
                                 f"examples/custom-graph/{name} is stale: run its model.py")

    def test_pip_installs_it(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "source"
            subprocess.run(["cp", "-r", SOURCE / "python/fusion_export", source], check=True)
            subprocess.run(["/usr/bin/python3", "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
                            "--target", f"{folder}/site", source], check=True, capture_output=True)
            found = subprocess.run([sys.executable, "-c", "import fusion_export; print(fusion_export.__file__)"], check=True,
                                   capture_output=True, text=True, env={"PYTHONPATH": f"{folder}/site"}).stdout
            self.assertTrue(found.startswith(f"{folder}/site/"), found)


if __name__ == "__main__":
    unittest.main(verbosity=2)
