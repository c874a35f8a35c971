"""What `input` and `label` are fed with; the batches of worker/data/dataset.h, which depend on (seed, step) only."""

import csv
import gzip
import io
import math
import mmap
import os
import zlib
from dataclasses import dataclass

import numpy as np

from fusion.v1alpha1 import api_pb2

from . import rng
from .status import Code, StatusError, invalid, of_os_error

_TEXT_STREAM = 0x74657874
_DEFAULT_VALIDATION_BATCHES = 20


def resolve_path(field, uri, base_directory):
    if uri.startswith("file://"):
        return uri[len("file://"):]
    if "://" in uri:
        raise StatusError(Code.UNIMPLEMENTED, f"{field}: {uri} has a scheme that is not supported yet; give a path")
    return os.path.join(base_directory, uri)


def map_file(path, field):
    """The bytes of a regular file."""
    try:
        if not os.path.isfile(path) and os.path.exists(path):
            raise invalid(f"{field}: {path} is not a regular file")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise of_os_error(error, f"{field}: cannot open {path}") from error


def validation_batches(spec):
    """Global batches in one validation: 0 where the job has none."""
    if not spec.training.HasField("validation") and spec.task != api_pb2.FusionJobSpec.Evaluate:
        return 0
    validation = spec.training.validation
    return validation.batches if validation.HasField("batches") else _DEFAULT_VALIDATION_BATCHES


@dataclass(frozen=True)
class Slice:
    """Samples [first, first + count) of one global batch."""

    training: bool
    batch: int  # training: the step, from 1; validation: the batch, from 0
    first: int
    count: int


@dataclass
class Options:
    path: str
    validation_fraction: float
    seed: int
    global_batch: int
    validation_batches: int

    def index(self, part, sample):
        return (part.batch - 1 if part.training else part.batch) * self.global_batch + sample


class RowOrder:
    """Each epoch reads the training rows in an order of its own; validation rows are spread evenly (worker/data/row_order.h)."""

    def __init__(self, options, rows):
        self._options = options
        self.validation = int(rows * options.validation_fraction)
        self.training = rows - self.validation
        if options.validation_batches and self.validation == 0:
            raise invalid(f"data.uri: {options.path}: the validation part of {rows} rows is empty; raise data.validationFraction")

    def rows(self, part):
        return [self._row(part, part.first + i) for i in range(part.count)]

    def _row(self, part, sample):
        options = self._options
        index = options.index(part, sample)
        if part.training:
            return rng.permute(index % self.training, self.training, options.seed, index // self.training)
        return self.training + rng.evenly_spread(index, options.validation_batches * options.global_batch, self.validation)


class Text:
    """Raw bytes: windows of context + 1."""

    def __init__(self, options, context, vocabulary):
        self._options, self._context = options, context
        self._bytes = np.frombuffer(map_file(options.path, "data.uri"), np.uint8)
        size = len(self._bytes)
        if size == 0:
            raise invalid(f"data.uri: {options.path} is empty")
        validation = int(size * options.validation_fraction)
        self._training = size - validation
        window = context + 1
        if self._training < window:
            raise invalid(f"data.uri: the training part of {options.path} has {self._training} bytes, and one window of context "
                          f"+ 1 needs {window}; give more text or a smaller context")
        if options.validation_batches and validation < window:
            raise invalid(f"data.uri: the validation part of {options.path} has {validation} bytes, and one window of context "
                          f"+ 1 needs {window}; raise data.validationFraction or give more text")
        if vocabulary < 256 and (outside := np.flatnonzero(self._bytes >= vocabulary)).size:
            raise invalid(f"data.uri: byte {self._bytes[outside[0]]} at offset {outside[0]} of {options.path} is not below "
                          f"model.config.vocabulary {vocabulary}; raw bytes need 256")

    def _start(self, part, sample):
        options = self._options
        index = options.index(part, sample)
        if part.training:
            return rng.random_below(self._training - self._context, options.seed, _TEXT_STREAM, index)
        every = options.validation_batches * options.global_batch
        return self._training + rng.evenly_spread(index, every, len(self._bytes) - self._training - self._context)

    def read(self, label, part):
        starts = [self._start(part, part.first + i) + label for i in range(part.count)]
        return np.stack([self._bytes[start:start + self._context] for start in starts]).astype(np.int64)


class Table:
    """CSV with a header."""

    def __init__(self, options, config, target, standardize, class_labels):
        self._options = options
        names, numbers = _parse_csv(options.path)
        inputs, targets = _roles(names, config, target, class_labels)
        self._order = RowOrder(options, len(numbers))
        self._training_rows = self._order.training
        self._inputs = self._select(names, numbers, inputs, standardize)
        if class_labels:
            self._targets = _classes(numbers[:, targets[0]], config.outputs, options.path)
        else:
            self._targets = self._select(names, numbers, targets, standardize)

    def _select(self, names, numbers, columns, standardize):
        """Scaled by mean and population variance of the training rows, summed one after the other in fp64."""
        selected = np.empty((len(numbers), len(columns)), np.float32)
        for place, column in enumerate(columns):
            mean, scale = 0.0, 1.0
            if standardize:
                training = numbers[: self._training_rows, column]
                count = float(self._training_rows)
                for value in training:
                    mean += value / count
                variance = 0.0
                for value in training:
                    variance += (value - mean) * (value - mean) / count
                if math.sqrt(variance) <= 1e-12 * np.abs(training).max():
                    raise invalid(f"{self._options.path}: column '{names[column]}' is constant over the {self._training_rows} "
                                  "training rows and cannot be standardized; drop it, or set data.standardize to false")
                scale = 1 / math.sqrt(variance)
            selected[:, place] = (numbers[:, column] - mean) * scale
        return selected

    def read(self, label, part):
        return (self._targets if label else self._inputs)[self._order.rows(part)]


class Images:
    """CSV, or gzip of it; a row is an image's pixels by channel, row and column, then its class."""

    def __init__(self, options, channels, side, classes, scale):
        _, numbers = _parse_csv(options.path, header_optional=True)
        pixels = channels * side * side
        if numbers.shape[1] != pixels + 1:
            raise invalid(f"data.uri: {options.path}: a row has {numbers.shape[1]} numbers, but images of {channels} x {side} x "
                          f"{side} pixels (model.config.channels and imageSize) with a label have {pixels + 1}")
        self._order = RowOrder(options, len(numbers))
        with np.errstate(over="ignore"):
            self._images = (numbers[:, :-1] * scale).astype(np.float32).reshape(-1, channels, side, side)
        if not np.isfinite(self._images).all():
            raise invalid(f"data.uri: {options.path}: a pixel times data.scale {scale} is beyond float32")
        self._classes = _classes(numbers[:, -1], classes, options.path)

    def read(self, label, part):
        return (self._classes if label else self._images)[self._order.rows(part)]


class Masking:
    """Which tokens a masked language model predicts, and what it sees in their place (worker/data/masking.h)."""

    _CHOSEN, _AT_LEAST, _FATE, _REPLACEMENT = range(4)

    def __init__(self, seed, global_batch, context, mask_token):
        self._seed, self._global_batch, self._context, self._mask_token = seed, global_batch, context, mask_token

    def _below(self, bound, part, draw, counter):
        stream = 0x6D61736B << 8 | (0x10 if part.training else 0) | draw
        return rng.random_below(bound, self._seed, stream, counter)

    def _index(self, part, sample):
        return (part.batch - 1 if part.training else part.batch) * self._global_batch + sample

    def chosen(self, part, sample):
        """Positions to be predicted; at least one."""
        index = self._index(part, sample)
        chosen = [t for t in range(self._context)
                  if self._below(100, part, self._CHOSEN, index * self._context + t) < 15]
        return chosen or [self._below(self._context, part, self._AT_LEAST, index)]

    def count(self, part):
        return sum(len(self.chosen(part, part.first + i)) for i in range(part.count))

    def shown(self, part, sample, position, token):
        counter = self._index(part, sample) * self._context + position
        fate = self._below(10, part, self._FATE, counter)
        if fate < 8:
            return self._mask_token
        return token if fate > 8 else self._below(self._mask_token, part, self._REPLACEMENT, counter)


class Masked:
    """Windows with the chosen tokens hidden; the label has those, and what cross_entropy_loss ignores elsewhere."""

    def __init__(self, windows, masking):
        self._windows, self._masking = windows, masking

    def read(self, label, part):
        tokens = self._windows.read(False, part)
        result = np.full_like(tokens, -100) if label else tokens.copy()
        for row in range(part.count):
            for t in self._masking.chosen(part, part.first + row):
                token = int(tokens[row, t])
                result[row, t] = token if label else self._masking.shown(part, part.first + row, t, token)
        return result


def masking_of(spec):
    """Of a masked language model, else None."""
    model = spec.model
    if model.family != api_pb2.Model.bert or model.config.towers == 2:
        return None
    return Masking(spec.training.seed, getattr(spec.training.batch, "global"), model.config.context, model.config.vocabulary - 1)


def targets_of(spec):
    """Function of a slice: how many counted targets it has, which weigh its loss."""
    masking = masking_of(spec)
    return (lambda part: part.count) if masking is None else masking.count


def _is_number(cell):
    try:
        float(cell)
        return True
    except ValueError:
        return False


def _parse_csv(path, header_optional=False):
    """(column names, float64 [rows, columns]). An optional header is a first line none of whose cells is a number."""
    what = f"data.uri: {path}"
    try:
        contents = bytes(map_file(path, "data.uri"))
        text = (gzip.decompress(contents) if contents[:2] == b"\x1f\x8b" else contents).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise invalid(f"{what}: damaged gzip: {error}") from None
    except UnicodeDecodeError as error:
        raise invalid(f"{what}: binary data ({error.reason} at offset {error.start}); expected CSV") from None
    if "\0" in text:
        raise invalid(f"{what}: binary data (a zero byte at offset {text.index(chr(0))}); expected CSV")
    names, rows = None, []
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    for cells in reader:
        cells = [cell.strip() for cell in cells]
        if not any(cells):
            continue
        if names is None:
            headless = header_optional and any(map(_is_number, cells))
            names = [str(number) for number in range(1, len(cells) + 1)] if headless else cells
            if "" in names or len(set(names)) != len(names):
                raise invalid(f"{what}: line {reader.line_num}: each column needs a name of its own")
            if not headless:
                continue
        if len(cells) != len(names):
            raise invalid(f"{what}: line {reader.line_num}: {len(cells)} cells where the header has {len(names)} columns")
        try:
            row = [float(cell) for cell in cells]
        except ValueError:
            row = [math.nan]
        if not all(map(math.isfinite, row)):
            raise invalid(f"{what}: line {reader.line_num}: a cell is not a finite number")
        rows.append(row)
    if names is None or not rows:
        raise invalid(f"{what}: {'a header but no rows' if names else 'no header: the file is empty'}")
    return names, np.asarray(rows, np.float64)


def _roles(names, config, target, class_labels):
    """Places of the input columns and of the targets."""
    wanted = 1 if class_labels else config.outputs
    if target:
        if target not in names:
            raise invalid(f"data.target: no column is named '{target}'; there are {', '.join(names)}")
        if wanted != 1:
            raise invalid(f"data.target names one column, but model.config.outputs is {wanted}; leave it out to take the last "
                          f"{wanted} columns")
        targets = [names.index(target)]
    else:
        targets = list(range(max(0, len(names) - wanted), len(names)))
    inputs = [column for column in range(len(names)) if column not in targets]
    if len(inputs) != config.inputs:
        raise invalid(f"model.config.inputs is {config.inputs}, but the table has {len(inputs)} input columns beside "
                      f"{len(targets)} of targets")
    return inputs, targets


def _classes(column, classes, path):
    wrong = np.flatnonzero((column != np.floor(column)) | (column < 0) | (column >= classes))
    if wrong.size:
        raise invalid(f"{path}: row {wrong[0] + 1}: {column[wrong[0]]:g} in the target column is not a class from 0 to "
                      f"{classes - 1} (model.config.outputs - 1)")
    return column.astype(np.int64)


def open_dataset(spec, base_directory):
    """The dataset of `spec.data`. UNIMPLEMENTED for kinds that this worker does not read: pin input and label to a compnode
    with the engine torch."""
    data, config = spec.data, spec.model.config
    kinds = api_pb2.Data
    if data.kind not in (kinds.text, kinds.table, kinds.images):
        raise StatusError(Code.UNIMPLEMENTED, f"data.kind {kinds.Kind.Name(data.kind)} is not read by the engine jax; pin input "
                                              "and label to a compnode with the engine torch")
    path = resolve_path("data.uri", data.uri, base_directory)
    options = Options(path, data.validation_fraction if data.HasField("validation_fraction") else 0.05, spec.training.seed,
                      getattr(spec.training.batch, "global"), validation_batches(spec))
    masking = masking_of(spec)
    if data.kind == kinds.text:
        return (Text(options, config.context, config.vocabulary) if masking is None
                else Masked(Text(options, config.context, config.vocabulary - 1), masking))
    if data.kind == kinds.images:
        return Images(options, config.channels if config.HasField("channels") else 3,
                      config.image_size if config.HasField("image_size") else 224, config.classes,
                      data.scale if data.HasField("scale") else 1.0)
    class_labels = spec.model.loss.type == api_pb2.Loss.CrossEntropy
    return Table(options, config, data.target, not data.HasField("standardize") or data.standardize, class_labels)
