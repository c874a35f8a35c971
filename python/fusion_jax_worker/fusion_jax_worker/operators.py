"""The operators of docs/operators.md in jax.numpy, by ATen's names and signatures.

Each function takes the arguments of its schema; only values are traced, everything else is constant. Derivatives are JAX's. An
operator that is not here is refused when a stage is loaded.
"""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np

from . import codec as codecs
from . import rng
from .status import Code, StatusError, invalid
from .tensors import DTYPES, affine

REGISTRY = {}


def operator(name):
    def enter(function):
        REGISTRY[name] = function
        return function

    return enter


def writes(*arguments):
    """Marks an operator that changes variables while it trains: it returns (result, [their new values])."""

    def mark(function):
        function.writes = arguments
        return function

    return mark


def full_name(op):
    """aten.add.Tensor; the default overload has no name."""
    return op.type if op.overload in ("", "default") else f"{op.type}.{op.overload}"


def describe(op):
    return f"operator '{op.name}' ({full_name(op)})"


# ------------------------------------------------------------------------------------------ elementwise


@operator("aten.add.Tensor")
def add(self, other, *, alpha=1):
    return self + other if alpha == 1 else self + alpha * other


@operator("aten.div.Tensor")
def div(self, other):
    return self / other


@operator("aten.clamp_min")
def clamp_min(self, min):
    return jnp.where(self > min, self, jnp.asarray(min, self.dtype))  # no gradient at the bound, as LibTorch's


@operator("aten.eq.Scalar")
def eq_scalar(self, other):
    return self == other


@operator("aten.mul.Tensor")
def mul(self, other):
    return self * other


@operator("aten.mul.Scalar")
def mul_scalar(self, other):
    return self * other


@operator("aten.relu")
def relu(self):
    return jax.nn.relu(self)


@operator("aten.tanh")
def tanh(self):
    return jnp.tanh(self)


@operator("aten.gelu")
def gelu(self, *, approximate="none"):
    return jax.nn.gelu(self, approximate=approximate == "tanh")


@operator("aten.masked_fill.Scalar")
def masked_fill(self, mask, value):
    return jnp.where(mask, jnp.asarray(value, self.dtype), self)


# ------------------------------------------------------------------------------------------ matrix products


@operator("aten.linear")
def linear(input, weight, bias=None):
    product = jnp.matmul(input, weight.T)
    return product if bias is None else product + bias


@operator("aten.addmm")
def addmm(self, mat1, mat2, *, beta=1, alpha=1):
    product = jnp.matmul(mat1, mat2)
    if alpha != 1:
        product = alpha * product
    return (self if beta == 1 else beta * self) + product


@operator("aten.matmul")
def matmul(self, other):
    return jnp.matmul(self, other)


@operator("aten.scaled_dot_product_attention")
def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    if dropout_p != 0 or enable_gqa:
        raise StatusError(Code.UNIMPLEMENTED, "attention with dropout_p or enable_gqa")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = jnp.matmul(query * scale, jnp.swapaxes(key, -1, -2))
    lowest = jnp.asarray(-jnp.inf, scores.dtype)
    if is_causal:
        seen = np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
        scores = jnp.where(seen, scores, lowest)
    if attn_mask is not None:
        scores = jnp.where(attn_mask, scores, lowest) if attn_mask.dtype == jnp.bool_ else scores + attn_mask
    return jnp.matmul(jax.nn.softmax(scores, axis=-1), value)


# ------------------------------------------------------------------------------------------ reductions


@operator("aten.layer_norm")
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    mean = jnp.mean(input, axis=axes, keepdims=True)
    centred = input - mean
    variance = jnp.mean(jnp.square(centred), axis=axes, keepdims=True)
    result = centred * jax.lax.rsqrt(variance + jnp.asarray(eps, input.dtype))
    if weight is not None:
        result = result * weight
    return result if bias is None else result + bias


@operator("aten.softmax.int")
def softmax(self, dim, dtype=None):
    return jax.nn.softmax(self if dtype is None else self.astype(dtype), axis=dim)


@operator("aten.cross_entropy_loss")
def cross_entropy(self, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    classes = self.shape[1] if self.ndim > 1 else self.shape[0]
    if self.ndim > 2:
        raise StatusError(Code.UNIMPLEMENTED, "targets of more than one dimension")
    rows = self.reshape(-1, classes)
    if jnp.issubdtype(target.dtype, jnp.floating):
        raise StatusError(Code.UNIMPLEMENTED, "targets that are probabilities")
    target = target.reshape(-1)
    counted = target != ignore_index
    chosen = jnp.where(counted, target, 0)
    logs = jax.nn.log_softmax(rows, axis=-1)
    weights = (jnp.ones(classes, rows.dtype) if weight is None else weight)
    per_row = jnp.where(counted, weights[chosen], 0)
    losses = -jnp.take_along_axis(logs, chosen[:, None], axis=-1)[:, 0] * per_row
    if label_smoothing > 0:
        smooth = -jnp.sum(logs * weights, axis=-1) / classes
        losses = (1 - label_smoothing) * losses + label_smoothing * jnp.where(counted, smooth, 0)
    if reduction == 0:
        return losses.reshape(self.shape[:1] if self.ndim > 1 else ())
    return jnp.sum(losses) if reduction == 2 else jnp.sum(losses) / jnp.sum(per_row)


@operator("aten.mean.dim")
def mean_dim(self, dim=None, keepdim=False, *, dtype=None):
    return jnp.mean(self if dtype is None else self.astype(dtype), axis=tuple(dim) if dim else None, keepdims=keepdim)


@operator("aten.sum.dim_IntList")
def sum_dim(self, dim=None, keepdim=False, *, dtype=None):
    return jnp.sum(self if dtype is None else self.astype(dtype), axis=tuple(dim) if dim else None, keepdims=keepdim)


@operator("aten.linalg_vector_norm")
def vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None):
    """No gradient where the length is 0, as LibTorch's."""
    if ord != 2:
        raise StatusError(Code.UNIMPLEMENTED, f"a norm of order {ord}")
    values = self if dtype is None else self.astype(dtype)
    squares = jnp.sum(jnp.square(values), axis=tuple(dim) if dim else None, keepdims=keepdim)
    zero = squares == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares)))


@operator("aten.mse_loss")
def mse_loss(self, target, reduction=1):
    squares = jnp.square(self - target)
    if reduction == 0:
        return squares
    return jnp.sum(squares) if reduction == 2 else jnp.mean(squares)


# ------------------------------------------------------------------------------------------ memory


@operator("aten.view")
def view(self, size):
    return self.reshape(size)


@operator("aten.reshape")
def reshape(self, shape):
    return self.reshape(shape)


@operator("aten.flatten.using_ints")
def flatten(self, start_dim=0, end_dim=-1):
    start, end = start_dim % self.ndim, end_dim % self.ndim
    return self.reshape(self.shape[:start] + (-1,) + self.shape[end + 1:])


@operator("aten.contiguous")
def contiguous(self, *, memory_format=None):
    return self


@operator("aten.clone")
def clone(self, *, memory_format=None):
    return self


@operator("aten.to.dtype")
def to_dtype(self, dtype, non_blocking=False, copy=False, memory_format=None):
    return self.astype(dtype)


@operator("aten.transpose.int")
def transpose(self, dim0, dim1):
    return jnp.swapaxes(self, dim0, dim1)


@operator("aten.slice.Tensor")
def slice_(self, dim=0, start=None, end=None, step=1):
    return self[(slice(None),) * (dim % self.ndim) + (slice(start, end, step),)]


@operator("aten.split.Tensor")
def split(self, split_size, dim=0):
    return tuple(jnp.split(self, list(range(split_size, self.shape[dim], split_size)), axis=dim))


@operator("aten.triu")
def triu(self, diagonal=0):
    return jnp.triu(self, diagonal)


@operator("aten.arange")
def arange(end, *, dtype=None, layout=None, device=None, pin_memory=None):
    return jnp.arange(end, dtype=dtype)


@operator("aten.ones")
def ones(size, *, dtype=None, layout=None, device=None, pin_memory=None):
    return jnp.ones(size, dtype=np.float32 if dtype is None else dtype)


@operator("aten.zeros")
def zeros(size, *, dtype=None, layout=None, device=None, pin_memory=None):
    return jnp.zeros(size, dtype=np.float32 if dtype is None else dtype)


@operator("aten.embedding")
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if scale_grad_by_freq or sparse:
        raise StatusError(Code.UNIMPLEMENTED, "scale_grad_by_freq and sparse")
    if padding_idx >= 0:
        # The rows of that id get no gradient.
        kept = jnp.arange(weight.shape[0])[:, None] != padding_idx
        weight = jnp.where(kept, weight, jax.lax.stop_gradient(weight))
    return jnp.take(weight, indices, axis=0, mode="clip")


# ------------------------------------------------------------------------------------------ our own


@operator("fusion.dropout_mask")
def dropout_mask(shape, p, key, training):
    if not 0 <= p < 1:
        raise invalid(f"the probability of dropping must be in [0, 1), it is {p}")
    if not training or p == 0:
        return jnp.ones(shape, jnp.float32)
    kept = jnp.float32(np.float32(1 / (1 - p)))
    drawn = rng.uniforms(key, math.prod(shape), jnp)
    return jnp.where(drawn < p, jnp.float32(0), kept).reshape(shape)


@operator("fusion.codec")
def through_codec(value, codec, per_sample=False):
    """What arrives when it is sent; the gradient likewise, with the value's mask where the codec reuses it."""
    parsed = codecs.parse(codec).over(per_sample)
    if parsed.feedback:
        raise invalid(f"codec {codec}: error feedback belongs to an edge; an operator has no state")
    like = jax.ShapeDtypeStruct(value.shape, jnp.float32)

    def arrive(host_value):
        return codecs.round_trip(parsed, np.asarray(host_value))

    def arrive_gradient(host_value, host_gradient):
        return codecs.round_trip_gradient(parsed, np.asarray(host_value), np.asarray(host_gradient))

    @jax.custom_vjp
    def send(value):
        return jax.pure_callback(arrive, like, value)

    def forward(value):
        return send(value), value

    def backward(value, gradient):
        return (jax.pure_callback(arrive_gradient, like, value, gradient),)

    send.defvjp(forward, backward)
    return send(value)


# ------------------------------------------------------------------------------------------ binding


class Read:
    """Marks a place in a call's arguments where a value goes."""

    def __init__(self, index):
        self.index = index


RANDOM_KEY = object()
TRAINING = object()


class BoundOperator:
    """An operator of the graph with its function and arguments. `reads` are the distinct values that it takes, in order."""

    def __init__(self, op):
        self.op = op
        self.what = describe(op)
        self.reads = []
        self._function = REGISTRY.get(full_name(op))
        if self._function is None:
            raise StatusError(Code.NOT_FOUND, f"{self.what}: this engine (JAX) has no such operator; run its stage with the "
                                              "engine torch")
        arguments = self._match(op)
        self._arguments = {name: self._bind(argument) for name, argument in arguments.items()}
        self.random = any(part is RANDOM_KEY for part in self._arguments.values())
        # Places in `reads` of the variables that it changes while it trains.
        named = [self._arguments.get(name) for name in getattr(self._function, "writes", ())]
        self.written = [part.index for part in named if isinstance(part, Read)]

    def _match(self, op):
        """Arguments by the names of the function's parameters; `none` where there is a default means the default."""
        signature = inspect.signature(self._function)
        try:
            given = signature.bind(*op.args, **{named.name: named.argument for named in op.kwargs}).arguments
        except TypeError as error:
            raise invalid(f"{self.what}: {error}") from None
        for name, argument in given.items():
            if argument.WhichOneof("kind") == "none" and signature.parameters[name].default is inspect.Parameter.empty:
                raise invalid(f"{self.what}: argument '{name}' is none")
        return {name: argument for name, argument in given.items() if argument.WhichOneof("kind") != "none"}

    def _bind(self, argument):
        kind = argument.WhichOneof("kind")
        if kind == "value":
            return self._read(argument.value)
        if kind == "values":
            return [self._read(ref) for ref in argument.values.items]
        if kind == "int":
            return lambda samples: affine(argument.int, samples)
        if kind == "ints":
            return lambda samples: tuple(affine(item, samples) for item in argument.ints.items)
        if kind == "dtype":
            return DTYPES.get(argument.dtype)
        if kind == "random_key":
            return RANDOM_KEY
        if kind == "training":
            return TRAINING
        if kind is None:
            raise invalid(f"{self.what}: an argument is nothing")
        return getattr(argument, kind)

    def _read(self, ref):
        key = (ref.operator, ref.index)
        if key not in self.reads:
            self.reads.append(key)
        return Read(self.reads.index(key))

    def call(self, samples, training, key, values):
        """(outputs for these values of `reads`, new values of `written` or none). `key`: for a random operator."""

        def resolve(part):
            if isinstance(part, Read):
                return values[part.index]
            if isinstance(part, list):
                return [resolve(item) for item in part]
            if part is RANDOM_KEY:
                return key
            if part is TRAINING:
                return training
            return part(samples) if inspect.isfunction(part) else part

        signature = inspect.signature(self._function)
        call = inspect.BoundArguments(signature, {name: resolve(part) for name, part in self._arguments.items()})
        call.apply_defaults()
        result, written = self._function(*call.args, **call.kwargs), []
        if hasattr(self._function, "writes"):
            result, written = result
        return (list(result) if isinstance(result, tuple) else [result]), written
