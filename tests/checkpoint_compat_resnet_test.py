#!/usr/bin/env python3
"""Checkpoints of resnet load in a module of torchvision's shape with an equal loss, and those of such a module load in
Fusion, BatchNorm's statistics included.

    $FUSION_CACHE/python/bin/python tests/checkpoint_compat_resnet_test.py BUILD
"""
import unittest

from compat_support import STEPS, CompatibilityTest  # first: it sets the environment

import torch
from safetensors.torch import load_file, save_file
from torchvision_resnet import ResNet

CLASSES, CHANNELS, SIDE, SCALE = 3, 2, 12, 0.125


class Images:
    """Mixed into a test of one kind of block: SIZES are torchvision_resnet.ResNet's."""
    DATA = f"kind: images, uri: images.csv, scale: {SCALE}"
    BATCH, MICRO, BATCHES = 8, 4, 2
    ROWS = [[(i * p * p + 5 * p + i // 7) % 17 for p in range(CHANNELS * SIDE * SIDE)] + [i % CLASSES] for i in range(120)]

    @classmethod
    def write_data(cls, folder):
        (folder / "images.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in cls.ROWS))

    def module(self):
        return ResNet(**self.SIZES, classes=CLASSES, channels=CHANNELS)

    def scores(self, model):
        """Loss and accuracy of the validation, with running statistics."""
        rows = torch.tensor(self.validation_rows(self.ROWS))
        images = rows[:, :-1].reshape(-1, CHANNELS, SIDE, SIDE).float() * SCALE
        with torch.no_grad():
            output = model.eval()(images)
        loss = torch.nn.functional.cross_entropy(output, rows[:, -1]).item()
        return loss, (output.argmax(1) == rows[:, -1]).float().mean().item()

    def check(self, result, expected):
        self.assert_close(result["validationLoss"], expected[0])

    def test_torchvision_loads_ours(self):
        result = self.train("ours")
        tensors = load_file(self.folder / result["checkpoint"] / "model.safetensors")
        model = self.module()
        fresh = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(tensors)  # strict: every name, and no other
        for name, value in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                self.assertEqual(int(value), STEPS * self.BATCH // self.MICRO, name)
            elif "running_" in name:
                self.assertFalse(torch.equal(value, fresh[name]), name)
        self.check(result, self.scores(model))

    def test_ours_loads_theirs(self):
        torch.manual_seed(5)
        model = self.module().train()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # which start at 1 or 0
                torch.nn.init.normal_(parameter, mean=parameter[0].item(), std=0.2)
        with torch.no_grad():
            for _ in range(5):  # moves the statistics, differently for every channel
                model(torch.randn(16, CHANNELS, SIDE, SIDE) * 2 + torch.randn(1, CHANNELS, 1, 1))
        expected = self.scores(model)
        tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
        without_counters = {name: value for name, value in tensors.items() if not name.endswith("num_batches_tracked")}
        variants = {
            "whole": tensors,
            "before-2018": without_counters,
            "data-parallel": {f"module.{name}": value for name, value in tensors.items()},
        }
        for name, saved in variants.items():
            with self.subTest(variant=name):
                save_file(saved, self.folder / f"{name}.safetensors")
                self.check(self.evaluate(f"their-{name}", f"{name}.safetensors"), expected)

    def test_statistics_are_needed(self):
        tensors = self.module().state_dict()
        tensors.pop("bn1.running_var")
        save_file(tensors, self.folder / "without.safetensors")
        result = self.evaluate("without", "without.safetensors", expect=1)
        self.assertIn("missing: bn1.running_var", result["message"])


class BasicBlocks(Images, CompatibilityTest):
    SIZES = {"blocks": [1, 2], "bottleneck": False, "width": 4, "small": True}
    MODEL = f"""    family: resnet
    config: {{blocks: [1, 2], width: 4, classes: {CLASSES}, imageSize: {SIDE}, channels: {CHANNELS}, stem: small}}"""


class Bottlenecks(Images, CompatibilityTest):
    SIZES = {"blocks": [1, 1, 1], "bottleneck": True, "width": 4, "small": False}
    MODEL = f"""    family: resnet
    config: {{blocks: [1, 1, 1], bottleneck: true, width: 4, classes: {CLASSES}, imageSize: {SIDE}, channels: {CHANNELS}}}"""


if __name__ == "__main__":
    unittest.main(verbosity=2)
