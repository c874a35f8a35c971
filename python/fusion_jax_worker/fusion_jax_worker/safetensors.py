"""The safetensors format: length of a JSON header, header, data."""

import json
import math
import os
import struct

import numpy as np

from fusion.graph.v1 import graph_pb2

from .data import map_file
from .status import data_loss, of_os_error
from .tensors import DATA_TYPES, DTYPES

_NAMES = {graph_pb2.FLOAT32: "F32", graph_pb2.FLOAT16: "F16", graph_pb2.BFLOAT16: "BF16", graph_pb2.FLOAT64: "F64",
          graph_pb2.INT64: "I64", graph_pb2.INT32: "I32", graph_pb2.BOOL: "BOOL", graph_pb2.UINT8: "U8"}
_DTYPES = {name: DTYPES[data_type] for data_type, name in _NAMES.items()}
_ALIGNMENT = 8
_MAX_HEADER_BYTES = 100_000_000


def write_durably(path, pieces):
    """On disk when it returns; nothing is left at `path` when it raises."""
    try:
        with open(path, "wb") as file:
            try:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.unlink(path)
                raise
    except OSError as error:
        raise of_os_error(error, f"cannot write {path}") from error


def sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise of_os_error(error, f"cannot sync {path}") from error
    finally:
        os.close(descriptor)


def save(path, tensors):
    """tensors: {name: array}; names in order."""
    header = {"__metadata__": {"format": "pt"}}  # what transformers asks for
    offset = 0
    names = sorted(tensors)
    for name in names:
        tensor = tensors[name]
        header[name] = {"dtype": _NAMES[DATA_TYPES[tensor.dtype]], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    data = (np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8) for name in names)
    write_durably(path, [struct.pack("<Q", len(text)), text, *data])


def load(path, field="checkpoint"):
    """{name: array}, views of the mapped file. DATA_LOSS says what is wrong with it."""
    contents = map_file(path, field)
    if len(contents) < 8:
        raise data_loss(f"{path}: {len(contents)} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", contents[:8])
    if length > min(_MAX_HEADER_BYTES, len(contents) - 8):
        raise data_loss(f"{path}: a header of {length} bytes does not fit into {len(contents)}; not a safetensors file, or cut off")
    try:
        header = json.loads(contents[8:8 + length])
        data = memoryview(contents)[8 + length:]
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
            if not 0 <= begin <= end <= len(data) or math.prod(shape) * dtype.itemsize != end - begin:
                raise ValueError(f"'{name}' does not lie in the data as it says")
            tensors[name] = np.frombuffer(data[begin:end], np.uint8).view(dtype).reshape(shape)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise data_loss(f"{path}: the header is damaged: {error}") from None
    return tensors
