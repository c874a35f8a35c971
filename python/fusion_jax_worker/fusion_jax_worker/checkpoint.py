"""A stage's part of a checkpoint, and step-N made of all parts (worker/checkpoint/checkpoint.h)."""

import hashlib
import json
import os
import shutil

from . import safetensors
from .data import map_file
from .status import StatusError, data_loss, invalid, of_os_error
from .tensors import DTYPES, spec_text, type_text

_MODEL, _OPTIMIZER = "model/", "optimizer/"
_PARTIAL = ".partial"


def _partial_folder(directory, step):
    return os.path.join(directory, f".step-{step}{_PARTIAL}")


def write_part(directory, stage, step, variables, optimizer):
    """variables, optimizer: {name: array}. Returns the part's path."""
    folder = _partial_folder(directory, step)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise of_os_error(error, f"cannot create {folder}") from error
    tensors = {_MODEL + name: tensor for name, tensor in variables.items()}
    tensors.update((_OPTIMIZER + name, tensor) for name, tensor in optimizer.items())
    path = os.path.join(folder, f"stage-{stage}.safetensors")
    safetensors.save(path, tensors)
    return path


def remove_partial(directory):
    """Folders that an earlier run left half made."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(".step-") and name.endswith(_PARTIAL):
            shutil.rmtree(os.path.join(directory, name))


def newest(directory):
    """The step-N folder of the highest step, or None."""
    try:
        steps = [int(name[5:]) for name in os.listdir(directory) if name.startswith("step-") and name[5:].isdecimal()]
    except FileNotFoundError:
        return None
    return os.path.join(directory, f"step-{max(steps)}") if steps else None


def _collect(parts):
    """({name: array} of the model, of the optimizer)"""
    files = ({}, {})
    for path in parts:
        for prefixed, tensor in safetensors.load(path).items():
            of_model = prefixed.startswith(_MODEL)
            if not of_model and not prefixed.startswith(_OPTIMIZER):
                raise data_loss(f"{path}: unexpected tensor '{prefixed}'")
            name = prefixed[len(_MODEL if of_model else _OPTIMIZER):]
            if files[not of_model].setdefault(name, tensor) is not tensor:
                raise data_loss(f"{path}: '{prefixed}' is in another part too")
    return files


def _text(value):
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def assemble(directory, step, parts, state, config_files):
    """Makes step-N of the parts and removes them; returns its path. state: of training-state.json."""
    folder, target = _partial_folder(directory, step), os.path.join(directory, f"step-{step}")
    try:
        os.makedirs(folder, exist_ok=True)
        model, optimizer = _collect(parts)
        safetensors.save(os.path.join(folder, "model.safetensors"), model)
        safetensors.save(os.path.join(folder, "optimizer.safetensors"), optimizer)
        texts = {**config_files, "training-state.json": _text(state)}
        for name, text in texts.items():
            safetensors.write_durably(os.path.join(folder, name), [text.encode()])
        files = {}
        for name in ["model.safetensors", "optimizer.safetensors", *texts]:
            contents = map_file(os.path.join(folder, name), "checkpoint")
            files[name] = {"bytes": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}
        safetensors.write_durably(os.path.join(folder, "manifest.json"), [_text({"version": 1, "files": files}).encode()])
        for part in parts:
            os.unlink(part)
        safetensors.sync_folder(folder)
        aside = os.path.join(directory, f".step-{step}.old{_PARTIAL}")
        if os.path.exists(target):
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(target, aside)
        os.rename(folder, target)
        shutil.rmtree(aside, ignore_errors=True)
        safetensors.sync_folder(directory)
    except (OSError, StatusError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise error if isinstance(error, StatusError) else of_os_error(error, f"cannot make {target}") from error
    return target


def _open_initial(path):
    if not os.path.isdir(path):
        return path
    model = os.path.join(path, "model.safetensors")
    manifest = os.path.join(path, "manifest.json")
    try:
        wanted = json.loads(bytes(map_file(manifest, "manifest")))["files"]["model.safetensors"]["sha256"]
    except (ValueError, KeyError, TypeError):
        raise data_loss(f"{manifest} does not have the SHA-256 of model.safetensors") from None
    if hashlib.sha256(map_file(model, "checkpoint")).hexdigest() != wanted:
        raise data_loss(f"{model} is not what manifest.json says (SHA-256); it was changed or damaged")
    return model


def initialize_from(path, engine):
    """Sets the engine's variables from a step-N folder or a safetensors file."""
    try:
        path = _open_initial(path)
        tensors = safetensors.load(path)
        for variable in engine.stage.variables:
            name, spec = variable.tensor_name, variable.op.outputs[0]
            tensor = tensors.get(name, tensors.get(name.removeprefix("transformer.")))
            if tensor is None:
                raise invalid(f"{path} has no tensor '{name}', which the model needs")
            if tensor.dtype != DTYPES.get(spec.dtype) or tensor.shape != tuple(spec.shape):
                raise invalid(f"{path}: '{name}' is {type_text(tensor.dtype, tensor.shape)}, the model needs "
                              f"{spec_text(spec, 0)}")
            engine.write_variable(variable.op.name, tensor)
    except StatusError as error:
        raise StatusError(error.code, f"model.initFrom: {error.message}") from None
