"""Turns PyTorch modules into Fusion's operator graphs.

    import fusion_export
    fusion_export.export(module, (input, label), loss=torch.nn.functional.cross_entropy, path="model.json")

writes model.json, a graph for `spec.model.graph.uri`, and model.safetensors with the values of its parameters and buffers.
"""
from fusion_export.convert import ExportError, to_graph
from fusion_export.files import export

__all__ = ["ExportError", "export", "to_graph"]
