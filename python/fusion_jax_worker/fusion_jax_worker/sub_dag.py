"""One sub-DAG as functions that XLA compiles: its values and what the backward pass needs, then its gradients.

The sums of cotangents have the order of worker/engine/engine.h: descending topological order of the consumers, wherever they
ran. JAX's backward pass goes through the traced operators from the last to the first, each a unit of its own (a nested jit), and
adds each one's cotangents to what is there. A consumer that is not in this sub-DAG stands as a copy (a tap) at its place in that
order; its cotangent is the tap's. Every use of a variable, and every consumer of a value from outside, reads an argument of its
own, so that their gradients stay apart.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .stage_graph import LOSS_POSITION
from .status import invalid
from .tensors import DTYPES, shape_for, spec_text, type_text


@dataclass(frozen=True)
class Leaf:
    """A differentiable argument: one consumer's view of a variable or of a value from outside."""

    kind: str  # "variable" | "slot"
    index: int
    position: int  # of the consumer
    use: int = 0  # of a variable: index in its uses


class SubDag:
    """Pure; keeps no values."""

    def __init__(self, stage, index, samples):
        self._stage = stage
        self._index = index
        self._samples = samples
        self._graph = stage.sub_dags[index]
        self.leaves = []  # Leaf, in the order of `leaves` of the functions below
        self.plain = []  # ("variable" | "slot", index) without gradient
        self.random = [op for op in self._graph.operators if op.call is not None and op.call.random]
        self._own = {slot for op in self._graph.operators if op.call is not None for slot in op.outputs}
        self._collect_arguments()
        # Variables that training passes change, in the order of `written` of `forward`, and those that they count in.
        self.written = [op.reads[place][1] for op in self._graph.operators if op.call is not None for place in op.call.written]
        self.taps = self._collect_taps()  # (slot, position), ascending by position
        self.values = self._collect_values()  # slots that others read
        self._reachable = self._find_reachable()
        self._train = jax.jit(self._run_recorded)
        self._evaluate = jax.jit(lambda plain, leaves, keys: self._run(leaves, plain, keys, False)[1:])
        self._train_only = jax.jit(lambda plain, leaves, keys: self._run(leaves, plain, keys, True)[1])
        self._pull = jax.jit(lambda pullback, cotangents: pullback(cotangents)[0])

    # ------------------------------------------------------------------ what it is a function of

    def _collect_arguments(self):
        stage = self._stage
        for op in self._graph.operators:
            for kind, index in op.reads:
                if kind == "slot" and index in self._own:
                    continue
                if kind == "variable" and stage.variables[index].trainable:
                    use = stage.variables[index].uses.index((op.position, op.op.name))
                    self.leaves.append(Leaf(kind, index, op.position, use))
                elif kind == "slot" and stage.slots[index].differentiable:
                    self.leaves.append(Leaf(kind, index, op.position))
                elif (kind, index) not in self.plain:
                    self.plain.append((kind, index))
        for kind, index in {(leaf.kind, leaf.index) for leaf in self.leaves} | set(self.plain):
            if kind == "slot":
                stage.slots[index].reads += 1

    def _collect_taps(self):
        stage = self._stage
        taps = []
        for other in stage.sub_dags:
            if other is self._graph:
                continue
            taps += [(index, op.position) for op in other.operators for kind, index in op.reads
                     if kind == "slot" and index in self._own and stage.slots[index].differentiable]
        for outgoing in stage.outgoing.values():
            if outgoing.slot in self._own and outgoing.edge.differentiable:
                each = outgoing.edge.cotangent_per_consumer
                taps += [(outgoing.slot, position) for position in outgoing.positions[: None if each else 1]]
        if stage.loss_slot in self._own and stage.slots[stage.loss_slot].differentiable:
            taps.append((stage.loss_slot, LOSS_POSITION))
        return sorted(taps, key=lambda tap: (tap[1], tap[0]))

    def _collect_values(self):
        stage = self._stage
        read = {index for other in stage.sub_dags if other is not self._graph for op in other.operators
                for kind, index in op.reads if kind == "slot"}
        read |= {outgoing.slot for outgoing in stage.outgoing.values()} | {stage.loss_slot}
        return sorted(read & self._own)

    def _find_reachable(self):
        """For each leaf the taps whose cotangents reach it."""
        reach = {slot: {tap for tap, (tapped, _) in enumerate(self.taps) if tapped == slot} for slot in self._own}
        of_operator = {}
        for op in reversed(self._graph.operators):
            outputs = [reach[slot] for slot in op.outputs if slot in reach and self._stage.slots[slot].differentiable]
            of_operator[op.position] = set().union(*outputs)
            for kind, index in op.reads:
                if kind == "slot" and index in self._own:
                    reach[index] |= of_operator[op.position]
        return [of_operator[leaf.position] for leaf in self.leaves]

    # ------------------------------------------------------------------ the functions

    def _run(self, leaves, plain, keys, training):
        """(taps, (values that others read, new values of written variables), correct classifications or None)"""
        given = dict(zip(((leaf.kind, leaf.index, leaf.position) for leaf in self.leaves), leaves))
        given_plain = dict(zip(self.plain, plain))
        keys = dict(zip((op.op.name for op in self.random), keys))
        env = {}
        tapped = []
        waiting = list(self.taps)
        written = []

        def tap_before(position):
            while waiting and waiting[0][1] <= position:
                tapped.append(jnp.copy(env[waiting.pop(0)[0]]))

        for op in self._graph.operators:
            if op.call is None:
                continue
            tap_before(op.position)
            values = []
            for kind, index in op.reads:
                if kind == "slot" and index in env:
                    values.append(env[index])
                elif (kind, index) in given_plain:
                    values.append(given_plain[kind, index])
                else:
                    values.append(given[kind, index, op.position])
            outputs, changed = self._call(op, training, keys.get(op.op.name), values)
            written += changed
            env.update(zip(op.outputs, outputs))
        tap_before(LOSS_POSITION)
        return tapped, ([env[slot] for slot in self.values], written), self._count_correct(env, given_plain)

    def _count_correct(self, env, plain):
        """Samples whose class has the highest score, where this sub-DAG computes such a loss."""
        if self._stage.classes is None or self._stage.loss_slot not in self._own:
            return None
        scores, classes = (env.get(slot, plain.get(("slot", slot))) for slot in self._stage.classes)
        return None if scores is None or classes is None else jnp.sum(jnp.argmax(scores, axis=1) == classes)

    def _call(self, op, training, key, values):
        def unit(values, key):
            try:
                return op.call.call(self._samples, training, key, values)
            except (TypeError, ValueError, IndexError) as error:
                raise invalid(f"{op.call.what}: {error}") from error

        outputs, written = jax.jit(unit)(values, key)
        specs = op.op.outputs
        if len(outputs) != len(specs):
            raise invalid(f"{op.call.what} returns {len(outputs)} tensors, but the graph says {len(specs)}")
        for number, (output, spec) in enumerate(zip(outputs, specs)):
            if output.dtype != DTYPES.get(spec.dtype) or output.shape != shape_for(spec, self._samples):
                raise invalid(f"{op.call.what}: its result {number} is {type_text(output.dtype, output.shape)}, the graph "
                              f"says {spec_text(spec, self._samples)}")
        return outputs, written

    def _run_recorded(self, plain, leaves, keys):
        _, pullback, (values, written) = jax.vjp(lambda leaves: self._run(leaves, plain, keys, True)[:2], leaves, has_aux=True)
        return values, written, pullback

    def evaluate(self, plain, leaves, keys):
        """`values`, without what a backward pass needs, and the number of correct classifications or None."""
        (values, _), correct = self._evaluate(plain, leaves, keys)
        return values, correct

    def forward(self, plain, leaves, keys):
        """`values`, new values of the variables `written`, and a pullback for `backward`."""
        return self._train(plain, leaves, keys)

    def forward_only(self, plain, leaves, keys):
        """The same without the pullback."""
        return self._train_only(plain, leaves, keys)

    def backward(self, pullback, cotangents):
        """The gradient of each leaf; None where none reaches it. `cotangents`: as `taps`; None: absent."""
        present = {number for number, cotangent in enumerate(cotangents) if cotangent is not None}
        if not present or not self.leaves:
            return [None] * len(self.leaves)
        filled = []
        for (slot, _), cotangent in zip(self.taps, cotangents):
            spec = self._stage.slots[slot].spec
            filled.append(jnp.zeros(shape_for(spec, self._samples), DTYPES[spec.dtype]) if cotangent is None else cotangent)
        gradients = self._pull(pullback, filled)
        return [gradient if reached & present else None for gradient, reached in zip(gradients, self._reachable)]
