"""What worker/engine/engine.h asks of an engine, by JAX: one stage's sub-DAGs forward and backward, and its parameters' updates.

One compute thread calls everything. Values are NumPy arrays where they come in and go out.
"""

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from fusion.graph.v1 import graph_pb2

from . import operators_image, rng  # noqa: F401: enters its operators
from .optimizers import Parameter, settings_for
from .stage_graph import LOSS_POSITION, StageGraph
from .status import Code, StatusError, invalid, not_found, precondition
from .sub_dag import SubDag
from .tensors import DTYPES, shape_for, spec_text, type_text


@dataclass(frozen=True)
class Pass:
    """One micro-batch on its way through the stage."""

    step: int
    micro_batch: int
    training: bool
    weight: float = 1.0  # share of the step's loss

    @property
    def key(self):
        return (self.step, self.micro_batch)

    def __str__(self):
        return f"step {self.step}, micro-batch {self.micro_batch}"


@dataclass
class PassState:
    values: dict = field(default_factory=dict)  # by slot
    reads_left: dict = field(default_factory=dict)
    cotangents: dict = field(default_factory=dict)  # by slot: {position: array or None}
    pullbacks: dict = field(default_factory=dict)  # by sub-DAG
    forward_done: set = field(default_factory=set)
    backward_done: set = field(default_factory=set)
    bytes: dict = field(default_factory=dict)  # of the pullbacks


def initial_value(op, seed):
    """First value of a variable: a function of (seed, tensor name)."""
    init = op.variable.init
    spec = op.outputs[0]
    dtype = DTYPES.get(spec.dtype)
    if dtype is None or any(extent < 0 for extent in spec.shape):
        raise invalid(f"variable '{op.name}' has no dtype, or a shape that depends on the batch")
    shape = tuple(spec.shape)
    constants = {init.ZEROS: 0, init.ONES: 1, init.CONSTANT: init.value, init.STORED: 0}  # stored: until it is written
    if init.kind in constants:
        return np.full(shape, constants[init.kind], dtype)
    if init.kind not in (init.NORMAL, init.UNIFORM):
        raise invalid(f"variable '{op.name}' does not say how it is initialised")
    if dtype not in (np.float32, np.float64):
        raise invalid(f"variable '{op.name}': random initial values are float32 or float64")
    key = rng.variable_key(seed, op.variable.tensor_name)
    count = math.prod(shape)
    if init.kind == init.NORMAL:
        values = init.mean + init.standard_deviation * rng.normals(key, count)
    else:
        values = init.low + (init.high - init.low) * rng.uniforms(key, count)
    values = values.astype(dtype).reshape(shape)
    if init.zero_rows and shape:
        values[:init.zero_rows] = 0
    return values


def sum_cotangents(cotangents):
    """In descending order of position; None where all are absent."""
    total = None
    for _, cotangent in sorted(cotangents.items(), key=lambda item: -item[0]):
        if cotangent is not None:
            total = cotangent if total is None else np.add(total, cotangent)
    return total


@jax.jit
def _accumulate(sums, gradients):
    return [total + gradient for total, gradient in zip(sums, gradients)]


class Engine:
    name = "jax"

    def __init__(self, program, training, seed, samples, memory_limit=0, train=True):
        """Resolves and initialises. NOT_FOUND names an operator that this engine lacks."""
        self._seed = seed
        self._samples = samples
        self._recompute = training.recompute
        self._memory_limit = memory_limit
        self._stage = StageGraph(program)
        self._sub_dags = [SubDag(self._stage, index, samples) for index in range(len(self._stage.sub_dags))]
        self._values = [jnp.asarray(initial_value(variable.op, seed)) for variable in self._stage.variables]
        self._gradients = [[None] * len(variable.uses) for variable in self._stage.variables]
        self._parameters = {}
        for index, variable in enumerate(self._stage.variables):
            if train and variable.trainable and not variable.borrowed:
                settings = settings_for(training, variable.tensor_name)
                self._parameters[index] = Parameter(variable.tensor_name, settings)
        self._passes = {}
        self.correct = None
        self._totals, self._squares = {}, 0.0  # gradients of the owned parameters, once gradient_norms has gathered them
        self._written_before = (0, {})  # (step, values at its start) of variables that passes change
        self._peak = self._held = 0
        self._count_memory()

    @property
    def stage(self):
        return self._stage

    def warm_up(self, trains, evaluates):
        """Compiles what will run, so that the first step does not wait for it. Nothing is changed."""
        for sub_dag in self._sub_dags:
            values = {slot: np.zeros(shape_for(spec.spec, self._samples), DTYPES[spec.spec.dtype])
                      for slot, spec in enumerate(self._stage.slots)}
            leaves = [self._values[leaf.index] if leaf.kind == "variable" else values[leaf.index] for leaf in sub_dag.leaves]
            plain = [self._values[index] if kind == "variable" else values[index] for kind, index in sub_dag.plain]
            keys = [np.uint64(0)] * len(sub_dag.random)
            if evaluates:
                jax.block_until_ready(sub_dag.evaluate(plain, leaves, keys))
            if trains:
                if self._recompute:
                    jax.block_until_ready(sub_dag.forward_only(plain, leaves, keys))
                _, _, pullback = sub_dag.forward(plain, leaves, keys)
                jax.block_until_ready(sub_dag.backward(pullback, [values[slot] for slot, _ in sub_dag.taps]))

    # ------------------------------------------------------------------ variables

    def variable_index(self, name):
        index = self._stage.variable(name)
        if index is None:
            raise not_found(f"stage {self._stage.program.stage} has no variable '{name}'")
        return index

    def read_variable(self, name):
        return np.asarray(self._values[self.variable_index(name)])

    def write_variable(self, name, value):
        index = self.variable_index(name)
        spec = self._stage.variables[index].op.outputs[0]
        self._check_spec(f"the new value of variable '{name}'", spec, value)
        self._values[index] = jnp.array(value)

    def optimizer_state(self):
        """NAME.exp_avg and so on, of the parameters that the stage owns."""
        return {f"{parameter.tensor_name}.{name}": tensor for parameter in self._parameters.values()
                for name, tensor in parameter.state().items()}

    def restore_optimizer_state(self, state):
        left = dict(state)
        for index, parameter in self._parameters.items():
            prefix = parameter.tensor_name + "."
            own = {name[len(prefix):]: left.pop(name) for name in list(left)
                   if name.startswith(prefix) and name[len(prefix):] in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")}
            shape = self._values[index].shape
            for name, tensor in own.items():
                if tensor.shape != (() if name == "step" else shape):
                    raise invalid(f"optimizer state '{prefix}{name}' has not the shape of its parameter")
            if own:
                parameter.restore(own)
        if left:
            raise invalid(f"optimizer state '{sorted(left)[0]}' belongs to no parameter of this stage")

    # ------------------------------------------------------------------ passes

    def feed(self, run, placeholder, value):
        """Data of a placeholder, before the forward that reads it."""
        slot = self._stage.placeholder(placeholder)
        if slot is None:
            raise not_found(f"stage {self._stage.program.stage} has no placeholder '{placeholder}'")
        self._place(run, slot, f"data for placeholder '{placeholder}'", value)

    def receive(self, run, edge, value):
        incoming = self._stage.incoming.get(edge)
        if incoming is None:
            raise not_found(f"stage {self._stage.program.stage} has no incoming edge {edge}")
        self._place(run, incoming.slot, f"edge {edge}", value)

    def _place(self, run, slot, what, value):
        self._check_spec(f"{what} of {run}", self._stage.slots[slot].spec, value)
        state = self._state(run)
        if slot in state.values:
            raise StatusError(Code.ALREADY_EXISTS, f"{what} of {run} is already there")
        state.values[slot] = value

    def forward(self, run, index):
        """Returns ([(edge id, value)], loss or None). After an evaluation of a classification `correct` is set."""
        self.correct = None
        state = self._state(run)
        if index in state.forward_done:
            raise precondition(f"sub-DAG {index} has already run forward for {run}")
        sub_dag = self._sub_dags[index]
        slots = {leaf.index for leaf in sub_dag.leaves if leaf.kind == "slot"}
        slots |= {number for kind, number in sub_dag.plain if kind == "slot"}
        for slot in sorted(slots):
            if slot not in state.values:
                raise precondition(f"{self._stage.slots[slot].name} is not there yet")
        leaves = [self._argument(state, leaf.kind, leaf.index) for leaf in sub_dag.leaves]
        plain = [self._argument(state, kind, number) for kind, number in sub_dag.plain]
        keys = [np.uint64(rng.operator_key(self._seed, run.step, run.micro_batch, op.op.name)) for op in sub_dag.random]
        if run.training:
            self._remember_written(run.step)
            if self._recompute:
                values, written = sub_dag.forward_only(plain, leaves, keys)
                pullback = (plain, leaves, keys)  # what the backward pass begins with
            else:
                values, written, pullback = sub_dag.forward(plain, leaves, keys)
            for variable, value in zip(sub_dag.written, written):
                self._values[variable] = value
            for op in self._stage.sub_dags[index].operators:
                for counter in op.counters:
                    self._values[counter] = self._values[counter] + 1
            if sub_dag.leaves:
                state.pullbacks[index] = pullback
                state.bytes[index] = self._bytes_of(pullback)
        else:
            values, correct = sub_dag.evaluate(plain, leaves, keys)
            self.correct = None if correct is None else int(correct)
        jax.block_until_ready(values)
        state.values.update((slot, np.asarray(value)) for slot, value in zip(sub_dag.values, values))
        state.forward_done.add(index)
        for slot in slots:
            self._count_read(state, slot)
        outputs = []
        for outgoing in self._stage.sub_dags[index].outgoing:
            outputs.append((outgoing.edge.id, state.values[outgoing.slot]))
            self._count_read(state, outgoing.slot)
        loss = self._loss_of(state, sub_dag)
        self._count_memory()
        if not run.training and len(state.forward_done) == len(self._sub_dags):
            self.release(run)
        return outputs, loss

    def _remember_written(self, step):
        """For a step whose update is dropped: its passes must leave no trace."""
        if step != self._written_before[0]:
            changed = {variable for sub_dag in self._sub_dags for variable in sub_dag.written}
            changed |= {counter for sub_dag in self._stage.sub_dags for op in sub_dag.operators for counter in op.counters}
            self._written_before = (step, {variable: self._values[variable] for variable in changed})

    def _loss_of(self, state, sub_dag):
        if self._stage.loss_slot not in sub_dag.values:
            return None
        loss = state.values[self._stage.loss_slot]
        if loss.size != 1:
            raise invalid(f"the loss is {type_text(loss.dtype, loss.shape)}, not a scalar")
        return float(loss.reshape(()))

    def receive_gradient(self, run, edge, consumer, gradient):
        """Cotangent of an outgoing edge; None: no gradient reaches the value."""
        what = f"gradient of edge {edge} of {run}"
        outgoing = self._stage.outgoing.get(edge)
        if outgoing is None or not outgoing.edge.differentiable:
            raise not_found(f"stage {self._stage.program.stage} has no outgoing differentiable edge {edge}")
        if run.key not in self._passes:
            raise precondition(f"{what}: this stage has not run it forward")
        if gradient is not None:
            self._check_spec(what, self._stage.slots[outgoing.slot].spec, gradient)
        position = outgoing.positions[consumer if outgoing.edge.cotangent_per_consumer else 0]
        self._passes[run.key].cotangents.setdefault(outgoing.slot, {})[position] = gradient

    def backward(self, run, index):
        """Returns [(edge id, consumer or -1, gradient or None)] of the edges first read here."""
        state = self._passes.get(run.key)
        if not run.training or state is None or index not in state.forward_done or index in state.backward_done:
            raise precondition(f"sub-DAG {index} has no forward of {run} to go back through")
        sub_dag = self._sub_dags[index]
        cotangents = []
        for slot, position in sub_dag.taps:
            if position == LOSS_POSITION:
                dtype = DTYPES[self._stage.slots[slot].spec.dtype]
                cotangents.append(np.full(shape_for(self._stage.slots[slot].spec, self._samples), run.weight, dtype))
                continue
            there = state.cotangents.get(slot, {})
            if position not in there:
                raise precondition(f"a cotangent of {self._stage.slots[slot].name} is not there")
            cotangents.append(there[position])
        pullback = state.pullbacks.pop(index, None)
        if self._recompute and pullback is not None:
            _, _, pullback = sub_dag.forward(*pullback)  # what it writes to variables has been written
        gradients = sub_dag.backward(pullback, cotangents)
        state.bytes.pop(index, None)
        for slot, _ in sub_dag.taps:
            state.cotangents.pop(slot, None)
        self._keep(state, sub_dag, gradients)
        state.backward_done.add(index)
        returned = []
        for edge in self._stage.sub_dags[index].returned:
            of_edge = state.cotangents.pop(edge.slot, {})
            if edge.edge.cotangent_per_consumer:
                returned += [(edge.edge.id, number, of_edge.get(position)) for number, position in enumerate(edge.positions)]
            else:
                returned.append((edge.edge.id, -1, sum_cotangents(of_edge)))
        if len(state.backward_done) == len(self._sub_dags):
            self.release(run)
        return returned

    def _keep(self, state, sub_dag, gradients):
        """Adds to the parameters' gradients, in micro-batch order, and to the cotangents of values from outside."""
        jax.block_until_ready(gradients)
        sums = []
        for leaf, gradient in zip(sub_dag.leaves, gradients):
            if leaf.kind == "slot":
                value = None if gradient is None else np.asarray(gradient)
                state.cotangents.setdefault(leaf.index, {})[leaf.position] = value
            elif gradient is not None:
                if gradient.dtype != jnp.float64:
                    gradient = gradient.astype(jnp.float32)
                if self._gradients[leaf.index][leaf.use] is None:
                    self._gradients[leaf.index][leaf.use] = gradient
                else:
                    sums.append((leaf, gradient))
        if sums:
            totals = _accumulate([self._gradients[leaf.index][leaf.use] for leaf, _ in sums], [g for _, g in sums])
            jax.block_until_ready(totals)
            for (leaf, _), total in zip(sums, totals):
                self._gradients[leaf.index][leaf.use] = total
        self._count_memory()

    def release(self, run):
        """Drops whatever the pass still holds."""
        self._passes.pop(run.key, None)

    # ------------------------------------------------------------------ end of a step

    def take_borrowed_gradients(self):
        """[(shared id, consumer, gradient or None)], summed over the step's micro-batches; resets them."""
        result = []
        for shared in self._stage.program.borrowed:
            variable = self.variable_index(shared.variable)
            names = [name for _, name in self._stage.variables[variable].uses]
            for consumer, name in enumerate(shared.consumers):
                gradient = self._gradients[variable][names.index(name)]
                result.append((shared.id, consumer, None if gradient is None else np.asarray(gradient)))
            self._gradients[variable] = [None] * len(names)
        return result

    def receive_lent_gradient(self, shared_id, consumer, gradient):
        for shared in self._stage.program.lent:
            if shared.id == shared_id:
                variable = self.variable_index(shared.variable)
                names = [name for _, name in self._stage.variables[variable].uses]
                use = names.index(shared.consumers[consumer])
                self._gradients[variable][use] = None if gradient is None else jnp.array(gradient)
                return
        raise not_found(f"stage {self._stage.program.stage} lends no variable with id {shared_id}")

    def gradient(self, index):
        """Whole gradient of a variable: its uses in ascending order; None where none reached it."""
        total = None
        for gradient in self._gradients[index]:
            if gradient is not None:
                total = gradient if total is None else total + gradient
        return total

    def gradient_norms(self):
        """[(position of the variable in the whole graph, sum of squares of its gradient)] of the owned parameters."""
        positions = self._stage.program.positions
        self._totals = {index: self.gradient(index) for index in self._parameters}
        norms = []
        for index, gradient in self._totals.items():
            squares = 0.0 if gradient is None else float(np.sum(np.square(np.asarray(gradient, np.float64))))
            norms.append((positions[name] if (name := self._stage.variables[index].op.name) in positions else index, squares))
        self._squares = sum(squares for _, squares in norms)
        return norms

    def update(self, factor=1.0, scale=1.0, skip=False):
        """One optimizer step with gradients x scale; their sum of squares before that. `skip`: the gradients are dropped.
        REQUIRES: gradient_norms was called for them."""
        for index, gradient in self._totals.items():
            self._gradients[index] = [None] * len(self._gradients[index])
            if skip or gradient is None:
                continue
            if scale != 1:
                gradient = gradient * gradient.dtype.type(scale)
            self._values[index] = self._parameters[index].update(self._values[index], gradient, factor)
        self._totals = {}
        if skip:
            for variable, value in self._written_before[1].items():
                self._values[variable] = value
        jax.block_until_ready(self._values)
        self._count_memory()
        return self._squares

    # ------------------------------------------------------------------ memory

    @property
    def peak_memory_bytes(self):
        """Of what is held between the runs of compiled functions; XLA's scratch memory is not in it."""
        return self._peak

    def _bytes_of(self, pullback):
        """What a pullback keeps beside the variables' values, which it shares."""
        shared = {value.unsafe_buffer_pointer() for value in self._values}
        return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(pullback)
                   if leaf.nbytes and not (isinstance(leaf, jax.Array) and leaf.unsafe_buffer_pointer() in shared))

    def _count_memory(self):
        held = sum(value.nbytes for value in self._values)
        held += sum(g.nbytes for uses in self._gradients for g in uses if g is not None)
        for parameter in self._parameters.values():
            held += parameter.bytes
        for state in self._passes.values():
            held += sum(value.nbytes for value in state.values.values()) + sum(state.bytes.values())
            held += sum(c.nbytes for there in state.cotangents.values() for c in there.values() if c is not None)
        self._peak = max(self._peak, held)
        if 0 < self._memory_limit < held:
            raise StatusError(Code.RESOURCE_EXHAUSTED, f"the stage holds {held} bytes, its compnode declares "
                                                       f"{self._memory_limit}")

    # ------------------------------------------------------------------ helpers

    def _argument(self, state, kind, index):
        return self._values[index] if kind == "variable" else state.values[index]

    def _state(self, run):
        if run.key not in self._passes:
            self._passes[run.key] = PassState(reads_left={n: slot.reads for n, slot in enumerate(self._stage.slots)})
        return self._passes[run.key]

    def _count_read(self, state, slot):
        state.reads_left[slot] -= 1
        if state.reads_left[slot] <= 0:
            state.values.pop(slot, None)

    def _check_spec(self, what, spec, value):
        if value.dtype != DTYPES.get(spec.dtype) or value.shape != shape_for(spec, self._samples):
            raise invalid(f"{what} is {type_text(value.dtype, value.shape)}, expected {spec_text(spec, self._samples)}")


def missing_operators(program):
    """Names of the program's operators that this engine lacks, with their types."""
    from .operators import REGISTRY, full_name

    skipped = (graph_pb2.Operator.VARIABLE, graph_pb2.Operator.PLACEHOLDER)
    return [f"'{op.name}' ({full_name(op)})" for sub_dag in program.sub_dags for op in sub_dag.operators
            if op.kind not in skipped and full_name(op) not in REGISTRY]
