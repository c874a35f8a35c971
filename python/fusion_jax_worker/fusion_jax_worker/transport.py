"""Carries messages between stages over gRPC: a stream out to each peer, a stream in from each (proto tensor.proto).

Handlers run on transport threads and must be quick.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from fusion.wire.v1 import tensor_pb2

from . import frame
from .link import Link
from .link_emulation import EmulatedWay, LinkState
from .status import Code, StatusError, precondition

_METHOD = "/fusion.wire.v1.Tensors/Stream"
_MAX_MESSAGE_BYTES = frame.MAX_PAYLOAD_BYTES + frame.MAX_HEADER_BYTES + 4
_CONNECT_SECONDS = 30
_MAX_PEERS = 256
_COMMON_OPTIONS = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
                   ("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000),
                   ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0)]
_CHANNEL_OPTIONS = _COMMON_OPTIONS + [
    ("grpc.initial_reconnect_backoff_ms", 200), ("grpc.min_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
_SERVER_OPTIONS = _COMMON_OPTIONS + [("grpc.http2.min_ping_interval_without_data_ms", 10_000), ("grpc.so_reuseport", 0)]


def status_of(error):
    """Of a grpc.RpcError."""
    return StatusError(error.code().value[0], error.details() or error.code().name)


class _ReceivingEnd:
    """One stream that comes in: Hello, tensors in; acknowledgements and credits out."""

    def __init__(self, transport):
        self._transport = transport
        self._inbox = frame.Inbox()
        self._changed = threading.Condition()
        self.from_stage = -1
        self._closed_by_peer = self._ending = self._hello_due = self._acknowledgement_due = False
        self._error = None
        self._tensors = self._bytes = 0
        self._granted = {}

    def read(self, frames):
        """Takes frames until the stream ends. A thread of its own."""
        try:
            for received in frames:
                self._take(received)
        except grpc.RpcError:
            pass
        except StatusError as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._transport.release(self)
            if self.from_stage >= 0:
                self._transport.fail(self.from_stage, StatusError(error.code, f"from stage {self.from_stage}: {error.message}"))
            return
        with self._changed:
            broken = not self._closed_by_peer and not self._ending
            self._ending = True
            self._changed.notify_all()
        self._transport.release(self)
        if broken and self.from_stage >= 0:
            self._transport.fail(self.from_stage, StatusError(Code.UNAVAILABLE, f"the stream from stage {self.from_stage} broke "
                                                                                "without Close"))

    def _take(self, received):
        header, payload = frame.parse(received)
        kind = header.WhichOneof("kind")
        if self._closed_by_peer:
            raise precondition("a frame after Close")
        if self.from_stage < 0:
            if kind != "hello":
                raise precondition("a stream that does not begin with Hello")
            self._transport.admit(header.hello, self)
            with self._changed:
                self.from_stage = header.hello.from_stage
                self._hello_due = True
                self._changed.notify_all()
            return
        if kind == "close":
            self._transport.release(self)
            with self._changed:
                self._closed_by_peer = True
            return
        message = self._inbox.take(header, payload)
        with self._changed:
            self._bytes += len(received)
            self._tensors = self._inbox.tensors
            self._acknowledgement_due = True
            self._changed.notify_all()
        if message is not None:
            self._transport.receive(self.from_stage, message)

    def grant(self, edge, direction):
        with self._changed:
            self._granted[edge, direction] = self._granted.get((edge, direction), 0) + 1
            self._acknowledgement_due = True
            self._changed.notify_all()

    def end(self):
        """Replies that are due are still written."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def replies(self, context):
        """Generator of reply frames."""
        while True:
            with self._changed:
                while not (self._hello_due or self._acknowledgement_due or self._error or self._ending):
                    self._changed.wait()
                reply, error = self._next_reply(), None
                if reply is None and self._error is not None:
                    error = self._error
                    reply = tensor_pb2.FrameHeader(error=tensor_pb2.Error(code=error.code, message=error.message))
            if reply is None:
                return
            yield frame.pack(reply)
            if error is not None:
                context.set_code(_GRPC_CODES[int(error.code)])
                context.set_details(error.message)
                return

    def _next_reply(self):
        if self._hello_due:
            self._hello_due = False
            return self._transport.hello_to(self.from_stage)
        if not self._acknowledgement_due:
            return None
        self._acknowledgement_due = False
        acknowledge = tensor_pb2.Acknowledge(tensors=self._tensors, bytes=self._bytes)
        for (edge, direction), granted in sorted(self._granted.items()):
            acknowledge.credits.add(edge=edge, direction=direction, granted=granted)
        return tensor_pb2.FrameHeader(acknowledge=acknowledge)


_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Transport:
    """Thread-safe."""

    def __init__(self, job, incarnation, stage, listen):
        self._job, self._incarnation, self._stage = job, incarnation, stage
        self._mutex = threading.Lock()
        self._accepting = threading.Event()
        self._closed = False
        self._handlers = None
        self._ends = {}
        self._links = {}
        self._ways = {}
        self._channels = []
        self._calls = []
        self._server = grpc.server(ThreadPoolExecutor(_MAX_PEERS, "receive"), options=_SERVER_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fusion.wire.v1.Tensors",
                                                                                     {"Stream": handler}),))
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError:
            port = 0
        if not port:
            raise StatusError(Code.UNAVAILABLE, f"cannot listen on {listen}")
        self._server.start()
        self.address = f"{listen.rpartition(':')[0]}:{port}"

    def set_handlers(self, receive, granted, error):
        """receive(from stage, message), granted(to stage, edge, direction), error(peer, status). Once; what peers send earlier
        waits for it."""
        self._handlers = (receive, granted, error)
        self._accepting.set()

    def emulate_links(self, links, state_file):
        """Before the first window is set."""
        if self._links:
            raise precondition("links are emulated before the first of them is used")
        state = LinkState(state_file)
        self._ways = {link.to_stage: EmulatedWay.create(link, state) for link in links}

    def connect(self, peers):
        """[(stage, address)]; returns when all have said Hello."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        for stage, address in peers:
            link = self._link(stage)
            channel = grpc.insecure_channel(address, _CHANNEL_OPTIONS)
            call = channel.stream_stream(_METHOD)(link.frames(self.hello_to(stage)), wait_for_ready=True)
            self._channels.append(channel)
            self._calls.append(call)
            threading.Thread(target=self._read_replies, args=(link, call), daemon=True).start()
        for stage, address in peers:
            try:
                self._link(stage).wait_until_open(deadline)
            except StatusError as error:
                raise StatusError(error.code, f"connecting to stage {stage} at {address}: {error.message}") from None

    def set_window(self, to_stage, edge, direction, tensors):
        """At most so many of this edge and direction are sent before `to_stage` grants more."""
        self._link(to_stage).set_window(edge, direction, tensors)

    def send(self, to_stage, message):
        """Never blocks."""
        self._link(to_stage).send(message)

    def grant(self, from_stage, edge, direction):
        """The consumer is done with one tensor: its sender may send one more."""
        with self._mutex:
            end = self._ends.get(from_stage)
        if end is not None:
            end.grant(edge, direction)

    def counters(self, to_stage):
        return self._link(to_stage).counters()

    def close(self, seconds):
        """Sends what is queued, then closes; 0: at once. Raises with what was left."""
        deadline = time.monotonic() + seconds
        failure = None
        for link in self._links.values():
            try:
                if seconds > 0 and self._calls:
                    link.drain(deadline)
            except StatusError as error:
                failure = failure or error
            link.stop()
        with self._mutex:
            self._closed = True
            ends = list(self._ends.values())
        for call in self._calls:
            if seconds <= 0:
                call.cancel()
        for end in ends:
            end.end()
        self._server.stop(max(0.0, deadline - time.monotonic())).wait()
        for channel in self._channels:
            channel.close()
        if failure is not None:
            raise failure

    # ------------------------------------------------------------------ streams

    def hello_to(self, stage):
        return frame.hello(self._job, self._incarnation, self._stage, stage)

    def _link(self, stage):
        with self._mutex:
            if stage not in self._links:
                self._links[stage] = Link(stage, self._ways.get(stage), self._granted, self.fail)
            return self._links[stage]

    def _granted(self, to_stage, edge, direction):
        if not self._closed:
            self._handlers[1](to_stage, edge, direction)

    def fail(self, peer, error):
        if not self._closed and self._handlers is not None:
            self._handlers[2](peer, error)

    def receive(self, from_stage, message):
        if not self._closed:
            self._handlers[0](from_stage, message)

    @staticmethod
    def _read_replies(link, call):
        try:
            for received in call:
                header, _ = frame.parse(received)
                link.on_reply(header)
            link.on_disconnected(None)
        except grpc.RpcError as error:
            link.on_disconnected(status_of(error))
        except StatusError as error:
            link.on_disconnected(error)
            call.cancel()

    def _serve(self, frames, context):
        self._accepting.wait()
        end = _ReceivingEnd(self)
        threading.Thread(target=end.read, args=(frames,), daemon=True).start()
        yield from end.replies(context)

    def admit(self, hello, end):
        """Whether a stream that opens so may go on."""
        if hello.max_version < frame.MIN_VERSION or hello.min_version > frame.MAX_VERSION:
            raise StatusError(Code.UNIMPLEMENTED, f"stage {hello.from_stage} speaks versions {hello.min_version} to "
                                                  f"{hello.max_version} of the tensor protocol, stage {self._stage} speaks "
                                                  f"{frame.MIN_VERSION} to {frame.MAX_VERSION}; run the same release on both")
        if hello.job != self._job:
            raise StatusError(Code.PERMISSION_DENIED, f"a stream of job '{hello.job}' for a worker of job '{self._job}'")
        if hello.incarnation != self._incarnation:
            raise StatusError(Code.ABORTED, f"a stream of incarnation {hello.incarnation} of job '{self._job}', which is at "
                                            f"{self._incarnation}")
        if hello.to_stage != self._stage or hello.from_stage < 0:
            raise StatusError(Code.NOT_FOUND, f"a stream from stage {hello.from_stage} to stage {hello.to_stage} has reached "
                                              f"stage {self._stage}")
        with self._mutex:
            if hello.from_stage in self._ends:
                raise StatusError(Code.ALREADY_EXISTS, f"stage {hello.from_stage} has a stream to stage {self._stage} already")
            self._ends[hello.from_stage] = end

    def release(self, end):
        with self._mutex:
            if self._ends.get(end.from_stage) is end:
                del self._ends[end.from_stage]
