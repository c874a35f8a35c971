#!/usr/bin/env python3
"""Checkpoints of gpt2 load in transformers with an equal loss, and those of transformers load in Fusion.

    $FUSION_CACHE/python/bin/python tests/checkpoint_compat_gpt2_test.py BUILD
"""
import unittest

from compat_support import FRACTION, STEPS, CompatibilityTest  # first: it sets the environment

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

CONTEXT = 16
TEXT = bytes((i * i + 7 * i) % 251 for i in range(3000))


def gpt2_config():
    return transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=CONTEXT, vocab_size=256, resid_pdrop=0,
                                   embd_pdrop=0, attn_pdrop=0, initializer_range=0.3, bos_token_id=0, eos_token_id=0)


class Gpt2(CompatibilityTest):
    MODEL = f"""    family: gpt2
    config: {{layers: 2, heads: 2, width: 16, context: {CONTEXT}, vocabulary: 256}}"""
    DATA = "kind: text, uri: text"
    BATCH, MICRO, BATCHES = 4, 2, 3

    @classmethod
    def write_data(cls, folder):
        (folder / "text").write_bytes(TEXT)

    def validation_windows(self):
        """Those of worker/data/text.cc: spread evenly over the tail of the text."""
        first = len(TEXT) - int(len(TEXT) * FRACTION)
        starts, count = len(TEXT) - first - CONTEXT, self.BATCH * self.BATCHES
        begins = [first + i * starts // count for i in range(count)]
        return torch.tensor([list(TEXT[b:b + CONTEXT + 1]) for b in begins])

    def loss(self, model):
        windows = self.validation_windows()
        model.eval()
        with torch.no_grad():
            logits = model.float()(input_ids=windows[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.reshape(-1, 256), windows[:, 1:].reshape(-1)).item()

    def check_transformers_loads(self, result):
        model = self.from_pretrained(transformers.GPT2LMHeadModel, result)
        self.assert_close(self.loss(model), result["validationLoss"])

    def test_transformers_loads_ours(self):
        result = self.train("ours")
        self.check_transformers_loads(result)
        # The optimizer's state is PyTorch's, by the parameter's name.
        checkpoint = self.folder / result["checkpoint"]
        state = load_file(checkpoint / "optimizer.safetensors")
        with safe_open(checkpoint / "model.safetensors", "pt") as model:
            for name in model.keys():
                self.assertEqual(state[f"{name}.exp_avg"].shape, model.get_tensor(name).shape)
                self.assertEqual(int(state[f"{name}.step"]), STEPS)
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
        expected = self.loss(model)
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
                self.assert_close(result["validationLoss"], self.loss(model))

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
