"""Runs the tasks of one stage: takes the next task, feeds the engine, and moves tensors (worker/pipeline/stage_runner.h).

The caller of run_step and run_validation is the compute thread. One thread encodes and one decodes; dense tensors go as they
are. Transport threads call the handlers.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fusion.graph.v1 import graph_pb2
from fusion.wire.v1 import broker_pb2

from .board import TaskBoard
from .data import Slice
from .engine import Pass
from .messages import (BACKWARD, FORWARD, STEP_DECISION, STEP_NORMS, VARIABLE_GRADIENT, VARIABLE_VALUE, EdgeCoder, Key,
                       MessageTable, dense_message)
from .optimizers import clipping_factor, learning_rate, learning_rate_factor, sum_of_squares
from .schedule import Kind, StepState, make_schedule
from .status import Code, StatusError, invalid
from .timer import TaskTimer


def non_finite(what):
    return StatusError(Code.OUT_OF_RANGE, f"NonFiniteLoss: {what}")


class StageRunner:
    def __init__(self, program, training, gpipe, slowdown, engine, transport, feed, targets):
        """Sets the transport's handlers and windows. feed(placeholder, Slice) gives data, targets(Slice) how many targets
        weigh its loss."""
        global_batch, micro_batch = getattr(training.batch, "global"), training.batch.micro
        if micro_batch < 1 or global_batch < 1 or global_batch % micro_batch:
            raise invalid(f"training.batch.micro {micro_batch} does not divide training.batch.global {global_batch}")
        self._program = program
        self._settings = training
        self._micro_batch = micro_batch
        self._engine = engine
        self._transport = transport
        self._feed = feed
        self._targets = targets
        self._schedule = make_schedule(program, gpipe, global_batch // micro_batch)
        self._table = MessageTable(program, micro_batch)
        self._coder = EdgeCoder(self._table.codecs)
        self._board = TaskBoard(self._schedule, self._table)
        self._timer = TaskTimer(slowdown)
        self._encoder = ThreadPoolExecutor(1, "encode")
        self._decoder = ThreadPoolExecutor(1, "decode")
        self._reported = {}
        self._set_windows()
        transport.set_handlers(self._on_receive, self._on_granted, self._on_link_error)

    @property
    def receivers(self):
        """Stages that the transport must be connected to."""
        return self._table.receivers()

    def cancel(self, error):
        """The call that runs, and later ones, raise `error`, at the latest when the current task ends."""
        self._board.fail(error)

    def _set_windows(self):
        window = self._transport.set_window
        for edge in self._program.outgoing:
            window(edge.to_stage, edge.id, FORWARD, self._schedule.sub_dags[edge.from_sub_dag].depth)
        # Gradients are bounded by the depth of the producer, which has room for what it waits for.
        for edge in self._program.incoming:
            if edge.differentiable:
                window(edge.from_stage, edge.id, BACKWARD,
                       self._schedule.micro_batches * self._table.codecs[edge.id].gradients)
        for shared in self._program.borrowed:
            window(shared.owner_stage, shared.id, VARIABLE_GRADIENT, len(shared.consumers))
        for shared in self._program.lent:
            window(shared.user_stage, shared.id, VARIABLE_VALUE, 1)

    # ------------------------------------------------------------------ transport and decoding threads

    def _on_receive(self, from_stage, message):
        try:
            self._table.check(from_stage, message)
            try:
                self._board.admit(message.key)
            except StatusError as error:
                raise StatusError(error.code, f"stage {self._program.stage} cannot take what stage {from_stage} sent, "
                                              f"{self._table.describe(message.key)}: {error.message}") from None
        except StatusError as error:
            self.cancel(error)
            return
        if message.absent or self._coder.is_dense(message.key):
            self._board.deliver(message.key, self._coder.decode(message, training=False))
        else:
            self._decoder.submit(self._decode, from_stage, message)

    def _decode(self, from_stage, message):
        try:
            tensor = self._coder.decode(message, message.key.micro_batch < self._schedule.micro_batches)
        except StatusError as error:
            self.cancel(StatusError(error.code, f"stage {self._program.stage} cannot decode what stage {from_stage} sent, "
                                                f"{self._table.describe(message.key)}: {error.message}"))
            return
        except Exception as error:  # else it would be lost with the decoding thread's result
            self.cancel(StatusError(Code.INTERNAL, f"cannot decode {self._table.describe(message.key)}: {error!r}"))
            return
        self._board.deliver(message.key, tensor)

    def _on_granted(self, _to_stage, edge, direction):
        if direction == FORWARD:
            self._board.count_granted(edge)

    def _on_link_error(self, peer, error):
        self.cancel(StatusError(error.code, f"stage {self._program.stage}, link with stage {peer}: {error.message}"))

    # ------------------------------------------------------------------ compute thread

    def run_step(self, step):
        """One optimizer step; the StepReport."""
        report = broker_pb2.StepReport(step=step, stage=self._program.stage)
        self._begin(step, True, self._schedule.micro_batches, 0)
        self._run_tasks(report)
        if self._program.computes_loss:
            report.loss = self._mean_loss()
        report.peak_memory_bytes = self._engine.peak_memory_bytes
        self._report_links(report)
        return report

    def run_validation(self, step, batches):
        """`batches` global batches, forward only; (mean loss, accuracy of a classification), of the stage that computes them."""
        self._begin(step, False, batches * self._schedule.micro_batches, self._schedule.micro_batches)
        self._run_tasks(broker_pb2.StepReport())
        accuracy = sum(self._correct.values()) / (len(self._correct) * self._micro_batch) if self._correct else None
        return (self._mean_loss() if self._program.computes_loss else None), accuracy

    def error_feedback(self):
        """{name: residual} of this stage's lossy messages, for checkpoints. Between steps."""
        residuals = self._encoder.submit(self._coder.residuals).result()
        return {self._feedback_name(*place): residual for place, residual in residuals.items()}

    def restore_error_feedback(self, tensors):
        """Takes the tensors of this stage's edges; those of others, or of another cut, are left. Before the first step."""
        places = [(edge.id, FORWARD) for edge in self._program.outgoing] + [(edge.id, BACKWARD) for edge in self._program.incoming]
        found = {place: tensors[name] for place in places if (name := self._feedback_name(*place)) in tensors}
        self._coder.restore_residuals({place: np.array(residual) for place, residual in found.items()})

    def _feedback_name(self, edge_id, direction):
        edge = (self._table.outgoing if direction == FORWARD else self._table.incoming)[edge_id]
        return (f"{edge.value.operator}:{edge.value.index}/{edge.from_stage}-{edge.to_stage}/"
                f"{'FORWARD' if direction == FORWARD else 'BACKWARD'}")

    def _begin(self, step, training, passes, first):
        self._step, self._training, self._first = step, training, first
        self._received = set()
        # Only the loss is weighted.
        counts = self._targets if self._program.computes_loss else (lambda part: part.count)
        self._weights = [counts(self._slice(m)) for m in range(passes)]
        self._losses, self._correct = {}, {}
        self._board.begin(StepState(self._schedule, training, passes), step, first)

    def _run_tasks(self, report):
        run = {Kind.FORWARD: self._forward, Kind.BACKWARD: self._backward, Kind.RETURN_GRADIENTS: self._return_gradients,
               Kind.DECIDE: self._decide,
               Kind.UPDATE: self._update, Kind.TAKE_VARIABLES: self._take_variables}
        while True:
            task, waited = self._board.await_task()
            report.wait_seconds += waited
            if task.kind == Kind.FINISHED:
                return
            try:
                run[task.kind](task, waited > 0, report)
            except StatusError as error:
                where = f", micro-batch {self._first + task.micro_batch}" if task.micro_batch >= 0 else ""
                raise StatusError(error.code, f"{error.message} (stage {self._program.stage}, step {self._step}{where}, "
                                              f"{task.kind.value})") from error

    def _pass(self, micro_batch):
        return Pass(self._step, self._first + micro_batch, self._training, self._weights[micro_batch] / sum(self._weights))

    def _slice(self, micro_batch):
        """Samples of the phase's micro-batch."""
        per_batch = self._schedule.micro_batches
        return Slice(self._training, self._step if self._training else micro_batch // per_batch,
                     micro_batch % per_batch * self._micro_batch, self._micro_batch)

    def _forward(self, task, waited, report):
        run = self._pass(task.micro_batch)
        self._timer.begin(waited)
        self._feed_placeholders(run, task)
        for edge in self._program.incoming:
            if task.sub_dag in edge.to_sub_dags and (edge.id, run.micro_batch) not in self._received:
                self._received.add((edge.id, run.micro_batch))
                value = self._board.take(Key(self._step, run.micro_batch, edge.id, FORWARD))
                self._engine.receive(run, edge.id, value)
        outputs, loss = self._engine.forward(run, task.sub_dag)
        if loss is not None:
            if not math.isfinite(loss):
                raise non_finite(f"the loss is {loss}; lower training.optimizer.learningRate or check the data")
            self._losses[task.micro_batch] = loss
        if self._engine.correct is not None:
            self._correct[task.micro_batch] = self._engine.correct
        report.forward_seconds += self._end_task(report).seconds
        self._board.complete(task)
        for edge, value in outputs:
            self._board.count_sent(edge)
            self._send(self._table.outgoing[edge].to_stage, Key(self._step, run.micro_batch, edge, FORWARD), value)
        for edge in self._program.incoming:
            if task.sub_dag in edge.to_sub_dags and self._board.readers_done(edge, task.micro_batch):
                self._transport.grant(edge.from_stage, edge.id, FORWARD)
        self._release_if_done(run, task)

    def _feed_placeholders(self, run, task):
        for op in self._program.sub_dags[task.sub_dag].operators:
            if op.kind == graph_pb2.Operator.PLACEHOLDER:
                self._engine.feed(run, op.name, self._feed(op.name, self._slice(task.micro_batch)))

    def _backward(self, task, waited, report):
        run = self._pass(task.micro_batch)
        self._timer.begin(waited)
        granted = []
        for edge in self._program.outgoing:
            if edge.from_sub_dag != task.sub_dag or not edge.differentiable:
                continue
            for consumer in range(len(edge.consumers)) if edge.cotangent_per_consumer else (-1,):
                gradient = self._board.take(Key(self._step, run.micro_batch, edge.id, BACKWARD, consumer))
                self._engine.receive_gradient(run, edge.id, consumer, gradient)
                granted.append(edge)
        gradients = self._engine.backward(run, task.sub_dag)
        report.backward_seconds += self._end_task(report).seconds
        self._board.complete(task)
        for edge, consumer, gradient in gradients:
            self._send(self._table.incoming[edge].from_stage, Key(self._step, run.micro_batch, edge, BACKWARD, consumer),
                       gradient)
        for edge in granted:
            self._transport.grant(edge.to_stage, edge.id, BACKWARD)
        self._release_if_done(run, task)

    def _return_gradients(self, task, _waited, _report):
        for shared_id, consumer, gradient in self._engine.take_borrowed_gradients():
            key = Key(self._step, 0, shared_id, VARIABLE_GRADIENT, consumer)
            self._transport.send(self._table.borrowed[shared_id].owner_stage, dense_message(key, gradient))
        self._board.complete(task)

    def _decide(self, task, waited, report):
        """Adds the norms of this stage's gradients to those of its children; decides, or passes them on."""
        self._timer.begin(waited)
        for shared in self._program.lent:
            for consumer in range(len(shared.consumers)):
                gradient = self._board.take(Key(self._step, 0, shared.id, VARIABLE_GRADIENT, consumer))
                self._engine.receive_lent_gradient(shared.id, consumer, gradient)
                self._transport.grant(shared.user_stage, shared.id, VARIABLE_GRADIENT)
        norms = self._engine.gradient_norms()
        decision = self._table.decision
        for child in decision.children:
            norms += map(tuple, self._board.take(Key(self._step, 0, child, STEP_NORMS)))
            self._transport.grant(child, child, STEP_NORMS)
        report.update_seconds = self._end_task(report).seconds
        if decision.parent is not None:
            message = dense_message(Key(self._step, 0, self._program.stage, STEP_NORMS), np.asarray(norms, np.float64).reshape(-1, 2))
            self._transport.send(decision.parent, message)
        else:
            self._squares = sum_of_squares(norms)
            if decision.reports:
                report.job_squared_gradient_norm = self._squares
        self._board.complete(task)

    def _update(self, task, waited, report):
        self._timer.begin(waited)
        decision = self._table.decision
        if decision.parent is not None:
            self._squares = float(self._board.take(Key(self._step, 0, self._program.stage, STEP_DECISION))[0])
            self._transport.grant(decision.parent, self._program.stage, STEP_DECISION)
        for child in decision.children:  # before the work: they wait for it
            self._transport.send(child, dense_message(Key(self._step, 0, child, STEP_DECISION), np.asarray([self._squares])))
        finite = math.isfinite(self._squares)
        squares = self._engine.update(learning_rate_factor(self._settings, self._step), skip=not finite,
                                      scale=clipping_factor(self._settings, self._squares))
        if not finite:
            raise non_finite(f"a gradient is not finite (sum of squares {self._squares}); no parameter was changed; "
                             "lower training.optimizer.learningRate")
        report.squared_gradient_norm = squares
        report.learning_rate = learning_rate(self._settings, self._step)
        span = self._end_task(report)
        report.update_seconds += span.seconds
        report.end_ns = span.end_ns
        for shared in self._program.lent:
            key = Key(self._step, 0, shared.id, VARIABLE_VALUE)
            self._transport.send(shared.user_stage, dense_message(key, self._engine.read_variable(shared.variable)))
        self._board.complete(task)

    def _take_variables(self, task, _waited, _report):
        for shared in self._program.borrowed:
            value = self._board.take(Key(self._step, 0, shared.id, VARIABLE_VALUE))
            self._engine.write_variable(shared.variable, value)
            self._transport.grant(shared.owner_stage, shared.id, VARIABLE_VALUE)
        self._board.complete(task)

    def _end_task(self, report):
        span = self._timer.end()
        if self._timer.emulated:
            report.tasks += 1
            report.overrun_tasks += span.overrun
        if report.start_ns == 0:
            report.start_ns = span.begin_ns
        return span

    def _release_if_done(self, run, task):
        if self._board.pass_done(task.micro_batch):
            self._engine.release(run)

    def _send(self, to_stage, key, tensor):
        training = self._training

        def send():
            try:
                self._transport.send(to_stage, self._coder.encode(key, tensor, training))
            except StatusError as error:
                self.cancel(StatusError(error.code, f"cannot encode {self._table.describe(key)}: {error.message}"))
            except Exception as error:  # else it would be lost with the encoding thread's result
                self.cancel(StatusError(Code.INTERNAL, f"cannot encode {self._table.describe(key)}: {error!r}"))

        if tensor is None or self._coder.is_dense(key):
            send()
        else:
            self._encoder.submit(send)

    def _mean_loss(self):
        return sum(self._weights[m] * self._losses[m] for m in sorted(self._losses)) / sum(self._weights)

    def _report_links(self, report):
        for peer in self.receivers:
            now = self._transport.counters(peer)
            before = self._reported.get(peer, (0, 0, 0.0))
            report.links.add(to_stage=peer, bytes=now[0] - before[0], dense_bytes=now[1] - before[1],
                             seconds=now[2] - before[2])
            self._reported[peer] = now
