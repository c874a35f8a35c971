"""What a worker does with its assignment, from loading to the last report (worker/session/stage_job.h)."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fusion.graph.v1 import graph_pb2
from fusion.v1alpha1 import api_pb2
from fusion.wire.v1 import broker_pb2

from . import checkpoint
from .data import open_dataset, resolve_path, targets_of, validation_batches
from .engine import Engine
from .runner import StageRunner
from .status import Code, StatusError, invalid
from .tensors import DTYPES, shape_for, spec_text, type_text


def _due(step, last, every):
    """Whether something that is due every so many steps, and after the last one, is due now."""
    return step == last or (every > 0 and step % every == 0)


def check_supported(spec):
    """UNIMPLEMENTED names a setting that would change the numbers and that this worker does not know."""
    if spec.training.precision == api_pb2.Training.bf16:
        raise StatusError(Code.UNIMPLEMENTED, "the engine jax does not know training.precision bf16; leave it out, or use compnodes "
                                              "with the engine torch")


class StageJob:
    """`run` on one thread, the compute thread; the other methods from any. Files are written on a thread of their own."""

    def __init__(self, assignment, transport, report):
        self._assignment = assignment
        self._transport = transport
        self._report = report  # thread-safe
        self._changed = threading.Condition()
        self._peers = self._start = self._cancelled = self._runner = None
        self._disk = ThreadPoolExecutor(1, "disk")
        self._last_part = None
        self._chosen = None  # (path, training state) of the checkpoint that stage 0 goes on from
        self._notes = []  # for people

    # ------------------------------------------------------------------ any thread

    def on_peers(self, peers):
        with self._changed:
            self._peers = peers
            self._changed.notify_all()

    def on_start(self, start):
        with self._changed:
            self._start = start
            self._changed.notify_all()

    def on_assemble(self, request):
        self._disk.submit(self._assemble, request)

    def cancel(self, error):
        """`run` raises `error`, at the latest when the current task ends."""
        with self._changed:
            self._cancelled = self._cancelled or error
            if self._runner is not None:
                self._runner.cancel(error)
            self._changed.notify_all()

    # ------------------------------------------------------------------ compute thread

    def run(self):
        spec = self._assignment.spec
        self._load()
        addresses = self._await("_peers").addresses
        missing = [stage for stage in self._runner.receivers if stage not in addresses]
        if missing:
            raise invalid(f"the broker did not say where stage {missing[0]} is")
        self._transport.connect([(stage, addresses[stage]) for stage in self._runner.receivers])
        ready = broker_pb2.Ready(memory_bytes=self._engine.peak_memory_bytes, notes=self._notes)
        if self._chosen is not None:
            ready.checkpoint, ready.checkpoint_step = self._chosen[0], self._chosen[1]["step"]
        self._report(broker_pb2.WorkerMessage(ready=ready))
        start = self._await("_start")
        if start.checkpoint:
            self._runner.restore_error_feedback(checkpoint.restore(start.checkpoint, self._engine))
        evaluate = spec.task == api_pb2.FusionJobSpec.Evaluate
        if evaluate:
            self._validate(0)
        else:
            self._train(max(1, start.first_step))
        self._disk.submit(lambda: None).result()
        finished = broker_pb2.Finished(step=0 if evaluate else spec.training.steps)
        self._report(broker_pb2.WorkerMessage(finished=finished))

    def _await(self, name):
        with self._changed:
            self._changed.wait_for(lambda: getattr(self, name) is not None or self._cancelled is not None)
            if self._cancelled is not None:
                raise self._cancelled
            return getattr(self, name)

    def _load(self):
        assignment, spec, program = self._assignment, self._assignment.spec, self._assignment.program
        check_supported(spec)
        if program.stage == 0 and assignment.checkpoint_directory:
            checkpoint.remove_partial(assignment.checkpoint_directory)  # no stage writes before all are ready
        if assignment.links:
            self._transport.emulate_links(assignment.links, assignment.link_state_file)
        self._placeholders = {op.name: op.outputs[0] for sub_dag in program.sub_dags for op in sub_dag.operators
                              if op.kind == graph_pb2.Operator.PLACEHOLDER}
        self._data = open_dataset(spec, assignment.base_directory) if self._placeholders else None
        batch = spec.training.batch
        evaluate = spec.task == api_pb2.FusionJobSpec.Evaluate
        self._engine = Engine(program, spec.training, spec.training.seed, batch.micro, assignment.memory_limit_bytes,
                              train=not evaluate)
        if program.stage == 0 and not evaluate:
            self._choose_checkpoint()
        if spec.model.HasField("init_from"):
            path = resolve_path("model.initFrom.uri", spec.model.init_from.uri, assignment.base_directory)
            model = [variable.tensor_name for variable in assignment.variables or self._engine.stage.variables]
            self._notes += checkpoint.initialize_from(path, model, self._engine)
        self._engine.warm_up(not evaluate, spec.training.HasField("validation") or evaluate)
        slowdown = 0.0
        if assignment.emulated_flops > 0:
            if assignment.machine_flops <= 0:
                raise invalid("the assignment emulates a speed but does not say the machine's")
            slowdown = assignment.machine_flops / assignment.emulated_flops
        gpipe = spec.training.pipeline.schedule == api_pb2.Pipeline.GPipe
        runner = StageRunner(program, spec.training, gpipe, slowdown, self._engine, self._transport, self._feed,
                             targets_of(spec))
        with self._changed:
            self._runner = runner
            if self._cancelled is not None:
                raise self._cancelled

    def _choose_checkpoint(self):
        assignment, training = self._assignment, self._assignment.spec.training
        given = None
        if training.HasField("resume_from"):
            given = resolve_path("training.resumeFrom.uri", training.resume_from.uri, assignment.base_directory)
        self._chosen, notes = checkpoint.choose(assignment.resume, assignment.checkpoint_directory, given)
        self._notes += notes
        if self._chosen is not None:
            path, state = self._chosen
            self._notes.append(f"goes on after step {state['step']} from {path}")
            checkpoint.check_continues(path, state, training)

    def _feed(self, placeholder, part):
        if placeholder not in ("input", "label"):
            raise invalid(f"no data for the placeholder '{placeholder}'; there are input and label")
        tensor = self._data.read(placeholder == "label", part)
        spec = self._placeholders[placeholder]
        if tensor.dtype != DTYPES.get(spec.dtype) or tensor.shape != shape_for(spec, part.count):
            raise invalid(f"the data give {type_text(tensor.dtype, tensor.shape)} for '{placeholder}', the model reads "
                          f"{spec_text(spec, part.count)}")
        return tensor

    def _train(self, first_step):
        training = self._assignment.spec.training
        for step in range(first_step, training.steps + 1):
            report = self._runner.run_step(step)
            self._report(broker_pb2.WorkerMessage(step=report))
            if training.HasField("validation") and _due(step, training.steps, training.validation.every_steps):
                self._validate(step)
            if _due(step, training.steps, self._assignment.spec.checkpoint.every_steps):
                self._save_checkpoint(step)

    def _validate(self, step):
        loss, accuracy = self._runner.run_validation(step, validation_batches(self._assignment.spec))
        if loss is not None:
            report = broker_pb2.ValidationReport(step=step, loss=loss)
            if accuracy is not None:
                report.accuracy = accuracy
            self._report(broker_pb2.WorkerMessage(validation=report))

    # ------------------------------------------------------------------ checkpoints

    def _save_checkpoint(self, step):
        if self._last_part is not None:
            self._last_part.result()  # one copy of the parameters at a time
        engine = self._engine
        # JAX's arrays do not change: what is read now is this step's.
        variables = {variable.tensor_name: np.asarray(engine.read_variable(variable.op.name))
                     for variable in engine.stage.variables if not variable.borrowed}
        self._last_part = self._disk.submit(self._write_part, step, variables, engine.optimizer_state(),
                                            self._runner.error_feedback())

    def _write_part(self, step, variables, optimizer, feedback):
        part = broker_pb2.CheckpointPart(step=step)
        try:
            part.path = checkpoint.write_part(self._assignment.checkpoint_directory, self._assignment.program.stage, step,
                                              variables, optimizer, feedback)
        except StatusError as error:
            part.error = error.message
        self._report(broker_pb2.WorkerMessage(checkpoint_part=part))

    def _assemble(self, request):
        assignment = self._assignment
        training = assignment.spec.training
        batch = getattr(training.batch, "global")
        state = {"version": 1, "job": assignment.job, "incarnation": assignment.incarnation, "step": request.step,
                 "samples": request.step * batch, "globalBatch": batch, "seed": training.seed,
                 "optimizer": api_pb2.Optimizer.Type.Name(training.optimizer.type)}
        done = broker_pb2.CheckpointDone(step=request.step)
        try:
            done.path = checkpoint.assemble(assignment.checkpoint_directory, request.step, list(request.parts), state,
                                            dict(assignment.model_config_json))
        except StatusError as error:
            done.error = error.message
        self._report(broker_pb2.WorkerMessage(checkpoint_done=done))
