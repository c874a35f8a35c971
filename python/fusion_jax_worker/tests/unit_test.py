"""The parts of the JAX worker against what LibTorch and the C++ sources make (tests/reference.cc), and its rules by themselves."""

import glob
import os
import subprocess
import tempfile
import unittest

import numpy as np

from fusion_jax_worker import __main__ as program

program.prepare_jax()

from fusion.graph.v1 import graph_pb2  # noqa: E402: after JAX's settings
from fusion.v1alpha1 import api_pb2
from fusion.wire.v1 import tensor_pb2
from fusion_jax_worker import codec, frame, safetensors
from fusion_jax_worker.engine import Engine, Pass
from fusion_jax_worker.link import Outbox
from fusion_jax_worker.messages import FORWARD, VARIABLE_VALUE, Key, Message, dense_message, dense_tensor
from fusion_jax_worker.operators import REGISTRY
from fusion_jax_worker.status import Code, StatusError

SAMPLES, MICRO_BATCHES, SEED = 2, 2, 7  # as in reference.cc


class WithReference(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory()
        cls.folder = cls._folder.name
        subprocess.run([os.path.join(os.environ["FUSION_BUILD"], "bin/engine_reference"), cls.folder], check=True)

    @classmethod
    def tearDownClass(cls):
        cls._folder.cleanup()


class OperatorsTest(WithReference):
    def test_every_registered_operator_agrees_with_libtorch(self):
        with open(os.path.join(self.folder, "operators/types"), encoding="utf-8") as file:
            types = file.read().split()
        self.assertGreater(len(types), 20)
        for number, name in enumerate(types):
            with self.subTest(name):
                self.assertIn(name, REGISTRY)
                self._compare(os.path.join(self.folder, f"operators/{number}"))

    def _compare(self, stem):
        with open(stem + ".pb", "rb") as file:
            program = graph_pb2.StageProgram.FromString(file.read())
        expected = safetensors.load(stem + ".safetensors")
        engine = Engine(program, api_pb2.Training(), SEED, SAMPLES)
        for variable in engine.stage.variables:
            np.testing.assert_array_equal(engine.read_variable(variable.op.name), expected["variable/" + variable.tensor_name],
                                          "initial value")
        losses = []
        for m in range(MICRO_BATCHES):
            run = Pass(1, m, True, 1 / MICRO_BATCHES)
            prefix = f"feed/{m}/"
            for name, value in expected.items():
                if name.startswith(prefix):
                    engine.feed(run, name[len(prefix):], value)
            losses.append(engine.forward(run, 0)[1])
            engine.backward(run, 0)
        self.assertAlmostEqual(np.mean(losses) / expected["loss"].item(), 1, delta=1e-5)
        gradients = {}
        for index, variable in enumerate(engine.stage.variables):
            gradients[variable.tensor_name] = engine.gradient(index)
        every = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for n, g in expected.items() if n.startswith("gradient/")))
        for name, gradient in gradients.items():
            if "gradient/" + name not in expected:
                self.assertIsNone(gradient, name)
                continue
            reference = expected["gradient/" + name].astype(np.float64)
            error = np.linalg.norm(np.asarray(gradient, np.float64) - reference)
            self.assertLessEqual(error, 1e-5 * np.linalg.norm(reference) + 1e-7 * every, name)

    def test_an_unknown_operator_is_refused_with_its_name(self):
        with open(os.path.join(self.folder, "operators/0.pb"), "rb") as file:
            program = graph_pb2.StageProgram.FromString(file.read())
        for op in program.sub_dags[0].operators:
            if op.name == "example":
                op.type = "aten.frobnicate"
        with self.assertRaises(StatusError) as caught:
            Engine(program, api_pb2.Training(), SEED, SAMPLES)
        self.assertEqual(caught.exception.code, Code.NOT_FOUND)
        self.assertIn("'example' (aten.frobnicate)", caught.exception.message)

    def test_the_memory_limit_is_kept(self):
        with open(os.path.join(self.folder, "operators/0.pb"), "rb") as file:
            program = graph_pb2.StageProgram.FromString(file.read())
        with self.assertRaises(StatusError) as caught:
            Engine(program, api_pb2.Training(), SEED, SAMPLES, memory_limit=100)
        self.assertEqual(caught.exception.code, Code.RESOURCE_EXHAUSTED)


class CodecsTest(WithReference):
    def test_messages_have_the_bytes_of_the_cpp_codecs(self):
        paths = sorted(glob.glob(os.path.join(self.folder, "codecs/*.safetensors")))
        self.assertGreater(len(paths), 30)
        for path in paths:
            name, _, _ = os.path.basename(path).removesuffix(".safetensors").rsplit("-", 2)
            with self.subTest(os.path.basename(path)):
                self._compare(codec.parse(name), safetensors.load(path))

    def _compare(self, parsed, expected):
        value, gradient = expected["value"], expected["gradient"]
        message, mask = codec.encode_value(parsed, value)
        np.testing.assert_array_equal(message, expected["message"])
        self.assertEqual(len(message), codec.value_bytes(parsed, value.shape))
        decoded, received = codec.decode_value(parsed, message, value.shape)
        self._assert_bits(decoded, expected["decoded"])
        if parsed.sparse:
            np.testing.assert_array_equal(mask, received)
        message = codec.encode_gradient(parsed, gradient, mask)
        np.testing.assert_array_equal(message, expected["gradient_message"])
        self.assertEqual(len(message), codec.gradient_bytes(parsed, value.shape))
        self._assert_bits(codec.decode_gradient(parsed, message, gradient.shape, mask), expected["gradient_decoded"])

    def _assert_bits(self, found, expected):
        # Zeros may differ in sign where a code is zero.
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))

    def test_damaged_messages_are_refused(self):
        value = np.linspace(-1, 1, 7 * 71, dtype=np.float32).reshape(7, 71)
        for name in ("int8", "int4", "topk-0.1-int4"):
            parsed = codec.parse(name)
            message, _ = codec.encode_value(parsed, value)
            with self.assertRaises(StatusError):
                codec.decode_value(parsed, message[:-1], value.shape)
            with self.assertRaises(StatusError):
                codec.decode_value(parsed, np.full_like(message, 255), value.shape)

    def test_error_feedback_sends_later_what_was_left_out(self):
        feedback, parsed = codec.ErrorFeedback(), codec.parse("topk-0.25-fp32+feedback")
        value = np.asarray([[4, 3, 2, 1]], np.float32)
        total = np.zeros_like(value)
        for step in range(200):
            if step == 100:  # as a checkpoint keeps it
                kept, feedback = feedback.residual, codec.ErrorFeedback()
                feedback.restore(kept)
            message, _ = feedback.encode_value(parsed, value)
            total += codec.decode_value(parsed, message, value.shape)[0]
        np.testing.assert_allclose(total / 200, value, atol=0.1)  # what is still left out, over 200


class FramesTest(unittest.TestCase):
    def _frames(self, message):
        outbox = Outbox(16)
        outbox.push(message)
        while outbox.has_next:
            header, sent, payload = outbox.next()
            if header.HasField("tensor"):
                header.tensor.checksum = frame.checksum(sent.data)
            yield frame.pack(header, payload)

    def test_a_tensor_comes_whole(self):
        tensor = np.arange(30, dtype=np.int64).reshape(5, 6)
        inbox, received = frame.Inbox(), None
        for packed in self._frames(dense_message(Key(1, 2, 3, FORWARD), tensor)):
            received = inbox.take(*frame.parse(packed)) or received
        self.assertEqual(received.key, Key(1, 2, 3, FORWARD))
        np.testing.assert_array_equal(dense_tensor(received), tensor)
        self.assertEqual(inbox.tensors, 1)

    def test_any_damage_is_data_loss(self):
        frames = list(self._frames(dense_message(Key(1, 2, 3, FORWARD), np.arange(30, dtype=np.int64))))
        for place in (0, 5, 12, len(frames[3]) - 1):
            inbox = frame.Inbox()
            damaged = list(frames)
            damaged[3] = damaged[3][:place] + bytes([damaged[3][place] ^ 1]) + damaged[3][place + 1:]
            with self.subTest(place), self.assertRaises(StatusError):
                for packed in damaged:
                    inbox.take(*frame.parse(packed))

    def test_order_and_credits(self):
        outbox = Outbox(1 << 20)
        outbox.set_window(1, FORWARD, 1)
        for micro_batch in (1, 0):
            outbox.push(Message(Key(1, micro_batch, 1, FORWARD)))
        outbox.push(Message(Key(9, 0, 4, VARIABLE_VALUE)))
        self.assertEqual(outbox.next()[0].tensor.direction, tensor_pb2.VARIABLE_VALUE)
        self.assertEqual(outbox.next()[0].tensor.micro_batch, 0)
        self.assertFalse(outbox.has_next)
        self.assertEqual(outbox.grant(1, FORWARD, 5), 1)  # for more than was sent: the peer's mistake
        self.assertEqual(outbox.next()[0].tensor.micro_batch, 1)
        self.assertEqual(len(outbox), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
