"""What is exported computes what the module computes, for every batch size; what cannot be exported is refused with its place."""
import json
import pathlib
import sys
import tempfile
import unittest

import torch
import torch.nn.functional as F
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import fusion_export  # noqa: E402
import interpreter  # noqa: E402


class Residual(nn.Module):
    """Operators outside Fusion's registry, and a skip over everything."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.SiLU()) for _ in range(3))
        self.last = nn.Linear(8, 4)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, x):
        x = skip = self.first(x)
        for block in self.blocks:
            x = x + torch.cumsum(block(x) * self.scale, 1) / x.shape[1]
        return self.last(torch.cat([x, skip], 1)[:, 4:12])


class Transformer(nn.Module):
    def __init__(self, dropout=0.0, norm_first=True):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.randn(5, 8) * 0.1)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True, norm_first=norm_first)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        steps = torch.arange(5, device=ids.device)
        hidden = self.embedding(ids) + self.position + 0.01 * steps.view(1, 5, 1)
        causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
        return self.head(self.block(hidden, src_mask=causal))


def tokens(output, label):
    return F.cross_entropy(output.flatten(0, 1), label.flatten())


class Pictures(nn.Module):
    def __init__(self, inplace):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=inplace),
                                      nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, groups=2, padding=1), nn.Hardswish(inplace=inplace))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.features(x)
        return self.head(x.mean((2, 3)))


def ids(samples, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 11, (samples, 5), generator=generator)


class Export(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        torch.use_deterministic_algorithms(True)

    def check(self, module, batch, loss, sizes=(1, 2, 5), rtol=1e-6):
        """Exports, and compares loss and gradients at several batch sizes; returns graph and values."""
        graph, values = fusion_export.to_graph(module, batch(3), loss=loss)
        for samples in sizes:
            example = batch(samples)
            module.zero_grad()
            state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            expected = loss(module(*example[:1]), *example[1:])
            expected.backward()
            actual, leaves = interpreter.run(graph, values, dict(zip(("input", "label"), example)))
            actual.backward()
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=0)
            gradients = {name: p.grad for name, p in module.named_parameters()}
            trained = {op["variable"]["tensorName"] for op in graph["operators"]
                       if op["kind"] == "VARIABLE" and op["variable"]["trainable"]}
            self.assertEqual(set(gradients), trained)
            for name, gradient in gradients.items():
                torch.testing.assert_close(leaves[name].grad, gradient, rtol=1e-5, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")
            for name, buffer in module.named_buffers():  # what a pass changed by itself
                if name in leaves:
                    torch.testing.assert_close(leaves[name], buffer, rtol=1e-6, atol=0)
            module.load_state_dict(state)
        return graph, values

    def names(self, graph, kind=None):
        return [op["name"] for op in graph["operators"] if kind in (None, op["kind"])]

    def test_operators_outside_the_registry_and_a_skip(self):
        graph, values = self.check(Residual(), lambda n: (torch.randn(n, 6), torch.randn(n, 4)), nn.MSELoss())
        types = {op.get("type") for op in graph["operators"]}
        self.assertLessEqual({"aten.silu", "aten.cumsum", "aten.cat", "aten.linear"}, types)
        self.assertIn("blocks.1.2", self.names(graph), "a module with one operator gives it its path")
        self.assertEqual(graph["loss"], {"value": "loss", "index": 0})
        self.assertTrue(torch.equal(values["scale"], torch.linspace(0.5, 1.5, 8)))

    def test_transformer_with_a_tied_head(self):
        for norm_first in (True, False):
            graph, values = self.check(Transformer(norm_first=norm_first), lambda n: (ids(n), ids(n, 2)), tokens)
            self.assertEqual(set(values), set(dict(Transformer().named_parameters())), "the head's weight is the embedding's")
            readers = [op["name"] for op in graph["operators"] if {"value": "embedding.weight", "index": 0} in op.get("args", [])]
            self.assertEqual(readers, ["embedding", "head"])
            sizes = [a["ints"] for op in graph["operators"] if op.get("type") == "aten.view" for a in op["args"] if "ints" in a]
            self.assertTrue(any(item.get("timesBatch") == 2 for ints in sizes for item in ints), "2 heads x batch")

    def test_dropout_is_a_mask_with_a_key(self):
        module = Transformer(dropout=0.25)
        graph, values = fusion_export.to_graph(module, (ids(3), ids(3, 2)), loss=tokens)
        masks = [op for op in graph["operators"] if op.get("type") == "fusion.dropout_mask"]
        self.assertEqual([op["name"] for op in masks],
                         ["block.self_attn.scaled_dot_product_attention.mask", "block.dropout1.mask", "block.dropout.mask",
                          "block.dropout2.mask"])
        for op in masks:
            self.assertEqual(op["args"][1:], [{"double": 0.25}, {"randomKey": True}, {"training": True}])
        self.assertFalse({"aten.dropout", "aten.scaled_dot_product_attention"} & {op.get("type") for op in graph["operators"]})
        # Evaluated, it is the module without dropout; trained, it differs, and the same masks give the same loss.
        feeds = {"input": ids(4), "label": ids(4, 2)}
        loss, _ = interpreter.run(graph, values, feeds, training=False)
        # The fast path of eval() rounds differently.
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        module.block.self_attn.dropout = 0.0
        torch.testing.assert_close(loss, tokens(module(feeds["input"]), feeds["label"]), rtol=1e-5, atol=0)
        drawn = {}
        first, _ = interpreter.run(graph, values, feeds, masks=drawn)
        self.assertEqual(len(drawn), 4)
        self.assertNotEqual(first.item(), loss.item())
        again, _ = interpreter.run(graph, values, feeds, masks=drawn)
        self.assertEqual(first.item(), again.item())

    def test_dropped_attention_is_attention(self):
        """Spelt out, with every kind of mask, it is what the fused operator computes."""
        class Attention(nn.Module):
            def __init__(self, kind):
                super().__init__()
                self.kind, self.project = kind, nn.Linear(8, 24)

            def forward(self, x):
                q, k, v = self.project(x).view(-1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
                hidden = torch.ones(5, 5).tril() > 0
                mask = {"bool": hidden, "float": torch.zeros(5, 5).masked_fill(~hidden, -3.0)}.get(self.kind)
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.p, is_causal=self.kind == "causal")

        for kind in ("none", "causal", "bool", "float"):
            with self.subTest(kind=kind):
                module = Attention(kind)
                module.p = 0.5
                graph, values = fusion_export.to_graph(module, (torch.randn(3, 5, 8),), loss=lambda y: y.square().mean())
                x = torch.randn(4, 5, 8)
                loss, _ = interpreter.run(graph, values, {"input": x}, training=False)
                module.p = 0.0
                torch.testing.assert_close(loss, module(x).square().mean(), rtol=1e-6, atol=0)

    def test_batch_norm_keeps_and_counts(self):
        def batch(n):
            return torch.randn(n + 1, 1, 6, 6), torch.arange(n + 1) % 3
        graph, values = self.check(Pictures(False), batch, nn.CrossEntropyLoss(), rtol=1e-5)
        norm = next(op for op in graph["operators"] if op.get("type") == "aten.batch_norm")
        self.assertEqual(norm["args"][5], {"training": True})
        self.assertEqual(norm["counters"], [{"value": "features.1.num_batches_tracked", "index": 0}])
        self.assertIn("features.1.running_var", values)
        variables = {op["name"]: op["variable"]["trainable"] for op in graph["operators"] if op["kind"] == "VARIABLE"}
        self.assertFalse(variables["features.1.running_mean"])
        self.assertTrue(variables["features.1.weight"])

    def test_in_place_operators_become_functional(self):
        def batch(n):
            return torch.randn(n + 1, 1, 6, 6), torch.arange(n + 1) % 3
        graph, _ = self.check(Pictures(True), batch, nn.CrossEntropyLoss(), rtol=1e-5)
        types = {op.get("type") for op in graph["operators"]}
        self.assertLessEqual({"aten.relu", "aten.hardswish"}, types)
        self.assertFalse([t for t in types if t and t.endswith("_")])

        class Reread(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                h = self.linear(x)
                before = h * 2
                h.add_(1).mul_(3)
                return h + before

        self.check(Reread(), lambda n: (torch.randn(n, 4), torch.randn(n, 4)), nn.MSELoss())

    def test_lists_of_weights_and_ids(self):
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(11, 8)
                self.cells = nn.LSTM(8, 6, batch_first=True)
                self.register_buffer("order", torch.tensor([4, 2, 0, 1]))

            def forward(self, ids):
                hidden, _ = self.cells(self.embedding(ids))
                rows = torch.arange(ids.shape[0], device=ids.device)
                return torch.cat([hidden[:, self.order].flatten(1), hidden[rows, ids[:, 0] % 5]], 1)

        graph, _ = self.check(Recurrent(), lambda n: (ids(n), torch.ones(n, 30)), nn.MSELoss())
        cells = next(op for op in graph["operators"] if op.get("type") == "aten.lstm")
        self.assertEqual([v["value"] for v in cells["args"][2]["values"]],
                         ["cells.weight_ih_l0", "cells.weight_hh_l0", "cells.bias_ih_l0", "cells.bias_hh_l0"])
        self.assertEqual((cells["kind"], len(cells["outputs"])), ("PARAMETRIC", 3))
        self.assertIn("aten.index_select", {op.get("type") for op in graph["operators"]})
        self.assertIn({"int": 0, "timesBatch": 1}, [a for op in graph["operators"] for a in op.get("args", ())])

    def test_frozen_parts_are_buffers(self):
        module = Residual()
        module.first.requires_grad_(False)
        graph, _ = fusion_export.to_graph(module, (torch.randn(3, 6), torch.randn(3, 4)), loss=nn.MSELoss())
        trainable = {op["name"]: op["variable"]["trainable"] for op in graph["operators"] if op["kind"] == "VARIABLE"}
        self.assertFalse(trainable["first.weight"])
        self.assertTrue(trainable["last.weight"])

    def refused(self, module, example, message, loss=None):
        with self.assertRaisesRegex(fusion_export.ExportError, message):
            fusion_export.to_graph(module, example, loss=loss)

    def test_what_cannot_be_exported_is_refused_with_its_place(self):
        def lambda_module(function):
            class Module(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.linear = nn.Linear(4, 4)
                    self.register_buffer("steps", torch.zeros(4))

                def forward(self, x):
                    return function(self, x)
            return Module()

        x = (torch.randn(3, 4),)
        self.refused(lambda_module(lambda m, x: m.linear(x)), x, "must be one floating scalar.*3, 4|must be one floating scalar")
        self.refused(lambda_module(lambda m, x: (torch.randn_like(x) * m.linear(x)).sum()), x, "draws random numbers")
        self.refused(lambda_module(lambda m, x: F.alpha_dropout(m.linear(x), 0.5, True).sum()), x, "draws random numbers")

        def counts(m, x):
            m.steps.add_(1.0)
            return (m.linear(x) + m.steps).sum()
        self.refused(lambda_module(counts), x, "changes 'steps'")

        def through_a_view(m, x):
            h = m.linear(x)
            view = h.view(-1)
            h.relu_()
            return view.sum()
        self.refused(lambda_module(through_a_view), x, "through the view 'view'")

        def writes_a_view(m, x):
            h = m.linear(x)
            h[:, 0].mul_(2)
            return h.sum()
        self.refused(lambda_module(writes_a_view), x, "changes what")
        self.refused(lambda_module(lambda m, x: torch.cat([m.linear(x), x[:1]]).sum(1).mean()), x, "neither a constant")
        self.refused(lambda_module(lambda m, x: m.linear(x).view(3, 4).sum()), x, "cannot trace|fixes the batch")
        self.refused(lambda_module(lambda m, x: m.linear(x).sum()), (torch.randn(1, 4),), "2 or more samples")

    def test_the_files(self):
        with tempfile.TemporaryDirectory() as folder:
            module = Residual()
            path = fusion_export.export(module, (torch.randn(3, 6), torch.randn(3, 4)), loss=nn.MSELoss(),
                                        path=pathlib.Path(folder) / "model.json")
            graph = json.loads(path.read_text())
            self.assertEqual(graph["name"], "model")
            from safetensors.torch import load_file  # its own reader
            values = load_file(pathlib.Path(folder) / "model.safetensors")
            state = module.state_dict()
            self.assertEqual(set(values), set(state))
            for name, tensor in state.items():
                self.assertTrue(torch.equal(values[name], tensor), name)


if __name__ == "__main__":
    unittest.main()
