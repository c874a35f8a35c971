"""Which task a stage runs next: the rule of worker/pipeline/schedule.h."""

from dataclasses import dataclass, field
from enum import Enum, auto

from fusion.graph.v1 import graph_pb2

from .messages import STEP_DECISION, STEP_NORMS, VARIABLE_GRADIENT, VARIABLE_VALUE, Decision
from .status import invalid
from .tensors import FLOATING


@dataclass
class SubDagRule:
    """What a sub-DAG waits for."""

    depth: int = 1
    has_backward: bool = False
    forward_after: set = field(default_factory=set)
    backward_after: set = field(default_factory=set)
    readers: set = field(default_factory=set)
    values: int = 0  # tensors that arrive for each forward
    gradients: int = 0  # tensors that arrive for each backward


@dataclass
class Schedule:
    gpipe: bool
    micro_batches: int
    sub_dags: list
    # Messages of a step that are of no micro-batch, by direction.
    once_per_step: dict = field(default_factory=dict)


def make_schedule(program, gpipe, micro_batches):
    rules = []
    for index, sub_dag in enumerate(program.sub_dags):
        if sub_dag.depth < 1:
            raise invalid(f"sub-DAG {index} of stage {program.stage} has depth {sub_dag.depth}, not at least 1")
        rule = SubDagRule(micro_batches if gpipe else sub_dag.depth)
        rule.has_backward = program.computes_loss and any(op.name == program.loss.operator for op in sub_dag.operators)
        rules.append(rule)
    _add_edges(program, rules)
    _add_local_reads(program, rules)
    decision = Decision(program)
    return Schedule(gpipe, micro_batches, rules,
                    {VARIABLE_GRADIENT: sum(len(lent.consumers) for lent in program.lent),
                     VARIABLE_VALUE: len(program.borrowed), STEP_NORMS: len(decision.children),
                     STEP_DECISION: int(decision.parent is not None)})


def _add_edges(program, rules):
    for edge in program.incoming:
        if not edge.to_sub_dags or not all(0 <= reader < len(rules) for reader in edge.to_sub_dags):
            raise invalid(f"edge {edge.id} goes to no sub-DAG of stage {program.stage}")
        first = edge.to_sub_dags[0]
        for reader in edge.to_sub_dags:
            rules[reader].values += 1
            if edge.differentiable:
                rules[reader].has_backward = True
                if reader != first:
                    # The first reader's backward returns the sum over all of them.
                    rules[first].backward_after.add(reader)
    for edge in program.outgoing:
        if not 0 <= edge.from_sub_dag < len(rules):
            raise invalid(f"edge {edge.id} comes from no sub-DAG of stage {program.stage}")
        if edge.differentiable:
            rule = rules[edge.from_sub_dag]
            rule.has_backward = True
            rule.gradients += len(edge.consumers) if edge.cotangent_per_consumer else 1


def reads_of(op):
    """Names of the operators whose values `op` reads."""
    for argument in [*op.args, *(named.argument for named in op.kwargs)]:
        if argument.HasField("value"):
            yield argument.value.operator
        for ref in argument.values.items:
            yield ref.operator


def _add_local_reads(program, rules):
    needs_gradient = {edge.value.operator for edge in program.incoming if edge.differentiable}
    home = {}
    for index, sub_dag in enumerate(program.sub_dags):
        for op in sub_dag.operators:
            variable = op.kind == graph_pb2.Operator.VARIABLE
            home[op.name] = None if variable else index
            reads_differentiable = variable and op.variable.trainable
            for name in reads_of(op):
                differentiable = name in needs_gradient
                reads_differentiable |= differentiable
                source = home.get(name)
                if source is None or source == index:
                    continue
                rules[index].forward_after.add(source)
                rules[source].readers.add(index)
                if differentiable:
                    rules[source].has_backward = rules[index].has_backward = True
                    rules[source].backward_after.add(index)
            if reads_differentiable and any(spec.dtype in FLOATING for spec in op.outputs):
                needs_gradient.add(op.name)


class Phase(Enum):
    PASSES = auto()
    RETURN_GRADIENTS = auto()  # of borrowed variables
    DECIDE = auto()  # or send the norms to where it is decided
    UPDATE = auto()
    TAKE_VARIABLES = auto()  # new values of borrowed variables
    FINISHED = auto()


class Kind(Enum):
    WAIT = "wait"
    FORWARD = "forward"
    BACKWARD = "backward"
    RETURN_GRADIENTS = "return of gradients"
    DECIDE = "decision"
    UPDATE = "update"
    TAKE_VARIABLES = "taking of variables"
    FINISHED = "end"


@dataclass(frozen=True)
class Task:
    kind: Kind
    sub_dag: int = -1
    micro_batch: int = -1  # counted inside the step or the validation


@dataclass
class SubDagState:
    missing_values: list
    missing_gradients: list
    forwards: int = 0
    backwards: int = 0
    not_granted: int = 0


class StepState:
    """Of a step, or of a validation of `passes` micro-batches."""

    def __init__(self, schedule, training, passes):
        self.training = training
        self.passes = passes
        self.phase = Phase.PASSES
        self.missing = dict(schedule.once_per_step)
        self.sub_dags = [SubDagState([rule.values] * passes, [rule.gradients] * passes,
                                     backwards=0 if training and rule.has_backward else passes)
                         for rule in schedule.sub_dags]


def _forward_ready(schedule, state, index):
    rule, sub_dag = schedule.sub_dags[index], state.sub_dags[index]
    m = sub_dag.forwards
    if m == state.passes or sub_dag.missing_values[m] > 0:
        return False
    if any(state.sub_dags[before].forwards <= m for before in rule.forward_after):
        return False
    if state.training and rule.has_backward:
        return m - sub_dag.backwards < rule.depth
    if any(m - state.sub_dags[reader].forwards >= rule.depth for reader in rule.readers):
        return False
    return sub_dag.not_granted < rule.depth


def _backward_ready(schedule, state, index):
    rule, sub_dag = schedule.sub_dags[index], state.sub_dags[index]
    m = sub_dag.backwards
    if m >= sub_dag.forwards or sub_dag.missing_gradients[m] > 0:
        return False
    if schedule.gpipe and any(other.forwards < state.passes for other in state.sub_dags):
        return False
    return all(state.sub_dags[before].backwards > m for before in rule.backward_after)


def next_task(schedule, state):
    """WAIT: something has to arrive first."""
    if state.phase == Phase.RETURN_GRADIENTS:
        return Task(Kind.RETURN_GRADIENTS)
    if state.phase == Phase.DECIDE:
        waits = state.missing[VARIABLE_GRADIENT] > 0 or state.missing[STEP_NORMS] > 0
        return Task(Kind.WAIT if waits else Kind.DECIDE)
    if state.phase == Phase.UPDATE:
        return Task(Kind.WAIT if state.missing[STEP_DECISION] > 0 else Kind.UPDATE)
    if state.phase == Phase.TAKE_VARIABLES:
        return Task(Kind.WAIT if state.missing[VARIABLE_VALUE] > 0 else Kind.TAKE_VARIABLES)
    if state.phase == Phase.FINISHED:
        return Task(Kind.FINISHED)
    indexes = range(len(state.sub_dags))
    backwards = [(state.sub_dags[i].backwards, -i) for i in indexes if _backward_ready(schedule, state, i)]
    if backwards:
        m, negative = min(backwards)
        return Task(Kind.BACKWARD, -negative, m)
    forwards = [(state.sub_dags[i].forwards, i) for i in indexes if _forward_ready(schedule, state, i)]
    if forwards:
        m, index = min(forwards)
        return Task(Kind.FORWARD, index, m)
    return Task(Kind.WAIT)


def complete(task, state):
    if task.kind == Kind.FORWARD:
        state.sub_dags[task.sub_dag].forwards += 1
    elif task.kind == Kind.BACKWARD:
        state.sub_dags[task.sub_dag].backwards += 1
    elif task.kind == Kind.RETURN_GRADIENTS:
        state.phase = Phase.DECIDE
        return
    elif task.kind == Kind.DECIDE:
        state.phase = Phase.UPDATE
        return
    elif task.kind == Kind.UPDATE:
        state.phase = Phase.TAKE_VARIABLES
        return
    elif task.kind == Kind.TAKE_VARIABLES:
        state.phase = Phase.FINISHED
        return
    if all(sub_dag.forwards == sub_dag.backwards == state.passes for sub_dag in state.sub_dags):
        state.phase = Phase.RETURN_GRADIENTS if state.training else Phase.FINISHED
