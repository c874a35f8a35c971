"""What a stage may send and receive, and tensors into messages and back (worker/pipeline/message_table.h, edge_codec.h)."""

import math
import threading
from dataclasses import dataclass

import numpy as np

from fusion.graph.v1 import graph_pb2
from fusion.wire.v1 import tensor_pb2

from . import codec as codecs
from .status import Code, StatusError, invalid, precondition
from .tensors import DTYPES, shape_for, spec_text, type_text

DENSE = "fp32"  # a message that is the tensor's own bytes, of whatever dtype

FORWARD = tensor_pb2.FORWARD
BACKWARD = tensor_pb2.BACKWARD
VARIABLE_VALUE = tensor_pb2.VARIABLE_VALUE
VARIABLE_GRADIENT = tensor_pb2.VARIABLE_GRADIENT
STEP_NORMS = tensor_pb2.STEP_NORMS
STEP_DECISION = tensor_pb2.STEP_DECISION


class Decision:
    """The program's place in the tree over which the stages decide together on a step's update."""

    def __init__(self, program):
        decision = program.decision if program.HasField("decision") else None
        self.reports = decision is not None
        self.parent = decision.parent if decision is not None and decision.HasField("parent") else None
        # Stage: parameters that it and those below it own.
        self.children = {child.stage: child.parameters for child in decision.children} if decision is not None else {}


@dataclass(frozen=True, order=True)
class Key:
    """Names one message of a job."""

    step: int
    micro_batch: int  # validation counts on from the training micro-batches; 0 for variables
    edge: int  # Edge.id or SharedVariable.id
    direction: int
    consumer: int = -1

    @property
    def once_per_step(self):
        """Whether it is of no micro-batch: all but values and their gradients."""
        return self.direction not in (FORWARD, BACKWARD)

    @property
    def of_variable(self):
        return self.direction in (VARIABLE_VALUE, VARIABLE_GRADIENT)


@dataclass
class Message:
    """A tensor as it travels. `data` is a flat array of bytes; None: absent, no gradient reaches the value."""

    key: Key
    codec: str = DENSE
    dtype: np.dtype = np.dtype(np.float32)  # of the decoded tensor
    shape: tuple = ()
    data: np.ndarray = None

    @property
    def absent(self):
        return self.data is None


@dataclass(frozen=True)
class EdgeCodecs:
    forward: codecs.Codec = codecs.Codec()
    backward: codecs.Codec = codecs.Codec()
    forward_name: str = DENSE
    backward_name: str = DENSE
    gradients: int = 1  # messages that come back for each value

    def of(self, direction):
        return {FORWARD: self.forward, BACKWARD: self.backward}.get(direction, codecs.Codec())


class CodecPhases:
    """An edge's codecs by step: those of its phases, or the same for all."""

    def __init__(self, edge):
        phases = [(phase.from_step, phase.forward_codec, phase.backward_codec) for phase in edge.phases]
        phases = phases or [(1, edge.forward_codec, edge.backward_codec)]
        self._phases = [(first, edge_codecs(edge, forward, backward)) for first, forward, backward in phases]
        if phases[0][0] > 1 or any(a[0] >= b[0] for a, b in zip(phases, phases[1:])):
            raise invalid(f"edge {edge.id} ('{edge.value.operator}'): the phases of its codecs do not ascend from step 1")

    @property
    def gradients(self):
        return self._phases[-1][1].gradients

    def at(self, step):
        return [codecs for first, codecs in self._phases if first <= max(1, step)][-1]


def edge_codecs(edge, forward_name, backward_name):
    def parse(name):
        try:
            codec = codecs.parse(name or DENSE)
        except StatusError as error:
            raise invalid(f"edge {edge.id} ('{edge.value.operator}'): {error.message}") from None
        if not codec.dense and (edge.spec.dtype != graph_pb2.FLOAT32 or not edge.differentiable):
            raise invalid(f"edge {edge.id} ('{edge.value.operator}'): codec {name} is for differentiable FLOAT32 values only")
        return codec

    per_sample = edge.per_sample
    forward, backward = (parse(name).over(per_sample) for name in (forward_name, backward_name))
    if backward.reuses_mask and not forward.sparse:
        raise invalid(f"edge {edge.id} ('{edge.value.operator}'): the gradient's codec {backward_name} reuses the "
                      f"value's mask, but the value's codec {forward_name} leaves none")
    return EdgeCodecs(forward, backward, forward_name or DENSE, backward_name or DENSE,
                      len(edge.consumers) if edge.cotangent_per_consumer else 1)


def _float64(shape):
    return graph_pb2.TensorSpec(dtype=graph_pb2.FLOAT64, shape=shape)


def _dense_bytes(dtype, shape):
    return math.prod(shape) * dtype.itemsize


class MessageTable:
    """The edges and shared variables of a program by id, and the check of what arrives."""

    def __init__(self, program, samples):
        self._program = program
        self._samples = samples
        self.incoming = {edge.id: edge for edge in program.incoming}
        self.outgoing = {edge.id: edge for edge in program.outgoing}
        self.borrowed = {shared.id: shared for shared in program.borrowed}
        self.lent = {shared.id: shared for shared in program.lent}
        self.decision = Decision(program)
        self.codecs = {edge.id: CodecPhases(edge) for edge in [*program.incoming, *program.outgoing]}
        self._variables = {op.name: op.outputs[0] for sub_dag in program.sub_dags for op in sub_dag.operators
                           if op.kind == graph_pb2.Operator.VARIABLE}

    def receivers(self):
        """Stages that this one sends something to."""
        stages = {edge.to_stage for edge in self.outgoing.values()}
        stages |= {edge.from_stage for edge in self.incoming.values() if edge.differentiable}
        stages |= {shared.owner_stage for shared in self.borrowed.values()}
        stages |= {shared.user_stage for shared in self.lent.values()} | set(self.decision.children)
        return sorted(stages | ({self.decision.parent} - {None}))

    def describe(self, key):
        if key.direction in (STEP_NORMS, STEP_DECISION):
            return (f"update of stage {key.edge}, {'norms' if key.direction == STEP_NORMS else 'decision'}, step {key.step}")
        if key.of_variable:
            shared = (self.borrowed if key.direction == VARIABLE_VALUE else self.lent).get(key.edge)
            name = shared.variable if shared else "unknown here"
        else:
            edge = (self.incoming if key.direction == FORWARD else self.outgoing).get(key.edge)
            name = edge.value.operator if edge else "unknown here"
        direction = {FORWARD: "forward", BACKWARD: "gradient", VARIABLE_VALUE: "variable",
                     VARIABLE_GRADIENT: "variable's gradient"}.get(key.direction, f"direction {key.direction}")
        text = f"{'shared variable' if key.of_variable else 'edge'} {key.edge} ('{name}'), {direction}, step {key.step}"
        text += "" if key.of_variable else f", micro-batch {key.micro_batch}"
        return text + (f", consumer {key.consumer}" if key.consumer >= 0 else "")

    def _expect(self, key):
        """(peer, spec, codec's name, consumers told apart or 0, may be absent), or None."""
        decision = self.decision
        if key.direction == STEP_DECISION:
            own = decision.parent is not None and key.edge == self._program.stage
            return (decision.parent, _float64([1]), DENSE, 0, False) if own else None
        if key.direction == STEP_NORMS:
            below = decision.children.get(key.edge)
            return None if below is None else (key.edge, _float64([below, 2]), DENSE, 0, False)
        if key.of_variable:
            value = key.direction == VARIABLE_VALUE
            shared = (self.borrowed if value else self.lent).get(key.edge)
            if shared is None or shared.variable not in self._variables:
                return None
            return (shared.owner_stage if value else shared.user_stage, self._variables[shared.variable], DENSE,
                    0 if value else len(shared.consumers), not value)
        if key.direction == FORWARD:
            edge = self.incoming.get(key.edge)
            return edge and (edge.from_stage, edge.spec, self.codecs[edge.id].at(key.step).forward_name, 0, False)
        edge = self.outgoing.get(key.edge) if key.direction == BACKWARD else None
        if edge is None or not edge.differentiable:
            return None
        consumers = len(edge.consumers) if edge.cotangent_per_consumer else 0
        return edge.to_stage, edge.spec, self.codecs[edge.id].at(key.step).backward_name, consumers, True

    def check(self, from_stage, message):
        """INVALID_ARGUMENT unless `message` is one that `from_stage` may send to this stage."""
        key = message.key

        def refuse(reason):
            return invalid(f"stage {self._program.stage} cannot take what stage {from_stage} sent, {self.describe(key)}: "
                           f"{reason}")

        expected = self._expect(key)
        if expected is None:
            raise refuse("this stage does not share it" if key.once_per_step else "this stage has no such edge")
        peer, spec, codec, consumers, may_be_absent = expected
        if peer != from_stage:
            raise refuse(f"it comes from stage {peer}")
        if key.consumer != -1 if consumers == 0 else not 0 <= key.consumer < consumers:
            raise refuse(f"there are {consumers} consumers to tell apart")
        if key.micro_batch < 0:
            raise refuse("negative micro-batch")
        if message.absent:
            if not may_be_absent:
                raise refuse("a value cannot be absent")
            return
        shape = shape_for(spec, self._samples)
        if message.dtype != DTYPES.get(spec.dtype) or message.shape != shape:
            raise refuse(f"it is {type_text(message.dtype, message.shape)}, expected {spec_text(spec, self._samples)}")
        if message.codec != codec:
            raise refuse(f"its codec is '{message.codec}', expected '{codec}'")
        parsed = codecs.Codec() if key.once_per_step else self.codecs[key.edge].at(key.step).of(key.direction)
        if parsed.dense:
            wanted = _dense_bytes(message.dtype, shape)
        else:
            wanted = (codecs.value_bytes if key.direction == FORWARD else codecs.gradient_bytes)(parsed, shape)
        if len(message.data) != wanted:
            raise refuse(f"it has {len(message.data)} bytes, expected {wanted}")


def dense_message(key, tensor):
    """`tensor` None: absent."""
    if tensor is None:
        return Message(key)
    tensor = np.ascontiguousarray(tensor)
    return Message(key, DENSE, tensor.dtype, tensor.shape, tensor.reshape(-1).view(np.uint8))


def dense_tensor(message):
    return message.data.view(message.dtype).reshape(message.shape)


class EdgeCoder:
    """Encodes and decodes; keeps a value's mask until its gradients have passed. Thread-safe; messages of one edge and
    direction must be encoded in micro-batch order by one thread.
    """

    def __init__(self, edges):
        self._edges = edges
        self._mutex = threading.Lock()
        self._masks = {}  # (edge, step, micro-batch): [mask, gradients still to pass]
        self._feedback = {}  # (edge, direction)

    def is_dense(self, key):
        return key.once_per_step or self._edges[key.edge].at(key.step).of(key.direction).dense

    def encode(self, key, tensor, training):
        """`training`: a gradient will follow a value."""
        edge = self._edges[key.edge].at(key.step)
        if tensor is None:
            self._take_mask(key)
            return Message(key)
        codec = edge.of(key.direction)
        if codec.dense:
            return dense_message(key, tensor)
        coder = codecs
        if codec.feedback and training:  # a validation leaves the state of the training run as it is
            coder = self._feedback.setdefault((key.edge, key.direction), codecs.ErrorFeedback())
        if key.direction == FORWARD:
            data, mask = coder.encode_value(codec, tensor)
            if training:
                self._keep_mask(key, mask)
            return Message(key, edge.forward_name, tensor.dtype, tensor.shape, data)
        mask = self._take_mask(key)
        if mask is None and codec.reuses_mask:
            raise StatusError(Code.INTERNAL, f"edge {key.edge}: no mask for the gradient of micro-batch {key.micro_batch}")
        return Message(key, edge.backward_name, tensor.dtype, tensor.shape, coder.encode_gradient(codec, tensor, mask))

    def decode(self, message, training):
        """The tensor, or None where it is absent. REQUIRES: the table has checked it."""
        key = message.key
        if message.absent:
            if not key.once_per_step:
                self._take_mask(key)
            return None
        if self.is_dense(key):
            return dense_tensor(message)
        codec = self._edges[key.edge].at(key.step).of(key.direction)
        if key.direction == FORWARD:
            value, mask = codecs.decode_value(codec, message.data, message.shape)
            if training:
                self._keep_mask(key, mask)
            return value
        mask = self._take_mask(key)
        if mask is None and codec.reuses_mask:
            raise precondition("its value's mask is not held: the value was never sent, or its gradient has come already")
        return codecs.decode_gradient(codec, message.data, message.shape, mask)

    def residuals(self):
        """{(edge, direction): what lossy messages left out so far}. On the encoding thread, or while it is idle."""
        return {place: feedback.residual for place, feedback in self._feedback.items() if feedback.residual is not None}

    def restore_residuals(self, residuals):
        for place, residual in residuals.items():
            self._feedback.setdefault(place, codecs.ErrorFeedback()).restore(residual)

    def _keep_mask(self, key, mask):
        edge = self._edges[key.edge].at(key.step)
        if edge.backward.reuses_mask:
            with self._mutex:
                self._masks[key.edge, key.step, key.micro_batch] = [mask, edge.gradients]

    def _take_mask(self, key):
        with self._mutex:
            held = self._masks.get((key.edge, key.step, key.micro_batch))
            if held is None:
                return None
            held[1] -= 1
            if held[1] == 0:
                del self._masks[key.edge, key.step, key.micro_batch]
            return held[0]
