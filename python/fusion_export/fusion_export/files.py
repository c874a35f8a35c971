"""The two files of an exported model."""
import ctypes
import json
import pathlib
import struct

import torch

from fusion_export.convert import to_graph

_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64",
           torch.int32: "I32", torch.bool: "BOOL", torch.uint8: "U8"}


def export(module, example_inputs, *, loss=None, path, name=None):
    """Writes the graph of `module`, trained with `loss`, to `path` and the values of its variables beside it.

    module          a torch.nn.Module that torch.export can trace, in the mode in which it is to be trained
    example_inputs  (input, label) as the module and the loss take them, or (input,) for a loss that needs no label; the first
                    dimension of each is the batch, at least 2 samples here and any number in a job
    loss            a function or module of (output, label); None: the module itself returns the loss of (input, label)
    path            of the graph, MODEL.json; the values go to MODEL.safetensors

    Returns the path. Raises ExportError where the module does what a graph cannot say.
    """
    path = pathlib.Path(path)
    graph, values = to_graph(module, example_inputs, loss=loss, name=name or path.stem)
    write_safetensors(path.with_suffix(".safetensors"), values)
    lines = ",\n".join("  " + json.dumps(operator) for operator in graph["operators"])
    text = (f'{{"name": {json.dumps(graph["name"])},\n "loss": {json.dumps(graph["loss"])},\n'
            f' "operators": [\n{lines}\n]}}\n')
    path.write_text(text)
    return path


def write_safetensors(path, tensors):
    """Writes {name: tensor} in the safetensors format."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            data = tensor.detach().cpu().contiguous()
            file.write(ctypes.string_at(data.data_ptr(), data.numel() * data.element_size()))
