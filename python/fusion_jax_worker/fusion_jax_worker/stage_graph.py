"""A stage's program resolved for execution: values as slots, what each sub-DAG reads from outside of itself, and which
cotangents come to it from there.
"""

from dataclasses import dataclass, field

from fusion.graph.v1 import graph_pb2

from .operators import BoundOperator
from .status import invalid
from .tensors import FLOATING

LOSS_POSITION = 2**31 - 1  # the loss's own gradient comes before those of all consumers


@dataclass
class Slot:
    """A value of a micro-batch: an operator's output, a placeholder's data, or what an edge brings."""

    name: str
    spec: graph_pb2.TensorSpec
    differentiable: bool = False
    sub_dag: int = -1  # that computes it; -1: an edge brings it
    reads: int = 0  # by sub-DAGs and outgoing edges; nothing is kept that is not read any more


@dataclass
class Variable:
    op: graph_pb2.Operator
    borrowed: bool
    # (position, name) of the operators that read it, anywhere, ascending: its gradient is the sum of one for each.
    uses: list = field(default_factory=list)

    @property
    def tensor_name(self):
        return self.op.variable.tensor_name

    @property
    def trainable(self):
        return self.op.variable.trainable


@dataclass
class StageOperator:
    op: graph_pb2.Operator
    position: int
    call: BoundOperator = None  # None: a placeholder
    reads: list = field(default_factory=list)  # ("variable", index) or ("slot", index), as call.reads
    outputs: list = field(default_factory=list)  # slots
    differentiable: bool = False
    counters: list = field(default_factory=list)  # variables that count its training passes


@dataclass
class StageEdge:
    edge: graph_pb2.Edge
    slot: int
    positions: list  # of edge.consumers


@dataclass
class StageSubDag:
    operators: list = field(default_factory=list)  # in topological order, without variables
    outgoing: list = field(default_factory=list)  # StageEdge
    returned: list = field(default_factory=list)  # differentiable incoming edges first read here


class StageGraph:
    """REQUIRES: the program does not change. Errors name the operator or edge."""

    def __init__(self, program):
        self.program = program
        self.slots = []
        self.variables = []
        self.sub_dags = []
        self.incoming = {}
        self.outgoing = {}
        self.loss_slot = -1
        self.classes = None
        self._slot_of = {}
        self._variable_of = {}
        borrowed = {shared.variable for shared in program.borrowed}
        for edge in program.incoming:
            slot = self._add_slot((edge.value.operator, edge.value.index), edge.spec, edge.differentiable, -1)
            self.incoming[edge.id] = self._resolve(edge, slot)
        for op in (op for sub_dag in program.sub_dags for op in sub_dag.operators):
            if op.kind == graph_pb2.Operator.VARIABLE and op.name not in self._variable_of:
                self._variable_of[op.name] = len(self.variables)
                self.variables.append(Variable(op, op.name in borrowed))
        for sub_dag in program.sub_dags:
            self.sub_dags.append(StageSubDag())
            for op in sub_dag.operators:
                if op.kind != graph_pb2.Operator.VARIABLE:
                    self._add_operator(op)
        self._add_edges()
        self._number_uses()
        self._find_loss()

    def variable(self, name):
        """Index of a variable by its operator's name, or None."""
        return self._variable_of.get(name)

    def placeholder(self, name):
        """Slot of a placeholder, or None."""
        for sub_dag in self.sub_dags:
            for op in sub_dag.operators:
                if op.call is None and op.op.name == name:
                    return op.outputs[0]
        return None

    def _add_slot(self, key, spec, differentiable, sub_dag):
        self._slot_of[key] = len(self.slots)
        self.slots.append(Slot(f"{key[0]}[{key[1]}]", spec, differentiable, sub_dag))
        return self._slot_of[key]

    def _position(self, name):
        if name not in self.program.positions:
            raise invalid(f"stage {self.program.stage}: the program gives no position for operator '{name}'")
        return self.program.positions[name]

    def _resolve(self, edge, slot):
        if not edge.consumers:
            raise invalid(f"edge {edge.id} has no consumer")
        return StageEdge(edge, slot, [self._position(name) for name in edge.consumers])

    def _add_operator(self, op):
        resolved = StageOperator(op, self._position(op.name))
        if op.kind != graph_pb2.Operator.PLACEHOLDER:
            resolved.call = BoundOperator(op)
            resolved.reads = [self._read(key, resolved) for key in resolved.call.reads]
            self._check_written(resolved)
            resolved.counters = [self._variable_of[ref.operator] for ref in op.counters]
        for index, spec in enumerate(op.outputs):
            differentiable = resolved.differentiable and spec.dtype in FLOATING
            resolved.outputs.append(self._add_slot((op.name, index), spec, differentiable, len(self.sub_dags) - 1))
        self.sub_dags[-1].operators.append(resolved)

    def _read(self, key, reader):
        variable = self._variable_of.get(key[0])
        if variable is not None:
            self.variables[variable].uses.append((reader.position, reader.op.name))
            reader.differentiable |= self.variables[variable].trainable
            return ("variable", variable)
        slot = self._slot_of.get(key)
        if slot is None:
            raise invalid(f"{reader.call.what} reads {key[0]}[{key[1]}], which neither stage {self.program.stage} computes "
                          "before it nor an edge brings")
        reader.differentiable |= self.slots[slot].differentiable
        return ("slot", slot)

    def _check_written(self, op):
        for kind, index in (op.reads[place] for place in op.call.written):
            if kind != "variable" or self.variables[index].trainable:
                raise invalid(f"{op.call.what} writes to what is no variable with trainable false")

    def _add_edges(self):
        for edge in self.program.outgoing:
            slot = self._slot_of.get((edge.value.operator, edge.value.index))
            if slot is None or not 0 <= edge.from_sub_dag < len(self.sub_dags):
                raise invalid(f"edge {edge.id} leaves stage {self.program.stage} with {edge.value.operator}"
                              f"[{edge.value.index}], which is not computed there")
            self.outgoing[edge.id] = self._resolve(edge, slot)
            self.slots[slot].reads += 1
            self.sub_dags[edge.from_sub_dag].outgoing.append(self.outgoing[edge.id])
        for resolved in self.incoming.values():
            edge = resolved.edge
            if not edge.differentiable:
                continue
            if not edge.to_sub_dags or not 0 <= edge.to_sub_dags[0] < len(self.sub_dags):
                raise invalid(f"edge {edge.id} names no sub-DAG of stage {self.program.stage} that reads it")
            self.sub_dags[edge.to_sub_dags[0]].returned.append(resolved)

    def _number_uses(self):
        for shared in self.program.lent:
            variable = self._variable_of.get(shared.variable)
            if variable is None:
                raise invalid(f"stage {self.program.stage} lends variable '{shared.variable}', which it does not have")
            for name in shared.consumers:
                self.variables[variable].uses.append((self._position(name), name))
        for variable in self.variables:
            variable.uses.sort()

    def _find_loss(self):
        if not self.program.computes_loss:
            return
        loss = self.program.loss
        slot = self._slot_of.get((loss.operator, loss.index))
        if slot is None or self.slots[slot].sub_dag < 0:
            raise invalid(f"stage {self.program.stage} computes the loss {loss.operator}[{loss.index}], but has no such value")
        self.loss_slot = slot
        self._find_classes()

    def _find_classes(self):
        """Where the loss is the cross entropy of one class a sample: slots of the scores and of the classes."""
        for op in (op for sub_dag in self.sub_dags for op in sub_dag.operators):
            if op.op.name != self.program.loss.operator or op.op.type != "aten.cross_entropy_loss" or len(op.reads) < 2:
                continue
            (kind, scores), (other_kind, classes) = op.reads[:2]
            if kind != "slot" or other_kind != "slot":
                continue
            spec = self.slots[classes].spec
            if len(self.slots[scores].spec.shape) == 2 and spec.dtype == graph_pb2.INT64 and list(spec.shape) == [-1]:
                self.classes = (scores, classes)
