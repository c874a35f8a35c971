"""The codecs of codec/codec.h in NumPy: the same messages, bit for bit.

A tensor is seen as rows x columns; a message is its rows, one after the other. Every row of one message has the same size.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from .status import data_loss, invalid

BLOCK = 32
VALUES = ("fp32", "fp16", "bf16", "int8", "int4")
_LARGEST_FLOAT_BITS = np.uint32(0x7F7FFFFF)
_MAGNITUDE_BITS = np.uint32(0x7FFFFFFF)
_LARGEST_HALF_EXPONENT = 254 - 15
_INT8_LARGEST_STEP = 248
_INT4_LARGEST_STEP = 0x7E12
_SMALLEST_NORMAL_BFLOAT16 = 0x0080


@dataclass(frozen=True)
class Codec:
    values: str = "fp32"
    density: float = 1.0
    sparse: bool = False
    independent_mask: bool = False
    feedback: bool = False
    per_sample: bool = False  # of the edge, not of the name: a row is a whole sample, of images

    @property
    def dense(self):
        return self.over(False) == Codec()

    def over(self, per_sample):
        """The same codec for such an edge."""
        return replace(self, per_sample=per_sample)

    def layout(self, shape):
        """(rows, columns): how the codec sees a tensor; of a vector each element is a row."""
        if len(shape) < 2:
            return (shape[0] if shape else 1, 1)
        if self.per_sample:
            return shape[0], max(1, math.prod(shape[1:]))
        return math.prod(shape[:-1]), max(1, shape[-1])

    @property
    def reuses_mask(self):
        return self.sparse and not self.independent_mask


def parse(name):
    """INVALID_ARGUMENT with the grammar where the text is not a codec's name."""
    rest = name
    feedback = rest.endswith("+feedback")
    rest = rest.removesuffix("+feedback")
    try:
        if not rest.startswith("topk-"):
            if rest not in VALUES:
                raise ValueError
            return Codec(rest, feedback=feedback)
        independent = rest.endswith("-independent")
        density, _, values = rest.removeprefix("topk-").removesuffix("-independent").rpartition("-")
        if values not in VALUES or values == "bf16" or not density or not density[0].isdigit() or not 0 < float(density) <= 1:
            raise ValueError
        return Codec(values, float(density), True, independent, feedback)
    except ValueError:
        raise invalid(f"'{name}' is not a codec; write fp32, fp16, bf16, int8, int4 or topk-DENSITY-VALUES[-independent] with "
                      "DENSITY in (0, 1] and VALUES fp32, fp16, int8 or int4, any of them followed by +feedback if "
                      "wanted") from None


def kept_per_row(codec, columns):
    if not codec.sparse:
        return columns
    exact = codec.density * columns * (1 - 2.0**-50)
    return min(max(math.ceil(exact), 1), columns)


# ------------------------------------------------------------------------------------------ runs of values


def _run_bytes(values, count):
    if values == "fp32":
        return 4 * count
    if values == "fp16":
        return 1 + 2 * count if count else 0
    if values == "bf16":
        return 2 * count
    step_bytes, per_byte = (1, 1) if values == "int8" else (2, 2)
    rest = count % BLOCK
    return count // BLOCK * (step_bytes + BLOCK // per_byte) + (step_bytes + -(-rest // per_byte) if rest else 0)


def _saturate(values):
    bits = values.view(np.uint32)
    return ((bits & ~_MAGNITUDE_BITS) | np.minimum(bits & _MAGNITUDE_BITS, _LARGEST_FLOAT_BITS)).view(np.float32)


def _scale(exponent):
    """2^(exponent-127); zero for 0."""
    return (exponent.astype(np.uint32) << np.uint32(23)).view(np.float32)


def _largest_bits(values):
    """Of the saturated magnitudes of each row."""
    bits = values.view(np.uint32) & _MAGNITUDE_BITS
    return np.minimum(bits.max(axis=-1), _LARGEST_FLOAT_BITS)


def _bfloat16(bits):
    """Floats of the bits of bfloat16s."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _int8_steps(largest):
    """Of blocks with these largest magnitudes: the step as it is stored, 0 where all codes are, and its value."""
    exponent = np.maximum(1, (largest >> np.uint32(23)).astype(np.int32) - 6)
    code = np.rint(largest.view(np.float32) * _scale(254 - exponent)).astype(np.int32)
    step = np.where(code == 0, 0, np.where(code > 127, np.minimum(exponent + 1, _INT8_LARGEST_STEP), exponent))
    return step.astype(np.uint8), _scale(step)


def _int4_steps(largest):
    """The same with bfloat16 steps."""
    magnitude = largest.view(np.float32)
    exact = magnitude / np.float32(7)
    rounded_up = (exact.view(np.uint32).astype(np.int64) + 0xFFFF) >> 16
    step = np.clip(rounded_up, _SMALLEST_NORMAL_BFLOAT16, _INT4_LARGEST_STEP)
    step = np.where(np.rint(magnitude / _bfloat16(step)) == 0, 0, step)
    return step.astype(np.uint16), _bfloat16(step)


def _encode_blocks(values, blocks):
    """blocks: float32 [n, count <= 32]. Returns uint8 [n, bytes]."""
    largest = _largest_bits(blocks)
    steps, sizes = _int8_steps(largest) if values == "int8" else _int4_steps(largest)
    inverse = np.float32(1) / np.where(steps == 0, np.float32(1), sizes)
    bound = 127 if values == "int8" else 7
    codes = np.clip(np.rint(_saturate(blocks) * inverse[:, None]), -bound, bound).astype(np.int8).view(np.uint8)
    if values == "int4":
        codes = codes & 15
        if codes.shape[1] % 2:
            codes = np.pad(codes, ((0, 0), (0, 1)))
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    return np.concatenate([steps.view(np.uint8).reshape(len(blocks), -1), codes], axis=1)


def _decode_blocks(values, message, count):
    if values == "int8":
        steps, codes, bound = message[:, 0].astype(np.int32), message[:, 1:].view(np.int8).astype(np.int16), 127
        sizes, wrong = _scale(steps), steps > _INT8_LARGEST_STEP
    else:
        steps, packed, bound = np.ascontiguousarray(message[:, :2]).view(np.uint16)[:, 0].astype(np.int32), message[:, 2:], 7
        pairs = np.empty((packed.shape[0], 2 * packed.shape[1]), np.uint8)
        pairs[:, 0::2], pairs[:, 1::2] = packed & 15, packed >> 4
        codes = (pairs[:, :count].astype(np.int16) ^ 8) - 8
        sizes = _bfloat16(steps)
        wrong = (steps != 0) & ((steps < _SMALLEST_NORMAL_BFLOAT16) | (steps > _INT4_LARGEST_STEP))
    if wrong.any():
        raise data_loss(f"a block's step is coded as {steps[wrong][0]}; no encoder writes that")
    if codes.size and codes.min() < -bound:
        raise data_loss(f"code below -{bound}")
    return codes.astype(np.float32) * sizes[:, None]


def _in_blocks(values, columns, convert):
    """Applies convert(first column, columns, whole blocks) to the whole blocks of a row, then to its rest."""
    whole = columns // BLOCK * BLOCK
    parts = []
    if whole:
        parts.append(convert(0, whole))
    if columns > whole:
        parts.append(convert(whole, columns - whole))
    return parts


def _encode_runs(values, rows):
    """rows: float32 [n, columns]. Returns uint8 [n, bytes of a run]."""
    count, columns = rows.shape
    rows = np.ascontiguousarray(rows)
    if columns == 0:
        return np.empty((count, 0), np.uint8)
    if values == "fp32":
        return rows.view(np.uint8).reshape(count, -1)
    if values == "fp16":
        largest = _largest_bits(rows)
        exponent = np.where(largest == 0, 0, np.maximum(1, (largest >> np.uint32(23)).astype(np.int32) - 15))
        scaled = _saturate(rows) * _scale(254 - np.maximum(exponent, 1))[:, None]
        halves = np.clip(scaled, -65504, 65504).astype(np.float16)
        return np.concatenate([exponent.astype(np.uint8)[:, None], halves.view(np.uint8).reshape(count, -1)], axis=1)
    if values == "bf16":
        bits = rows.view(np.uint32)
        magnitude = np.minimum(bits & _MAGNITUDE_BITS, _LARGEST_FLOAT_BITS)
        rounded = (magnitude + np.uint32(0x7FFF) + (magnitude >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        rounded = np.minimum(rounded, _LARGEST_FLOAT_BITS >> np.uint32(16))
        return ((bits & ~_MAGNITUDE_BITS) >> np.uint32(16) | rounded).astype(np.uint16).view(np.uint8).reshape(count, -1)

    def convert(first, width):
        part = np.ascontiguousarray(rows[:, first:first + width])
        block = min(width, BLOCK)
        return _encode_blocks(values, part.reshape(-1, block)).reshape(count, -1)

    return np.concatenate(_in_blocks(values, columns, convert), axis=1)


def _decode_runs(values, message, columns):
    """message: uint8 [n, bytes of a run]. Returns float32 [n, columns]."""
    count = message.shape[0]
    message = np.ascontiguousarray(message)
    if columns == 0:
        return np.empty((count, 0), np.float32)
    if values == "fp32":
        return message.view(np.float32).reshape(count, columns)
    if values == "fp16":
        exponent = message[:, 0].astype(np.int32)
        if exponent.size and exponent.max() > _LARGEST_HALF_EXPONENT:
            raise data_loss(f"exponent {exponent.max()} of a row of halves is above {_LARGEST_HALF_EXPONENT}")
        halves = np.ascontiguousarray(message[:, 1:]).view(np.float16).astype(np.float32)
        if not np.isfinite(halves).all():
            raise data_loss("a half is not finite")
        return halves * _scale(exponent)[:, None]
    if values == "bf16":
        result = (message.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        if not np.isfinite(result).all():
            raise data_loss("a bfloat16 is not finite")
        return result.reshape(count, columns)

    def convert(first, width):
        block = min(width, BLOCK)
        size = _run_bytes(values, block)
        begin = _run_bytes(values, first)
        part = np.ascontiguousarray(message[:, begin:begin + width // block * size])
        return _decode_blocks(values, part.reshape(-1, size), block).reshape(count, width)

    return np.concatenate(_in_blocks(values, columns, convert), axis=1)


# ------------------------------------------------------------------------------------------ indexes


class _IndexCode:
    """Elias-Fano code of ascending indexes (codec/index_code.h), of all rows at once."""

    def __init__(self, columns, kept):
        self.columns, self.kept = columns, kept
        self.low_bits = self.bytes = 0
        if kept in (columns, 0):
            return

        def bits(low):
            return kept * low + kept + ((columns - 1) >> low)

        while bits(self.low_bits + 1) < bits(self.low_bits):
            self.low_bits += 1
        self.high_begin = kept * self.low_bits
        self.high_bits = kept + ((columns - 1) >> self.low_bits)
        self.bytes = (self.high_begin + self.high_bits + 7) // 8

    def encode(self, indexes):
        """indexes: int64 [rows, kept]. Returns uint8 [rows, bytes]."""
        rows = len(indexes)
        bits = np.zeros((rows, self.bytes * 8), np.uint8)
        if not self.bytes:
            return bits
        for bit in range(self.low_bits):
            bits[:, bit:self.high_begin:self.low_bits] = indexes >> bit & 1
        places = self.high_begin + (indexes >> self.low_bits) + np.arange(self.kept)
        np.put_along_axis(bits, places, 1, axis=1)
        return np.packbits(bits, axis=1, bitorder="little")

    def decode(self, message):
        rows = len(message)
        if not self.bytes:
            return np.broadcast_to(np.arange(self.kept), (rows, self.kept))
        bits = np.unpackbits(message, axis=1, bitorder="little")
        end = self.high_begin + self.high_bits
        if bits[:, end:].any():
            raise data_loss("bits are set behind the indexes of a row")
        high = bits[:, self.high_begin:end]
        found = high.sum(axis=1, dtype=np.int64)
        if rows and (found != self.kept).any():
            raise data_loss(f"a row has {found[found != self.kept][0]} indexes instead of {self.kept}")
        indexes = (np.nonzero(high)[1].reshape(rows, self.kept) - np.arange(self.kept)) << self.low_bits
        for bit in range(self.low_bits):
            indexes |= bits[:, bit:self.high_begin:self.low_bits].astype(np.int64) << bit
        if (indexes >= self.columns).any() or (np.diff(indexes, axis=1) <= 0).any():
            raise data_loss(f"the indexes of a row of {self.columns} columns do not ascend")
        return indexes


def _select(rows, kept):
    """Ascending indexes of the largest magnitudes of each row; of equal ones the lower index."""
    magnitudes = (rows.view(np.uint32) & _MAGNITUDE_BITS).astype(np.int64)
    order = np.argsort(-magnitudes, axis=1, kind="stable")[:, :kept]
    return np.sort(order, axis=1)


# ------------------------------------------------------------------------------------------ messages


def value_bytes(codec, shape):
    rows, columns = codec.layout(shape)
    kept = kept_per_row(codec, columns)
    return rows * ((_IndexCode(columns, kept).bytes if codec.sparse else 0) + _run_bytes(codec.values, kept))


def gradient_bytes(codec, shape):
    if not codec.reuses_mask:
        return value_bytes(codec, shape)
    rows, columns = codec.layout(shape)
    return rows * _run_bytes(codec.values, kept_per_row(codec, columns))


def _rows(codec, tensor):
    return np.ascontiguousarray(tensor, np.float32).reshape(codec.layout(tensor.shape))


def encode_value(codec, value):
    """(message as uint8, mask or None)"""
    rows = _rows(codec, value)
    if not codec.sparse:
        return _encode_runs(codec.values, rows).reshape(-1), None
    kept = kept_per_row(codec, rows.shape[1])
    mask = _select(rows, kept)
    indexes = _IndexCode(rows.shape[1], kept).encode(mask)
    runs = _encode_runs(codec.values, np.take_along_axis(rows, mask, axis=1))
    return np.concatenate([indexes, runs], axis=1).reshape(-1), mask


def _scatter(codec, kept, mask, shape):
    rows = np.zeros(codec.layout(shape), np.float32)
    np.put_along_axis(rows, mask, kept, axis=1)
    return rows.reshape(shape)


def decode_value(codec, message, shape):
    """(value, mask or None). DATA_LOSS says what does not fit."""
    rows, columns = codec.layout(shape)
    if len(message) != value_bytes(codec, shape):
        raise data_loss(f"a message of {len(message)} bytes where the codec has {value_bytes(codec, shape)}")
    message = message.reshape(rows, -1) if rows else message.reshape(0, 0)
    if not codec.sparse:
        return _decode_runs(codec.values, message, columns).reshape(shape), None
    kept = kept_per_row(codec, columns)
    code = _IndexCode(columns, kept)
    mask = code.decode(np.ascontiguousarray(message[:, :code.bytes]))
    return _scatter(codec, _decode_runs(codec.values, message[:, code.bytes:], kept), mask, shape), mask


def encode_gradient(codec, gradient, mask):
    """`mask`: the value's, where the codec reuses it."""
    if not codec.reuses_mask:
        return encode_value(codec, gradient)[0]
    return _encode_runs(codec.values, np.take_along_axis(_rows(codec, gradient), mask, axis=1)).reshape(-1)


def decode_gradient(codec, message, shape, mask):
    if not codec.reuses_mask:
        return decode_value(codec, message, shape)[0]
    if len(message) != gradient_bytes(codec, shape):
        raise data_loss(f"a message of {len(message)} bytes where the codec has {gradient_bytes(codec, shape)}")
    rows, columns = codec.layout(shape)
    kept = _decode_runs(codec.values, message.reshape(rows, -1), kept_per_row(codec, columns))
    return _scatter(codec, kept, mask, shape)


def round_trip(codec, value):
    """What arrives of a value."""
    return decode_value(codec, encode_value(codec, value)[0], value.shape)[0]


def round_trip_gradient(codec, value, gradient):
    """What arrives of the gradient of a value that was sent."""
    mask = encode_value(codec, value)[1]
    return decode_gradient(codec, encode_gradient(codec, gradient, mask), gradient.shape, mask)


class ErrorFeedback:
    """The sender's state of one edge and direction: what the messages before left out (codec/error_feedback.h)."""

    def __init__(self):
        self._residual = None

    @property
    def residual(self):
        """Flat, for checkpoints; None before the first message."""
        return None if self._residual is None else self._residual.reshape(-1)

    def restore(self, residual):
        self._residual = residual

    def _correct(self, tensor):
        if self._residual is None or self._residual.size != tensor.size:
            self._residual = np.zeros_like(tensor)
        self._residual = self._residual.reshape(tensor.shape)
        return tensor + self._residual

    def _keep(self, corrected, decoded):
        difference = corrected - decoded
        self._residual = np.where(np.isfinite(difference), difference, np.float32(0))

    def encode_value(self, codec, value):
        corrected = self._correct(value)
        message, mask = encode_value(codec, corrected)
        self._keep(corrected, decode_value(codec, message, value.shape)[0])
        return message, mask

    def encode_gradient(self, codec, gradient, mask):
        corrected = self._correct(gradient)
        message = encode_gradient(codec, corrected, mask)
        decoded = decode_gradient(codec, message, gradient.shape, mask)
        if codec.reuses_mask:
            # Outside of the mask the gradient is zero by definition: nothing is left out there.
            corrected = _scatter(codec, np.take_along_axis(_rows(codec, corrected), mask, axis=1), mask, gradient.shape)
        self._keep(corrected, decoded)
        return message
