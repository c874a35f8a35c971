"""The bytes of tensor.proto: uint32 length of the header, header, payload."""

import math
import struct

import numpy as np
import xxhash

from google.protobuf.message import DecodeError

from fusion.wire.v1 import tensor_pb2

from .messages import Key, Message
from .status import Code, StatusError, data_loss, invalid
from .tensors import DATA_TYPES, DTYPES

MIN_VERSION = MAX_VERSION = 1
MAX_PAYLOAD_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 16
MEMORY_LIMIT = 8 << 30  # bytes that tensors of one peer may take before they are whole


def checksum(data):
    return xxhash.xxh3_64_intdigest(data)


def pack(header, payload=b""):
    head = header.SerializeToString()
    return b"".join((struct.pack("<I", len(head)), head, payload))


def parse(frame):
    """(header, payload). DATA_LOSS says what is wrong; any bytes are safe to pass."""
    if len(frame) < 4:
        raise data_loss(f"a frame of {len(frame)} bytes has no header")
    (length,) = struct.unpack_from("<I", frame)
    if length > MAX_HEADER_BYTES or length > len(frame) - 4:
        raise data_loss(f"a frame of {len(frame)} bytes claims a header of {length}; at most {MAX_HEADER_BYTES} are allowed")
    try:
        header = tensor_pb2.FrameHeader.FromString(frame[4:4 + length])
    except DecodeError:
        header = tensor_pb2.FrameHeader()
    if header.WhichOneof("kind") is None:
        raise data_loss(f"the {length} bytes of a frame's header are not one")
    payload = memoryview(frame)[4 + length:]
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise data_loss(f"a frame with a payload of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")
    return header, payload


def hello(job, incarnation, from_stage, to_stage):
    return tensor_pb2.FrameHeader(hello=tensor_pb2.Hello(min_version=MIN_VERSION, max_version=MAX_VERSION, job=job,
                                                         incarnation=incarnation, from_stage=from_stage, to_stage=to_stage))


def descriptor(message, number):
    """Without checksum."""
    key = message.key
    return tensor_pb2.TensorDescriptor(
        tensor=number, step=key.step, micro_batch=key.micro_batch, edge=key.edge, direction=key.direction,
        consumer=key.consumer, codec=message.codec, dtype=DATA_TYPES[message.dtype], shape=message.shape,
        bytes=0 if message.absent else len(message.data), absent=message.absent)


def describe_key(key):
    names = {value: name for name, value in tensor_pb2.Direction.items()}
    return f"step {key.step}, micro-batch {key.micro_batch}, edge {key.edge} {names.get(key.direction, key.direction)}"


class Inbox:
    """Makes tensors of the frames of one stream. Not thread-safe."""

    def __init__(self):
        self._partial = {}  # number: [message, bytes received, descriptor]
        self._partial_bytes = 0
        self._begun = 0
        self.tensors = 0  # completed

    def take(self, header, payload):
        """A descriptor or data. The message that the frame completes, or None."""
        kind = header.WhichOneof("kind")
        if kind == "tensor":
            return self._begin(header.tensor, payload)
        if kind == "data":
            return self._continue(header.data, payload)
        raise invalid("a frame that is neither a descriptor nor data")

    def _begin(self, descr, payload):
        key = Key(descr.step, descr.micro_batch, descr.edge, descr.direction, descr.consumer)
        if descr.tensor != self._begun + 1:
            raise data_loss(f"{describe_key(key)}: tensor {descr.tensor} of the stream is described after tensor {self._begun}")
        if payload:
            raise invalid(f"{describe_key(key)}: a descriptor with a payload")
        if descr.bytes > MEMORY_LIMIT - self._partial_bytes:
            raise StatusError(Code.RESOURCE_EXHAUSTED, f"{describe_key(key)}: {descr.bytes} bytes, beside "
                                                       f"{self._partial_bytes} under way, are above the limit of {MEMORY_LIMIT}")
        dtype = DTYPES.get(descr.dtype)
        if dtype is None or any(extent < 0 for extent in descr.shape) or (descr.absent and descr.bytes):
            raise invalid(f"{describe_key(key)}: no dtype, a negative dimension, or bytes of an absent gradient")
        if not descr.absent and descr.codec == "fp32" and descr.bytes != math.prod(descr.shape) * dtype.itemsize:
            raise invalid(f"{describe_key(key)}: {descr.bytes} bytes do not fit the shape")
        self._begun += 1
        data = None if descr.absent else np.empty(descr.bytes, np.uint8)
        message = Message(key, descr.codec, dtype, tuple(descr.shape), data)
        if descr.bytes == 0:
            return self._complete(message, descr)
        self._partial_bytes += descr.bytes
        self._partial[self._begun] = [message, 0, descr]
        return None

    def _continue(self, data, payload):
        if data.tensor not in self._partial:
            raise data_loss(f"data of tensor {data.tensor}, which is not under way")
        message, received, descr = partial = self._partial[data.tensor]
        if data.offset != received or not payload or len(payload) > descr.bytes - received:
            raise data_loss(f"{describe_key(message.key)}: {len(payload)} bytes at offset {data.offset} after {received} of "
                            f"{descr.bytes}")
        message.data[received:received + len(payload)] = np.frombuffer(payload, np.uint8)
        partial[1] = received = received + len(payload)
        if received < descr.bytes:
            return None
        del self._partial[data.tensor]
        self._partial_bytes -= descr.bytes
        return self._complete(message, descr)

    def _complete(self, message, descr):
        found = checksum(b"" if message.absent else message.data)
        if found != descr.checksum:
            raise data_loss(f"{describe_key(message.key)}: checksum {found:x} of {descr.bytes} bytes, the sender's is "
                            f"{descr.checksum:x}")
        self.tensors += 1
        return message
