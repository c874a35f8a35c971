"""Operators over images, [samples, channels, height, width]."""

import jax
import jax.numpy as jnp
import numpy as np

from .operators import operator, writes


def _pair(numbers):
    """Height's and width's of a setting that is given for both or once."""
    return (numbers, numbers) if isinstance(numbers, int) else tuple(numbers) * (2 if len(numbers) == 1 else 1)


@operator("aten.conv2d")
def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    result = jax.lax.conv_general_dilated(
        input, weight, _pair(stride), [(side, side) for side in _pair(padding)], rhs_dilation=_pair(dilation),
        dimension_numbers=("NCHW", "OIHW", "NCHW"), feature_group_count=groups)
    return result if bias is None else result + bias[:, None, None]


def _places(size, kernel, stride, padding, dilation, ceil_mode):
    """How many places a window has; in ceil_mode the last one may hang over, if it begins inside."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    places = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    return places - 1 if ceil_mode and (places - 1) * stride >= size + padding else places


@operator("aten.max_pool2d")
def max_pool2d(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    """The gradient goes to the first of equal values, row by row, as LibTorch's."""
    kernel, padding, dilation = _pair(kernel_size), _pair(padding), _pair(dilation)
    stride = _pair(stride) if stride else kernel
    height, width = (_places(self.shape[2 + side], kernel[side], stride[side], padding[side], dilation[side], ceil_mode)
                     for side in (0, 1))
    ends = [max(0, (places - 1) * stride[side] + dilation[side] * (kernel[side] - 1) + 1 - self.shape[2 + side] - padding[side])
            for side, places in enumerate((height, width))]
    padded = jnp.pad(self, ((0, 0), (0, 0), (padding[0], ends[0]), (padding[1], ends[1])), constant_values=-jnp.inf)
    windows = []
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            top, left = row * dilation[0], column * dilation[1]
            windows.append(padded[:, :, top:top + (height - 1) * stride[0] + 1:stride[0],
                                  left:left + (width - 1) * stride[1] + 1:stride[1]])
    stacked = jnp.stack(windows)
    chosen = jnp.argmax(jax.lax.stop_gradient(stacked), axis=0)
    return jnp.take_along_axis(stacked, chosen[None], axis=0)[0]


@operator("aten.adaptive_avg_pool2d")
def adaptive_avg_pool2d(self, output_size):
    """Window i of n over a side of s: from floor(i s / n) to ceil((i + 1) s / n)."""

    def along(values, axis, places):
        size = values.shape[axis]
        weights = np.zeros((places, size), values.dtype)
        for place in range(places):
            begin, end = place * size // places, -(-(place + 1) * size // places)
            weights[place, begin:end] = 1 / (end - begin)
        return jnp.moveaxis(jnp.tensordot(values, weights, axes=(axis, 1)), -1, axis)

    height, width = _pair(output_size)
    return along(along(self, 2, height), 3, width)


@operator("aten.batch_norm")
@writes("running_mean", "running_var")
def batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    """While training, also returns the new running statistics."""
    axes = (0, *range(2, input.ndim))
    shape = (1, -1) + (1,) * (input.ndim - 2)
    mean, variance, written = running_mean, running_var, []
    if training or running_mean is None:
        mean = jnp.mean(input, axis=axes)
        variance = jnp.mean(jnp.square(input - mean.reshape(shape)), axis=axes)
        if training and running_mean is not None:
            count = input.size // input.shape[1]
            rest = 1 - momentum
            unbiased = variance * (count / max(1, count - 1))
            written = [rest * running_mean + momentum * mean, rest * running_var + momentum * unbiased]
    result = (input - mean.reshape(shape)) * jax.lax.rsqrt(variance + jnp.asarray(eps, input.dtype)).reshape(shape)
    if weight is not None:
        result = result * weight.reshape(shape)
    if bias is not None:
        result = result + bias.reshape(shape)
    return result, written
