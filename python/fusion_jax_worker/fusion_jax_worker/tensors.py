"""Types and shapes of graph.proto in NumPy's terms."""

import ml_dtypes
import numpy as np

from fusion.graph.v1 import graph_pb2

DTYPES = {
    graph_pb2.FLOAT32: np.dtype(np.float32),
    graph_pb2.FLOAT16: np.dtype(np.float16),
    graph_pb2.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    graph_pb2.FLOAT64: np.dtype(np.float64),
    graph_pb2.INT64: np.dtype(np.int64),
    graph_pb2.INT32: np.dtype(np.int32),
    graph_pb2.BOOL: np.dtype(np.bool_),
    graph_pb2.UINT8: np.dtype(np.uint8),
}
DATA_TYPES = {dtype: data_type for data_type, dtype in DTYPES.items()}
FLOATING = frozenset((graph_pb2.FLOAT32, graph_pb2.FLOAT16, graph_pb2.BFLOAT16, graph_pb2.FLOAT64))


def affine(number, samples):
    """An AffineInt for a micro-batch of `samples`."""
    return number.value + number.times_batch * samples


def shape_for(spec, samples):
    """The spec's shape for a micro-batch of `samples`."""
    return tuple(-extent * samples if extent < 0 else extent for extent in spec.shape)


def type_text(dtype, shape):
    """FLOAT32[4, 6]"""
    data_type = DATA_TYPES.get(np.dtype(dtype))
    name = graph_pb2.DataType.Name(data_type) if data_type is not None else str(dtype)
    return f"{name}[{', '.join(map(str, shape))}]"


def spec_text(spec, samples):
    return f"{graph_pb2.DataType.Name(spec.dtype)}[{', '.join(map(str, shape_for(spec, samples)))}]"
