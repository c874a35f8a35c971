#!/usr/bin/env python3
"""Checkpoints of Fusion load in transformers with an equal loss, and those of transformers load in Fusion.

    $FUSION_CACHE/python/bin/python tests/checkpoint_compat_test.py BUILD
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

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
CONTEXT, BATCH, BATCHES = 16, 4, 3
TEXT = bytes((i * i + 7 * i) % 251 for i in range(3000))
FRACTION = 0.2

NODES = "".join(f"""---
apiVersion: fusion.dev/v1alpha1
kind: Compnode
metadata: {{name: n{i}}}
spec: {{cluster: home, devices: [{{name: cpu, memory: 4Gi, peakFlops: {{fp32: 5e10}}}}]}}
""" for i in range(2))


def gpt2_job(name, task, model="", training=""):
    return f"""apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {{name: {name}}}
spec:
  task: {task}
  model:
    family: gpt2
    config: {{layers: 2, heads: 2, width: 16, context: {CONTEXT}, vocabulary: 256}}
{model}
  data: {{kind: text, uri: text, validationFraction: {FRACTION}}}
  training:
    batch: {{global: {BATCH}, micro: 2}}
    validation: {{batches: {BATCHES}}}
{training}
  placement: {{policy: EqualNumber}}
  communication: {{compression: {{type: None}}}}
{NODES}"""


def validation_windows():
    """Those of worker/data/text.cc: spread evenly over the tail of the text."""
    first = len(TEXT) - int(len(TEXT) * FRACTION)
    starts, count = len(TEXT) - first - CONTEXT, BATCH * BATCHES
    begins = [first + i * starts // count for i in range(count)]
    return torch.tensor([list(TEXT[b:b + CONTEXT + 1]) for b in begins])


def gpt2_loss(model):
    windows = validation_windows()
    model.eval()
    with torch.no_grad():
        logits = model.float()(input_ids=windows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, 256), windows[:, 1:].reshape(-1)).item()


def gpt2_config():
    return transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=CONTEXT, vocab_size=256, resid_pdrop=0,
                                   embd_pdrop=0, attn_pdrop=0, initializer_range=0.3, bos_token_id=0, eos_token_id=0)


class Compatibility(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="fusion-compat-"))
        (cls.folder / "text").write_bytes(TEXT)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def run_job(self, text, expect=0, **environment):
        name = text.split("{name: ")[1].split("}")[0]
        (self.folder / f"{name}.yaml").write_text(text)
        run = subprocess.run([BUILD / "bin" / "fusionctl", "run", "-f", f"{name}.yaml", "-o", "json"], cwd=self.folder,
                             capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment})
        self.assertEqual(run.returncode, expect, run.stderr + run.stdout)
        return json.loads(run.stdout)

    def train(self, name, **environment):
        training = """    steps: 3
    optimizer: {type: AdamW, learningRate: 1e-2}"""
        return self.run_job(gpt2_job(name, "Train", training=training), **environment)

    def evaluate(self, name, uri, expect=0):
        return self.run_job(gpt2_job(name, "Evaluate", model=f"    initFrom: {{uri: {uri}}}"), expect)

    def assert_close(self, loss, expected):
        self.assertLess(abs(loss - expected), 1e-6 * abs(expected), (loss, expected))

    def check_transformers_loads(self, result):
        model, info = transformers.GPT2LMHeadModel.from_pretrained(self.folder / result["checkpoint"], output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[kind], kind)
        self.assert_close(gpt2_loss(model), result["validationLoss"])

    def test_transformers_loads_ours(self):
        result = self.train("ours")
        self.check_transformers_loads(result)
        # The optimizer's state is PyTorch's, by the parameter's name.
        checkpoint = self.folder / result["checkpoint"]
        state = load_file(checkpoint / "optimizer.safetensors")
        with safe_open(checkpoint / "model.safetensors", "pt") as model:
            for name in model.keys():
                self.assertEqual(state[f"{name}.exp_avg"].shape, model.get_tensor(name).shape)
                self.assertEqual(int(state[f"{name}.step"]), 3)
                self.assertGreaterEqual(float(state[f"{name}.exp_avg_sq"].min()), 0)

    def test_transformers_loads_our_shards(self):
        result = self.train("our-shards", FUSION_CHECKPOINT_SHARD_BYTES="20000")
        checkpoint = self.folder / result["checkpoint"]
        self.assertGreater(len(list(checkpoint.glob("model-*-of-*.safetensors"))), 2)
        self.assertFalse((checkpoint / "model.safetensors").exists())
        self.check_transformers_loads(result)
        self.assert_close(self.evaluate("our-shards-again", checkpoint)["validationLoss"], result["validationLoss"])

    def test_ours_loads_theirs(self):
        torch.manual_seed(5)
        model = transformers.GPT2LMHeadModel(gpt2_config())
        expected = gpt2_loss(model)
        variants = {
            "whole": (model, {}),
            "shards": (model, {"max_shard_size": "20KB"}),
            "without-prefix": (model.transformer, {}),
        }
        for name, (saved, options) in variants.items():
            with self.subTest(variant=name):
                saved.save_pretrained(self.folder / name, **options)
                self.assertEqual((self.folder / name / "model.safetensors.index.json").exists(), name == "shards")
                self.assert_close(self.evaluate(f"their-{name}", name)["validationLoss"], expected)

    def test_ours_converts_theirs(self):
        torch.manual_seed(6)
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            name = str(dtype).split(".")[1]
            with self.subTest(dtype=name):
                model = transformers.GPT2LMHeadModel(gpt2_config()).to(dtype)
                model.save_pretrained(self.folder / name)
                result = self.evaluate(f"their-{name}", f"{name}/model.safetensors")
                self.assert_close(result["validationLoss"], gpt2_loss(model))

    def test_what_does_not_fit_is_listed(self):
        torch.manual_seed(7)
        tensors = transformers.GPT2LMHeadModel(gpt2_config()).state_dict()
        tensors.pop("lm_head.weight")
        tensors.pop("transformer.ln_f.bias")
        tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"][:8].clone()
        tensors["score.weight"] = torch.zeros(2)
        save_file(tensors, self.folder / "wrong.safetensors")
        result = self.evaluate("wrong", "wrong.safetensors", expect=1)
        for words in ("missing: transformer.ln_f.bias;",
                      f"misshaped: transformer.wpe.weight is FLOAT32[8, 16], the model needs FLOAT32[{CONTEXT}, 16];",
                      "of no variable: score.weight"):
            self.assertIn(words, result["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
