"""The worker's end of Broker.Session, and the worker's life (worker/session/stage_worker.cc)."""

import os
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass

import grpc

from fusion.wire.v1 import broker_pb2

from .stage_job import StageJob
from .status import Code, StatusError, invalid, precondition
from .transport import Transport, status_of

_VERSION = 1
_METHOD = "/fusion.wire.v1.Broker/Session"
_MAX_MESSAGE_BYTES = 256 << 20
_OPTIONS = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000), ("grpc.enable_http_proxy", 0)]
_CLOSE_SECONDS = 2
_END_SECONDS = 6  # from the decision to end to the end, in all
_EXIT_FAILED = 1
_EXIT_TERMINATED = 143  # 128 + SIGTERM
_PARENT_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Options:
    broker: str
    job: str
    stage: int
    compnode: str
    incarnation: int
    listen: str = "127.0.0.1:0"


class BrokerSession:
    """Thread-safe. Pings are answered on a thread of their own, whatever the worker computes."""

    def __init__(self, address, registration, on_message, on_ended):
        """on_ended(StatusError or None): once, last."""
        self._on_message, self._on_ended = on_message, on_ended
        self._queue = queue.SimpleQueue()
        self._ended = threading.Event()
        self._channel = grpc.insecure_channel(address, _OPTIONS)
        self.send(broker_pb2.WorkerMessage(register=registration))
        method = self._channel.stream_stream(_METHOD, request_serializer=broker_pb2.WorkerMessage.SerializeToString,
                                             response_deserializer=broker_pb2.BrokerMessage.FromString)
        self._call = method(iter(self._queue.get, None))
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message):
        self._queue.put(message)

    def close(self):
        """Sends what is queued, then closes; cancels where that takes too long."""
        self._queue.put(None)
        if not self._ended.wait(_CLOSE_SECONDS):
            self._call.cancel()

    def _read(self):
        error = None
        try:
            for message in self._call:
                if message.HasField("ping"):
                    self.send(broker_pb2.WorkerMessage(pong=broker_pb2.Pong(sequence=message.ping.sequence)))
                else:
                    self._on_message(message)
        except grpc.RpcError as failed:
            error = status_of(failed)
        self._ended.set()
        self._on_ended(error)


class StageWorker:
    def __init__(self, options):
        self._options = options
        self._events = queue.SimpleQueue()
        self._job = self._compute = None
        self._watch_process()
        self._transport = Transport(options.job, options.incarnation, options.stage, options.listen)
        registration = broker_pb2.Register(
            min_version=_VERSION, max_version=_VERSION, job=options.job, stage=options.stage, compnode=options.compnode,
            incarnation=options.incarnation, data_address=self._transport.address, pid=os.getpid(), engine="jax")
        self._session = BrokerSession(options.broker, registration,
                                      lambda message: self._events.put((self._on_message, message)),
                                      lambda error: self._events.put((self._on_session_ended, error)))

    def run(self):
        """Until the end; the exit status."""
        status = None
        while status is None:
            handler, argument = self._events.get()
            status = handler(argument)
        self._end(status)
        return status

    # ------------------------------------------------------------------ events; each returns an exit status or None

    def _on_message(self, message):
        kind = message.WhichOneof("kind")
        if kind == "assignment":
            return self._start_job(message.assignment)
        if kind == "stop":
            if message.stop.reason:
                self._log(f"stopped by the broker: {message.stop.reason}")
            return 0
        if self._job is None:
            return self._fail(precondition("the broker sent another message before the assignment"))
        if kind == "peers":
            self._job.on_peers(message.peers)
        elif kind == "start":
            self._job.on_start(message.start)
        elif kind == "assemble":
            self._job.on_assemble(message.assemble)
        return None

    def _on_session_ended(self, error):
        self._log(f"the broker at {self._options.broker} is lost: {error or 'it ended the session'}")
        return _EXIT_FAILED

    def _on_job_ended(self, error):
        return None if error is None else self._fail(error)

    def _on_termination(self, _):
        self._log("asked to end")
        return _EXIT_TERMINATED

    def _start_job(self, assignment):
        if self._job is not None:
            return self._fail(precondition("the broker assigned a stage twice"))
        if assignment.version > _VERSION or assignment.program.stage != self._options.stage:
            return self._fail(invalid(f"the broker assigned stage {assignment.program.stage} in version {assignment.version} to "
                                      f"stage {self._options.stage}"))
        self._job = StageJob(assignment, self._transport, self._session.send)
        self._compute = threading.Thread(target=self._run_job, daemon=True)
        self._compute.start()
        return None

    def _run_job(self):
        error = None
        try:
            self._job.run()
        except StatusError as failed:
            error = failed
        except Exception as failed:  # a bug, or an error of JAX's: the broker is told in any case
            traceback.print_exc()
            error = StatusError(Code.INTERNAL, f"{type(failed).__name__}: {failed}".splitlines()[0])
        self._events.put((self._on_job_ended, error))

    def _fail(self, error):
        self._log(str(error))
        self._session.send(broker_pb2.WorkerMessage(failure=broker_pb2.Failure(code=error.code, message=error.message)))
        return _EXIT_FAILED

    def _log(self, text):
        print(f"fusion-jax-worker: job {self._options.job} stage {self._options.stage}: {text}", file=sys.stderr, flush=True)

    # ------------------------------------------------------------------ end

    def _end(self, status):
        """Everything ends in time or with the process."""
        timer = threading.Timer(_END_SECONDS, os._exit, (status,))
        timer.daemon = True
        timer.start()
        if self._job is not None:
            self._job.cancel(StatusError(Code.CANCELLED, "the worker ends"))
            self._compute.join()
        try:
            # Peers may still want what is queued, but only of a stage that is whole.
            self._transport.close(_CLOSE_SECONDS if status == 0 else 0)
        except StatusError as error:
            if status == 0:
                self._log(f"closing links: {error.message}")
        self._session.close()

    def _watch_process(self):
        """SIGTERM, SIGINT and the death of the process that started us end the worker."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put((self._on_termination, None)))
        parent = os.getppid()

        def watch():
            while os.getppid() == parent:
                time.sleep(_PARENT_POLL_SECONDS)
            self._events.put((self._on_termination, None))

        threading.Thread(target=watch, daemon=True).start()


def run(options):
    try:
        worker = StageWorker(options)
    except StatusError as error:
        print(f"fusion-jax-worker: {error}", file=sys.stderr)
        return _EXIT_FAILED
    return worker.run()
