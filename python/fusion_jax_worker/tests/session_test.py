"""The worker's process against a broker that the test drives."""

import os
import queue
import shutil
import signal
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

import grpc

from fusion.graph.v1 import graph_pb2
from fusion.v1alpha1 import api_pb2
from fusion.wire.v1 import broker_pb2

WORKER = os.path.join(os.environ["FUSION_BUILD"], "bin/fusion-jax-worker")
DEADLINE = 60


class FakeBroker:
    """One session."""

    def __init__(self):
        self._received = queue.SimpleQueue()
        self._to_send = queue.SimpleQueue()
        self._server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.stream_stream_rpc_method_handler(self._session, broker_pb2.WorkerMessage.FromString,
                                                        broker_pb2.BrokerMessage.SerializeToString)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fusion.wire.v1.Broker",
                                                                                     {"Session": handler}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _session(self, requests, _context):
        ThreadPoolExecutor(1).submit(lambda: [self._received.put(message) for message in requests])
        while (message := self._to_send.get()) is not None:
            yield message

    def send(self, **kind):
        self._to_send.put(broker_pb2.BrokerMessage(**kind))

    def next(self, kind):
        """The next message, which must be of this kind."""
        message = self._received.get(timeout=DEADLINE)
        assert message.WhichOneof("kind") == kind, message
        return getattr(message, kind)

    def stop(self):
        self._to_send.put(None)
        self._server.stop(0).wait()


def assignment(type_name="aten.relu"):
    """A stage of `input`, float [batch, 3], type(input) with a parameter, and its mean as the loss."""
    program = graph_pb2.StageProgram(stage=0, computes_loss=True, loss=graph_pb2.ValueRef(operator="loss"))
    sub_dag = program.sub_dags.add(depth=1)

    def add(name, kind, shape, type_name="", reads=()):
        op = sub_dag.operators.add(name=name, kind=kind, type=type_name)
        op.outputs.add(dtype=graph_pb2.FLOAT32, shape=shape)
        for read in reads:
            op.args.add(value=graph_pb2.ValueRef(operator=read))
        program.positions[name] = len(program.positions)
        return op

    kinds = graph_pb2.Operator
    add("input", kinds.PLACEHOLDER, [-1, 3])
    add("label", kinds.PLACEHOLDER, [-1, 3])
    variable = add("bias", kinds.VARIABLE, [3]).variable
    variable.tensor_name, variable.trainable, variable.init.kind = "bias", True, graph_pb2.Init.ZEROS
    add("sum", kinds.PARAMETRIC, [-1, 3], "aten.add", ["input", "bias"]).overload = "Tensor"
    add("act", kinds.NON_PARAMETRIC, [-1, 3], type_name, ["sum"])
    add("loss", kinds.NON_PARAMETRIC, [], "aten.mse_loss", ["act", "label"])
    spec = api_pb2.FusionJobSpec(task=api_pb2.FusionJobSpec.Train)
    spec.data.kind, spec.data.uri = api_pb2.Data.table, "table.csv"
    spec.model.config.inputs = spec.model.config.outputs = 3
    spec.training.steps = 2
    setattr(spec.training.batch, "global", 4)
    spec.training.batch.micro = 2
    spec.training.optimizer.type = api_pb2.Optimizer.SGD
    return broker_pb2.Assignment(version=1, job="default/job", incarnation=1, spec=spec, program=program, stages=1)


class SessionTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "table.csv"), "w", encoding="utf-8") as file:
            file.write("a,b,c,d,e,f\n" + "".join(f"{i},{i % 3},{i % 5},{i},{-i},{i % 7}\n" for i in range(40)))
        self._start_worker()

    def _start_worker(self):
        self.broker = FakeBroker()
        self.addCleanup(self.broker.stop)
        self.worker = subprocess.Popen(
            [WORKER, "stage", "--broker", self.broker.address, "--job", "default/job", "--stage", "0", "--compnode", "a1",
             "--incarnation", "1"], stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.worker.stderr.close)
        self.addCleanup(self.worker.wait)
        self.addCleanup(self.worker.kill)
        registration = self.broker.next("register")
        self.assertEqual((registration.job, registration.stage, registration.compnode), ("default/job", 0, "a1"))
        self.assertEqual((registration.engine, registration.pid), ("jax", self.worker.pid))

    def _assign(self, message):
        message.base_directory = self.folder
        message.checkpoint_directory = os.path.join(self.folder, "checkpoints")
        self.broker.send(assignment=message)

    def _train(self, steps, first_step=1, checkpoint=""):
        """Losses of these steps, and the path of the checkpoint made after them."""
        self.broker.send(start=broker_pb2.Start(first_step=first_step, checkpoint=checkpoint))
        losses = [self.broker.next("step").loss for _ in range(first_step, steps + 1)]
        part = self.broker.next("checkpoint_part").path
        self.broker.next("finished")
        self.broker.send(assemble=broker_pb2.AssembleCheckpoint(step=steps, parts=[part]))
        done = self.broker.next("checkpoint_done")
        self.assertEqual(done.error, "")
        self.broker.send(stop=broker_pb2.Stop())
        self.assertEqual(self.worker.wait(DEADLINE), 0)
        return losses, done.path

    def _prepare(self, steps, **fields):
        """Up to Ready."""
        message = assignment()
        message.spec.training.steps = steps
        message.spec.training.optimizer.type = api_pb2.Optimizer.AdamW
        for name, value in fields.items():
            setattr(message, name, value)
        self._assign(message)
        self.broker.send(peers=broker_pb2.Peers())
        return self.broker.next("ready")

    def test_goes_on_from_its_checkpoint_with_the_same_bits(self):
        self.assertEqual(self._prepare(4).checkpoint, "")
        whole, path = self._train(4)
        shutil.rmtree(path)
        self._start_worker()
        self._prepare(2)
        first, path = self._train(2)
        self._start_worker()
        ready = self._prepare(4, resume=True)
        self.assertEqual((ready.checkpoint, ready.checkpoint_step), (path, 2))
        second, _ = self._train(4, 3, path)
        self.assertEqual(first + second, whole)

    def test_a_damaged_checkpoint_is_refused(self):
        self._prepare(2)
        _, path = self._train(2)
        with open(os.path.join(path, "model.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        self._start_worker()
        message = assignment()
        message.resume = True
        self._assign(message)
        failure = self.broker.next("failure")
        self.assertEqual(failure.code, 15)
        self.assertIn("model.safetensors is not what manifest.json says", failure.message)

    def test_trains_saves_and_ends_when_it_is_stopped(self):
        self._assign(assignment())
        self.broker.send(ping=broker_pb2.Ping(sequence=5))
        self.assertEqual(self.broker.next("pong").sequence, 5)
        self.broker.send(peers=broker_pb2.Peers())
        self.broker.next("ready")
        self.broker.send(start=broker_pb2.Start(first_step=1))
        losses = [self.broker.next("step").loss, self.broker.next("step").loss]
        self.assertLess(losses[1], losses[0])
        path = self.broker.next("checkpoint_part").path
        self.broker.next("finished")
        self.broker.send(assemble=broker_pb2.AssembleCheckpoint(step=2, parts=[path]))
        done = self.broker.next("checkpoint_done")
        self.assertEqual((done.error, os.path.basename(done.path)), ("", "step-2"))
        self.assertEqual(sorted(os.listdir(done.path)),
                         ["manifest.json", "model.safetensors", "optimizer.safetensors", "training-state.json"])
        self.broker.send(stop=broker_pb2.Stop())
        self.assertEqual(self.worker.wait(DEADLINE), 0)

    def test_an_operator_that_jax_lacks_is_refused_before_the_start(self):
        self._assign(assignment("aten.frobnicate"))
        failure = self.broker.next("failure")  # and no Ready before it
        self.assertEqual(failure.code, 5)
        self.assertIn("operator 'act' (aten.frobnicate): this engine (JAX) has no such operator", failure.message)
        self.assertEqual(self.worker.wait(DEADLINE), 1)

    def test_a_setting_that_it_does_not_know_is_refused(self):
        message = assignment()
        message.spec.training.precision = api_pb2.Training.bf16
        self._assign(message)
        self.assertIn("training.precision bf16", self.broker.next("failure").message)
        self.assertEqual(self.worker.wait(DEADLINE), 1)

    def test_ends_on_sigterm(self):
        self.worker.send_signal(signal.SIGTERM)
        self.assertEqual(self.worker.wait(DEADLINE), 143)

    def test_ends_when_the_broker_is_lost(self):
        self.broker.stop()
        self.assertEqual(self.worker.wait(DEADLINE), 1)
        self.assertIn("is lost", self.worker.stderr.read())


if __name__ == "__main__":
    unittest.main(verbosity=2)
