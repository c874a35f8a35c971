#!/usr/bin/env python
"""A network written in PyTorch, exported for Fusion: writes model.json and model.safetensors beside this file.

    python examples/custom-graph/model.py

Needs PyTorch and fusion_export (pip install ./python/fusion_export).
"""
import pathlib

import torch
from torch import nn

import fusion_export


class Mixer(nn.Module):
    """Running sums over the features, gated; the first layer is seen again at the end."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, width)
        self.act = nn.SiLU()

    def forward(self, x):
        return x + self.act(self.gate(self.norm(x))) * torch.cumsum(x, dim=1) / x.shape[1]


class Network(nn.Module):
    def __init__(self, columns=10, width=24, depth=4):
        super().__init__()
        self.first = nn.Linear(columns, width)
        self.mixers = nn.ModuleList(Mixer(width) for _ in range(depth))
        self.dropout = nn.Dropout(0.1)
        self.last = nn.Linear(2 * width, 1)

    def forward(self, x):
        x = first = self.first(x)
        for mixer in self.mixers:
            x = mixer(x)
        return self.last(self.dropout(torch.cat([x, first], dim=1)))


if __name__ == "__main__":
    torch.manual_seed(1)
    path = fusion_export.export(Network(), (torch.randn(4, 10), torch.randn(4, 1)), loss=nn.MSELoss(),
                                path=pathlib.Path(__file__).with_name("model.json"), name="mixer")
    print(f"wrote {path.name} and {path.with_suffix('.safetensors').name}")
