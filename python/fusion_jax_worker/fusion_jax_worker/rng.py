"""Counter-based random numbers, the same bits as worker/engine/random.h and worker/data/sampling.h give.

Element i of a stream is a function of (key, i): initial values, dropout masks and the order of samples do not depend on
where they are computed, nor by which engine.
"""

import math

import numpy as np

GAMMA = 0x9E3779B97F4A7C15
MASK64 = (1 << 64) - 1


def mix(x):
    """The finalizer of SplitMix64; of a Python integer."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def combine(key, number):
    return mix(key ^ mix((number + GAMMA) & MASK64))


def hash_text(text):
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK64
    return value


def variable_key(seed, tensor_name):
    return combine(seed & MASK64, hash_text(tensor_name))


def operator_key(seed, step, micro_batch, operator_name):
    """The bits that an operator gets for `random_key`."""
    key = combine(seed & MASK64, step & MASK64)
    key = combine(key, micro_batch & MASK64)
    return combine(key, hash_text(operator_name))


def mix_array(x, xp=np):
    """`mix` of each element of an array of uint64, of NumPy's or JAX's."""
    def u(value):
        return xp.uint64(value)

    x = (x ^ (x >> u(30))) * u(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> u(27))) * u(0x94D049BB133111EB)
    return x ^ (x >> u(31))


def uniforms(key, count, xp=np, first=0):
    """Elements first, first + 1, … of the stream, in [0, 1), as float64."""
    index = xp.arange(first + 1, first + count + 1, dtype=xp.uint64)
    bits = mix_array(xp.asarray(key, dtype=xp.uint64) + index * xp.uint64(GAMMA), xp)
    return (bits >> xp.uint64(11)).astype(xp.float64) * 2.0**-53


def normals(key, count):
    """Standard normal numbers by Box-Muller over pairs of the stream, as float64."""
    u = uniforms(key, count + count % 2)
    radius = np.sqrt(-2.0 * np.log(1.0 - u[0::2]))
    angle = 2.0 * math.pi * u[1::2]
    pairs = np.empty(len(u))
    pairs[0::2] = radius * np.cos(angle)
    pairs[1::2] = radius * np.sin(angle)
    return pairs[:count]


# ------------------------------------------------------------------------------------------ order of samples


def sampling_mix(x):
    return mix((x + GAMMA) & MASK64)


def counter_random(seed, stream, counter):
    return sampling_mix(sampling_mix(sampling_mix(seed) ^ stream) ^ counter)


def random_below(bound, seed, stream, counter):
    return (counter_random(seed, stream, counter) * bound) >> 64


def permute(index, size, seed, stream):
    """Place `index` of a permutation of 0 … size - 1: a Feistel network, walked until it lands inside."""
    half_bits = ((size - 1).bit_length() + 1) // 2
    half_mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & half_mask
        for number in range(4):
            key = counter_random(seed, stream, number)
            left, right = right, left ^ (sampling_mix(key ^ right) & half_mask)
        index = left << half_bits | right
        if index < size:
            return index


def evenly_spread(index, count, size):
    return index * size // count
