"""What of a stage's step is done and has arrived: transport threads put tensors here, the compute thread takes tasks."""

import threading
import time

from .messages import BACKWARD
from .schedule import Kind, Phase, complete, next_task
from .status import invalid


class TaskBoard:
    """Thread-safe. `begin`, `await_task`, `complete`, `take` and `count_sent` are for the compute thread."""

    def __init__(self, schedule, table):
        self._schedule = schedule
        self._table = table
        self._changed = threading.Condition()
        self._failure = None
        self._state = None
        self._step = 0
        self._first = 0  # micro-batch number, on the wire, of the first pass
        self._arrived = {}
        self._last_admitted = {}  # (direction, edge, consumer): (step, micro-batch)
        self._not_granted = {}  # by outgoing edge

    def admit(self, key):
        """INVALID_ARGUMENT where a message may not come now."""
        with self._changed:
            lane, now = (key.direction, key.edge, key.consumer), (key.step, key.micro_batch)
            last = self._last_admitted.get(lane)
            if last is not None and last >= now:
                raise invalid(f"it comes after that of step {last[0]}, micro-batch {last[1]}")
            self._last_admitted[lane] = now
            if key.step < self._step:
                raise invalid(f"step {self._step} is running")
            if key.direction == BACKWARD:
                state = self._state
                producer = None if state is None else state.sub_dags[self._table.outgoing[key.edge].from_sub_dag]
                if producer is None or not state.training or key.step != self._step or key.micro_batch >= producer.forwards:
                    raise invalid("its value has not been sent")

    def deliver(self, key, tensor):
        """REQUIRES: admitted."""
        with self._changed:
            self._arrived[key] = tensor
            self._count(key)
            self._changed.notify_all()

    def _count(self, key):
        """An arrival for the step or validation that runs, if it is for that."""
        state = self._state
        if state is None or key.step != self._step or state.phase == Phase.FINISHED:
            return
        if key.once_per_step:
            if state.training:
                state.missing[key.direction] -= 1
            return
        m = key.micro_batch - self._first
        if not 0 <= m < state.passes:
            return
        if key.direction == BACKWARD:
            state.sub_dags[self._table.outgoing[key.edge].from_sub_dag].missing_gradients[m] -= 1
            return
        for reader in self._table.incoming[key.edge].to_sub_dags:
            state.sub_dags[reader].missing_values[m] -= 1

    def count_sent(self, edge):
        with self._changed:
            self._not_granted[edge] = self._not_granted.get(edge, 0) + 1
            self._update_not_granted(self._table.outgoing[edge].from_sub_dag)

    def count_granted(self, edge):
        with self._changed:
            if self._not_granted.get(edge, 0) == 0:
                self._failure = self._failure or invalid(f"more grants of edge {edge} than tensors sent")
            else:
                self._not_granted[edge] -= 1
                self._update_not_granted(self._table.outgoing[edge].from_sub_dag)
            self._changed.notify_all()

    def _update_not_granted(self, sub_dag):
        if self._state is not None:
            self._state.sub_dags[sub_dag].not_granted = max(
                (count for edge, count in self._not_granted.items() if self._table.outgoing[edge].from_sub_dag == sub_dag),
                default=0)

    def fail(self, error):
        """`await_task` raises the first error from now on."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def begin(self, state, step, first):
        """A new step or validation, whose first pass has micro-batch number `first` on the wire."""
        with self._changed:
            self._state, self._step, self._first = state, step, first
            for index in range(len(state.sub_dags)):
                self._update_not_granted(index)
            for key in self._arrived:
                self._count(key)

    def await_task(self):
        """(task, seconds waited)"""
        with self._changed:
            began = None
            while True:
                if self._failure is not None:
                    raise self._failure
                task = next_task(self._schedule, self._state)
                if task.kind != Kind.WAIT:
                    return task, 0.0 if began is None else time.monotonic() - began
                began = time.monotonic() if began is None else began
                self._changed.wait()

    def complete(self, task):
        with self._changed:
            complete(task, self._state)

    def take(self, key):
        with self._changed:
            return self._arrived.pop(key)

    def readers_done(self, edge, m):
        """Whether all sub-DAGs that read the edge have done their forward of pass `m`."""
        with self._changed:
            return all(self._state.sub_dags[reader].forwards > m for reader in edge.to_sub_dags)

    def pass_done(self, m):
        with self._changed:
            return all(sub_dag.forwards > m and sub_dag.backwards > m for sub_dag in self._state.sub_dags)
