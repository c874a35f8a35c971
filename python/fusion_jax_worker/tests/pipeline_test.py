"""Pipelines of one LibTorch and one JAX stage, and more, as real processes: every loss is that of the all-LibTorch run within
1e-5, validation included.
"""

import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

BUILD = os.environ["FUSION_BUILD"]
STEPS = 20

GPT2 = """
  model: {family: gpt2, config: {layers: 2, heads: 2, width: 16, context: 16, vocabulary: 256, dropout: 0.1}}
  data: {kind: text, uri: text.txt}
  training:
    steps: 20
    batch: {global: 8, micro: 2}
    seed: 3
    optimizer: {type: AdamW, learningRate: 1e-2, weightDecay: 0.1}
    learningRateSchedule: {type: Cosine, warmupSteps: 2, finalFraction: 0.1}
    parameterGroups: [{match: "*.bias", optimizer: {weightDecay: 0}}]
    validation: {everySteps: 10, batches: 1}
"""
MLP = """
  model: {family: mlp, config: {inputs: 3, hidden: [8, 8, 8], outputs: 1}}
  data: {kind: table, uri: table.csv}
  training:
    steps: 20
    batch: {global: 16, micro: 4}
    seed: 3
    optimizer: {type: SGD, learningRate: 1e-2, momentum: 0.9, nesterov: true}
    pipeline: {schedule: GPipe}
    validation: {everySteps: 10, batches: 1}
"""


def manifest(job, engines, compression="None"):
    """The job over compnodes n0, n1, … with these engines."""
    text = f"""apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {{name: job}}
spec:{job}  communication: {{compression: {{type: {compression}}}}}
"""
    for number, engine in enumerate(engines):
        text += f"""---
apiVersion: fusion.dev/v1alpha1
kind: Compnode
metadata: {{name: n{number}, annotations: {{fusion.dev/engine: {engine}}}}}
spec:
  cluster: home
  devices: [{{name: cpu, memory: 4Gi, peakFlops: {{fp32: 5e10}}}}]
"""
    return text


def cut(plan, bounds, stages):
    """The one stage of `plan` cut at these fractions; segment i goes to stage i % stages."""
    operators = plan["stages"][0]["operators"]
    places = [0, *(round(bound * len(operators)) for bound in bounds), len(operators)]
    segments = [operators[begin:end] for begin, end in zip(places, places[1:])]
    result = {**plan, "links": [], "stages": []}
    for stage in range(stages):
        own = list(enumerate(segments))[stage::stages]
        result["stages"].append({**plan["stages"][0], "index": stage, "compnode": f"n{stage}",
                                 "operators": [name for _, segment in own for name in segment],
                                 "subDags": [{"operators": segment, "depth": len(segments) - place + 1}
                                             for place, segment in own]})
    return result


class PipelineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls._folder.name)
        numbers = random.Random(7)
        (cls.folder / "text.txt").write_text("".join(f"the {numbers.randrange(7)} quick foxes " for _ in range(1000)))
        rows = [[numbers.randrange(100) / 10 for _ in range(3)] for _ in range(200)]
        (cls.folder / "table.csv").write_text(
            "a,b,c,target\n" + "".join(f"{a},{b},{c},{2 * a - b + 0.5 * c}\n" for a, b, c in rows))
        cls.uncut = {}

    @classmethod
    def tearDownClass(cls):
        cls._folder.cleanup()

    def _ctl(self, *arguments):
        return subprocess.run([f"{BUILD}/bin/fusionctl", *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              timeout=240, check=False)

    def _run(self, name, text, plan=None):
        """metrics.jsonl of a run that succeeds."""
        (self.folder / f"{name}.yaml").write_text(text)
        arguments = ["run", "-f", f"{name}.yaml", "--workdir", name]
        if plan is not None:
            (self.folder / f"{name}.json").write_text(json.dumps(plan))
            arguments += ["--plan", f"{name}.json"]
        done = self._ctl(*arguments)
        logs = "".join(log.read_text() for log in sorted((self.folder / name).glob("job/logs/*")))
        self.assertEqual(done.returncode, 0, done.stderr + logs)
        lines = (self.folder / name / "job/metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def _reference(self, job):
        """(plan of one stage, metrics of its run by LibTorch)"""
        if job not in self.uncut:
            name = f"uncut{len(self.uncut)}"
            metrics = self._run(name, manifest(job, ["torch"]))
            self.uncut[job] = (json.loads((self.folder / name / "job/plan.json").read_text()), metrics)
        return self.uncut[job]

    def _assert_equal_losses(self, metrics, expected):
        self.assertEqual(len(metrics), STEPS)
        self.assertLess(expected[-1]["loss"], 0.9 * expected[0]["loss"], "it learns")
        validations = 0
        for found, wanted in zip(metrics, expected):
            for field in ("loss", "validationLoss"):
                self.assertEqual(field in found, field in wanted)
                if field in wanted:
                    self.assertAlmostEqual(found[field] / wanted[field], 1, delta=1e-5, msg=f"{field} of step {wanted['step']}")
            self.assertAlmostEqual(found["gradientNorm"] / wanted["gradientNorm"], 1, delta=1e-4)
            validations += "validationLoss" in wanted
        self.assertEqual(validations, 2)

    def test_gpt2_with_jax_first(self):
        plan, expected = self._reference(GPT2)
        found = self._run("gpt2-first", manifest(GPT2, ["jax", "torch"]), cut(plan, [0.5], 2))
        self._assert_equal_losses(found, expected)
        self._assert_equal_checkpoints("gpt2-first", "uncut0")

    def test_gpt2_with_jax_last(self):
        """The tied embedding is lent by LibTorch."""
        plan, expected = self._reference(GPT2)
        self._assert_equal_losses(self._run("gpt2-last", manifest(GPT2, ["torch", "jax"]), cut(plan, [0.5], 2)), expected)

    def test_mlp_with_two_sub_dags_a_stage(self):
        plan, expected = self._reference(MLP)
        found = self._run("mlp", manifest(MLP, ["jax", "torch"]), cut(plan, [0.25, 0.5, 0.75], 2))
        self._assert_equal_losses(found, expected)

    def test_mlp_with_jax_in_the_middle(self):
        plan, expected = self._reference(MLP)
        found = self._run("mlp-middle", manifest(MLP, ["torch", "jax", "torch"]), cut(plan, [0.3, 0.7], 3))
        self._assert_equal_losses(found, expected)

    def _assert_equal_checkpoints(self, name, reference):
        """JAX has written its part and, as stage 0, the whole."""
        checked = 0
        for file in ("model.safetensors", "optimizer.safetensors"):
            found, expected = (self._load(self.folder / run / f"job/checkpoints/step-{STEPS}" / file) for run in (name, reference))
            self.assertEqual(found.keys(), expected.keys())
            for tensor in expected:
                self.assertEqual(found[tensor].dtype, expected[tensor].dtype)
                self.assertEqual(found[tensor].shape, expected[tensor].shape)
                checked += 1
        self.assertGreater(checked, 50)
        state = json.loads((self.folder / name / f"job/checkpoints/step-{STEPS}/training-state.json").read_text())
        self.assertEqual(state, json.loads((self.folder / reference / f"job/checkpoints/step-{STEPS}/training-state.json")
                                           .read_text()))

    @staticmethod
    def _load(path):
        from fusion_jax_worker import safetensors

        return safetensors.load(str(path))


if __name__ == "__main__":
    unittest.main(verbosity=2)
