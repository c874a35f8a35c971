"""SGD, Adam and AdamW as LibTorch computes them, per parameter group (worker/engine/torch/optimizers.cc)."""

import fnmatch
import math

import jax
import jax.numpy as jnp
import numpy as np

from fusion.v1alpha1 import api_pb2

from .status import invalid

DEFAULTS = {"learning_rate": 1e-3, "momentum": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


def glob_matches(text, name):
    """Alternatives with |."""
    return any(fnmatch.fnmatchcase(name, alternative) for alternative in text.split("|"))


def settings_for(training, tensor_name):
    settings = api_pb2.Optimizer()
    settings.CopyFrom(training.optimizer)
    for group in training.parameter_groups:
        if glob_matches(group.match, tensor_name):
            settings.MergeFrom(group.optimizer)
            break
    return settings


def learning_rate_factor(training, step):
    """Factor of each group's rate at a step (worker/pipeline/learning_rate.h)."""
    if not training.HasField("learning_rate_schedule"):
        return 1.0
    schedule = training.learning_rate_schedule
    done, warmup, fraction = step - 1, schedule.warmup_steps, schedule.final_fraction
    if done < warmup:
        return done / warmup
    progress = min(1.0, (done - warmup) / max(1, training.steps - warmup))
    if schedule.type == api_pb2.LearningRateSchedule.Linear:
        return fraction + (1 - fraction) * (1 - progress)
    if schedule.type == api_pb2.LearningRateSchedule.Cosine:
        return fraction + (1 - fraction) * (0.5 * (1 + math.cos(math.pi * progress)))
    return 1.0


def sum_of_squares(norms):
    """norms: (position of a parameter, sum of squares of its gradient). In ascending position, so that the cut plays no part."""
    total = 0.0
    for _, squares in sorted(norms, key=lambda norm: norm[0]):
        total += float(squares)
    return total


def clipping_factor(training, squares):
    """What training.gradientClipping makes of a job's gradients, as PyTorch's clip_grad_norm_."""
    if not training.HasField("gradient_clipping") or not math.isfinite(squares):
        return 1.0
    return min(1.0, training.gradient_clipping.max_norm / (math.sqrt(squares) + 1e-6))


def learning_rate(training, step):
    """Of parameters that no group overrides."""
    return _setting(training.optimizer, "learning_rate") * learning_rate_factor(training, step)


def _setting(settings, name):
    if settings.HasField(name):
        return getattr(settings, name)
    if name == "weight_decay":
        return 1e-2 if settings.type == api_pb2.Optimizer.AdamW else 0.0
    return DEFAULTS[name]


@jax.jit
def _adam(value, gradient, average, square_average, beta1, beta2, rest1, rest2, step_size, square_correction, epsilon):
    average = average * beta1 + gradient * rest1
    square_average = square_average * beta2 + rest2 * gradient * gradient
    divisor = jnp.sqrt(square_average) / square_correction + epsilon
    return value - step_size * (average / divisor), average, square_average


@jax.jit
def _momentum(gradient, buffer, momentum):
    return buffer * momentum + gradient


class Parameter:
    """One parameter's settings and state."""

    def __init__(self, tensor_name, settings):
        if settings.nesterov and not settings.momentum:
            raise invalid(f"training: optimizer of parameter '{tensor_name}' has nesterov without momentum")
        self.tensor_name = tensor_name
        self.learning_rate = _setting(settings, "learning_rate")
        self._weight_decay = _setting(settings, "weight_decay")
        self._momentum = _setting(settings, "momentum")
        self._nesterov = settings.nesterov
        self._betas = (_setting(settings, "beta1"), _setting(settings, "beta2"))
        self._epsilon = _setting(settings, "epsilon")
        self._type = settings.type
        self._step = 0
        self._state = {}

    def update(self, value, gradient, factor):
        """The new value; `factor` scales the learning rate."""
        rate = self.learning_rate * factor
        number = value.dtype.type
        if self._type == api_pb2.Optimizer.AdamW:
            if self._weight_decay:
                value = value * number(1 - rate * self._weight_decay)
        elif self._weight_decay:
            gradient = gradient + number(self._weight_decay) * value
        if self._type not in (api_pb2.Optimizer.Adam, api_pb2.Optimizer.AdamW):
            return self._sgd(value, gradient, number(rate))
        self._step += 1
        beta1, beta2 = self._betas
        zeros = jnp.zeros_like(value)
        value, self._state["exp_avg"], self._state["exp_avg_sq"] = _adam(
            value, gradient, self._state.get("exp_avg", zeros), self._state.get("exp_avg_sq", zeros), number(beta1),
            number(beta2), number(1 - beta1), number(1 - beta2), number(rate / (1 - beta1**self._step)),
            number(math.sqrt(1 - beta2**self._step)), number(self._epsilon))
        return value

    def _sgd(self, value, gradient, rate):
        if self._momentum:
            momentum = value.dtype.type(self._momentum)
            buffer = self._state.get("momentum_buffer")
            buffer = gradient if buffer is None else _momentum(gradient, buffer, momentum)
            self._state["momentum_buffer"] = buffer
            gradient = _momentum(gradient, buffer, momentum) if self._nesterov else buffer
        return value - rate * gradient

    @property
    def bytes(self):
        return sum(tensor.nbytes for tensor in self._state.values())

    def state(self):
        """Tensors by the names that checkpoints give them, without the parameter's."""
        result = {name: np.asarray(tensor) for name, tensor in self._state.items()}
        if self._step:
            result["step"] = np.asarray(self._step, np.int64)
        return result

    def restore(self, state):
        """REQUIRES: what `state` gave. INVALID_ARGUMENT for other names."""
        self._step = int(state.get("step", 0))
        self._state = {name: jnp.asarray(tensor) for name, tensor in state.items() if name != "step"}
