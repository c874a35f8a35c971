"""A stage's part of a checkpoint, step-N made of all parts, and going on from one (worker/checkpoint/checkpoint.h, restore.h)."""

import ctypes
import hashlib
import json
import os
import re
import shutil

from fusion.v1alpha1 import api_pb2

from . import safetensors
from .data import map_file
from .status import StatusError, data_loss, invalid, not_found, of_os_error
from .tensors import DTYPES, spec_text, type_text

_MODEL, _OPTIMIZER, _FEEDBACK = "model/", "optimizer/", "feedback/"
_MODEL_FILE, _INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
_OPTIMIZER_FILE, _FEEDBACK_FILE = "optimizer.safetensors", "error-feedback.safetensors"
_STATE_FILE, _MANIFEST_FILE = "training-state.json", "manifest.json"
_PARTIAL = ".partial"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _partial_folder(directory, step):
    return os.path.join(directory, f".step-{step}{_PARTIAL}")


def write_part(directory, stage, step, variables, optimizer, feedback):
    """variables, optimizer, feedback: {name: array}. Returns the part's path."""
    folder = _partial_folder(directory, step)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise of_os_error(error, f"cannot create {folder}") from error
    tensors = {_MODEL + name: tensor for name, tensor in variables.items()}
    tensors.update((_OPTIMIZER + name, tensor) for name, tensor in optimizer.items())
    tensors.update((_FEEDBACK + name, tensor) for name, tensor in feedback.items())
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


def _collect(parts):
    """{file's prefix: {name: array}}"""
    files = {_MODEL: {}, _OPTIMIZER: {}, _FEEDBACK: {}}
    for path in parts:
        for prefixed, tensor in safetensors.load(path).items():
            prefix = next((prefix for prefix in files if prefixed.startswith(prefix)), None)
            if prefix is None:
                raise data_loss(f"{path}: unexpected tensor '{prefixed}'")
            name = prefixed[len(prefix):]
            if files[prefix].setdefault(name, tensor) is not tensor:
                raise data_loss(f"{path}: '{prefixed}' is in another part too")
    return files


def _text(value, sort=True):
    return json.dumps(value, indent=2, sort_keys=sort) + "\n"


def _shards(tensors, shard_bytes):
    """In the order of names, none above the limit unless one tensor is."""
    shards, size = [{}], 0
    for name in sorted(tensors):
        if size > 0 and size + tensors[name].nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name]
        size += tensors[name].nbytes
    return shards


def _write_model(folder, tensors):
    """Names of the files."""
    shard_bytes = int(os.environ.get("FUSION_CHECKPOINT_SHARD_BYTES") or 5_000_000_000)
    shards = _shards(tensors, shard_bytes)
    if len(shards) == 1:
        safetensors.save(os.path.join(folder, _MODEL_FILE), tensors)
        return [_MODEL_FILE]
    names, where = [], {}
    for number, shard in enumerate(shards, 1):
        names.append(f"model-{number:05d}-of-{len(shards):05d}.safetensors")
        safetensors.save(os.path.join(folder, names[-1]), shard)
        where.update(dict.fromkeys(shard, names[-1]))
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())}, "weight_map": where}
    safetensors.write_durably(os.path.join(folder, _INDEX_FILE), [_text(index).encode()])
    return [*names, _INDEX_FILE]


def _replace_folder(source, target):
    """What is at `target` changes places with `source`, so that there is a whole one at any moment, and is then removed."""
    replaces = os.path.exists(target)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, source.encode(), _AT_FDCWD, target.encode(), _RENAME_EXCHANGE if replaces else 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    safetensors.sync_folder(os.path.dirname(target))
    if replaces:
        shutil.rmtree(source, ignore_errors=True)


def assemble(directory, step, parts, state, config_files):
    """Makes step-N of the parts and removes them; returns its path. state: of training-state.json."""
    folder, target = _partial_folder(directory, step), os.path.join(directory, f"step-{step}")
    try:
        os.makedirs(folder, exist_ok=True)
        files = _collect(parts)
        names = _write_model(folder, files[_MODEL])
        safetensors.save(os.path.join(folder, _OPTIMIZER_FILE), files[_OPTIMIZER])
        names.append(_OPTIMIZER_FILE)
        if files[_FEEDBACK]:
            safetensors.save(os.path.join(folder, _FEEDBACK_FILE), files[_FEEDBACK])
            names.append(_FEEDBACK_FILE)
        texts = {**config_files, _STATE_FILE: _text(state, sort=False)}
        for name, text in texts.items():
            safetensors.write_durably(os.path.join(folder, name), [text.encode()])
        manifest = {}
        for name in [*names, *texts]:
            contents = map_file(os.path.join(folder, name), "checkpoint")
            manifest[name] = {"bytes": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}
        text = _text({"version": 1, "files": manifest})
        safetensors.write_durably(os.path.join(folder, _MANIFEST_FILE), [text.encode()])
        for part in parts:
            os.unlink(part)
        safetensors.sync_folder(folder)
        _replace_folder(folder, target)
    except (OSError, StatusError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise error if isinstance(error, StatusError) else of_os_error(error, f"cannot make {target}") from error
    return target


# ------------------------------------------------------------------------------------------ reading


def _json(path):
    try:
        value = json.loads(bytes(map_file(path, "checkpoint")))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise data_loss(f"{path}: it is not a JSON object; damaged or cut off")
    return value


def verify(folder):
    """Checks every file of a step-N folder against its manifest; returns training-state.json."""
    path = os.path.join(folder, _MANIFEST_FILE)
    files = _json(path).get("files")
    needed = (_OPTIMIZER_FILE, _STATE_FILE)
    if not isinstance(files, dict) or any(name not in files for name in needed):
        raise data_loss(f"{path} does not list {' and '.join(needed)}")
    for name, entry in files.items():
        if "/" in name or name.startswith(".") or not isinstance(entry, dict):
            raise data_loss(f"{path}: '{name}' is not a plain file name with its sum")
        contents = map_file(os.path.join(folder, name), "checkpoint")
        if len(contents) != entry.get("bytes") or hashlib.sha256(contents).hexdigest() != entry.get("sha256"):
            raise data_loss(f"{os.path.join(folder, name)} is not what {_MANIFEST_FILE} says (size, SHA-256); it was changed or "
                            "damaged")
    state = _json(os.path.join(folder, _STATE_FILE))
    for name in ("step", "seed", "samples"):
        if not isinstance(state.get(name), int):
            raise data_loss(f"{os.path.join(folder, _STATE_FILE)}: '{name}' is not an integer")
    _model_tensors(folder)
    safetensors.load(os.path.join(folder, _OPTIMIZER_FILE))
    return state


def _model_tensors(path):
    """(path for messages, {name: array}) of a safetensors file, an index of several, or a folder with one of them."""
    if os.path.isdir(path):
        index = os.path.join(path, _INDEX_FILE)
        path = index if os.path.exists(index) else os.path.join(path, _MODEL_FILE)
    if not path.endswith(".json"):
        return path, safetensors.load(path)
    where = _json(path).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) and "/" not in name for name in where.values()):
        raise data_loss(f"{path}: 'weight_map' does not map tensors to files beside it")
    files = {name: safetensors.load(os.path.join(os.path.dirname(path), name)) for name in set(where.values())}
    return path, {tensor: files[name][tensor] for tensor, name in where.items() if tensor in files[name]}


def find_newest(directory):
    """((path, state) of the newest intact step-N or None, [(path, reason)] of damaged ones that are newer)"""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return None, []
    except OSError as error:
        raise of_os_error(error, f"cannot read {directory}") from error
    steps = sorted((int(match[1]) for name in names if (match := re.fullmatch(r"step-(0|[1-9]\d*)", name))), reverse=True)
    damaged = []
    for step in steps:
        path = os.path.join(directory, f"step-{step}")
        try:
            state = verify(path)
            if state["step"] != step:
                raise data_loss(f"{path}: {_STATE_FILE} is of step {state['step']}")
            return (path, state), damaged
        except StatusError as error:
            damaged.append((path, error.message))
    return None, damaged


def choose(resume, own_directory, given):
    """What stage 0 goes on from: ((path, state) or None, notes). `given`: training.resumeFrom's path, or None."""
    notes = []
    if resume:
        newest, damaged = find_newest(own_directory)
        if newest is None and damaged:
            reasons = "; ".join(reason for _, reason in damaged)
            raise data_loss(f"no checkpoint in {own_directory} is intact; {reasons}; to begin again, run the job with --overwrite")
        for path, reason in damaged:
            aside = path + ".damaged"
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)
            notes.append(f"{path} is damaged and was renamed to {aside}: {reason}")
        if newest is not None:
            return newest, notes
    if given is None:
        return None, notes
    try:
        if os.path.exists(os.path.join(given, _MANIFEST_FILE)):
            return (given, verify(given)), notes
        newest, damaged = find_newest(given)
    except StatusError as error:
        raise StatusError(error.code, f"training.resumeFrom: {error.message}") from None
    notes += [f"training.resumeFrom: {path} is damaged: {reason}" for path, reason in damaged]
    if newest is None:
        raise not_found(f"training.resumeFrom: {given} is no checkpoint and has no intact step-N folder in it")
    return newest, notes


def check_continues(path, state, training):
    """INVALID_ARGUMENT where a job cannot go on from it."""
    optimizer = api_pb2.Optimizer.Type.Name(training.optimizer.type)
    if state["seed"] != training.seed:
        raise invalid(f"{path} was trained with training.seed {state['seed']}, the job has {training.seed}: its data would not go "
                      "on; set the seed, or take the parameters alone with model.initFrom")
    if state.get("optimizer") and state["optimizer"] != optimizer:
        raise invalid(f"{path} has the state of training.optimizer.type {state['optimizer']}, the job has {optimizer}; set the "
                      "type, or take the parameters alone with model.initFrom")
    if state["step"] > training.steps:
        raise invalid(f"{path} is after step {state['step']}, beyond training.steps {training.steps}; set more steps")


def restore(folder, engine):
    """Verifies the folder; sets the engine's variables, and the optimizer state of those that it owns. Returns the error feedback
    of all stages, {name: residual}.
    """
    verify(folder)
    path, tensors = _model_tensors(folder)
    for variable in engine.stage.variables:
        if variable.tensor_name not in tensors:
            raise invalid(f"{path} has no tensor '{variable.tensor_name}'")
        _write(path, variable.tensor_name, tensors[variable.tensor_name], variable, engine)
    owned = {variable.tensor_name for variable in engine.stage.variables if not variable.borrowed and variable.trainable}
    state = safetensors.load(os.path.join(folder, _OPTIMIZER_FILE))
    engine.restore_optimizer_state({name: tensor for name, tensor in state.items() if name.rpartition(".")[0] in owned})
    feedback = os.path.join(folder, _FEEDBACK_FILE)
    return safetensors.load(feedback) if os.path.exists(feedback) else {}


def _write(path, name, tensor, variable, engine):
    spec = variable.op.outputs[0]
    if tensor.dtype != DTYPES.get(spec.dtype) or tensor.shape != tuple(spec.shape):
        raise invalid(f"{path}: '{name}' is {type_text(tensor.dtype, tensor.shape)}, the model needs {spec_text(spec, 0)}")
    engine.write_variable(variable.op.name, tensor)


def _spellings(name):
    """How published files may spell a variable, the likeliest first (worker/checkpoint/wanted_tensors.h)."""
    base = next((name.removeprefix(prefix) for prefix in ("transformer.", "bert.") if name.startswith(prefix)), name)
    bases = [base]
    for ours, theirs in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"),
                         ("cls.predictions.bias", "cls.predictions.decoder.bias"),
                         ("cls.predictions.decoder.bias", "cls.predictions.bias")):
        if base.endswith(ours):
            bases.append(base.removesuffix(ours) + theirs)
    prefixes = ("", "transformer.", "bert.", "model.", "module.", "module.transformer.", "module.bert.")
    return [name, *(prefix + spelled for spelled in bases for prefix in prefixes)]


def _assign(model, tensors):
    """{variable: tensor of the file}, no tensor twice. model: names of all variables of the job."""
    assigned = {name: name for name in model if name in tensors}
    taken = set(assigned.values())
    for name in model:
        if name not in assigned:
            spelling = next((s for s in _spellings(name) if s in tensors and s not in taken), None)
            if spelling is not None:
                assigned[name] = spelling
                taken.add(spelling)
    return assigned


def initialize_from(path, model, engine):
    """Sets the engine's variables from a step-N folder or published files. model: names of all variables of the job. Returns
    notes, of what is not used or not set.
    """
    try:
        if os.path.exists(os.path.join(path, _MANIFEST_FILE)):
            verify(path)
        path, tensors = _model_tensors(path)
        assigned = _assign(model, tensors)
        unset = []
        for variable in engine.stage.variables:
            name = variable.tensor_name
            if name in assigned:
                tensor = tensors[assigned[name]]
                dtype = DTYPES.get(variable.op.outputs[0].dtype)
                if dtype is not None and tensor.dtype.kind not in "biu":  # floating types are converted
                    tensor = tensor.astype(dtype)
                _write(path, assigned[name], tensor, variable, engine)
            elif name.endswith("num_batches_tracked"):
                unset.append(name)
            else:
                raise invalid(f"{path} has no tensor '{name}', which the model needs")
    except StatusError as error:
        raise StatusError(error.code, f"model.initFrom: {error.message}") from None
    notes = []
    if unused := sorted(set(tensors) - set(assigned.values())):
        notes.append(f"model.initFrom: no variable takes {len(unused)} tensors of {path}: {', '.join(unused[:20])}")
    if unset:
        notes.append(f"model.initFrom: {path} does not have {', '.join(unset)}, which begin as in a new model")
    return notes
