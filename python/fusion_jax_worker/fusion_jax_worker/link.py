"""The sender's half of a stream: queue, credits, pace, acknowledgements (worker/transport/link.h, outbox.h)."""

import threading
import time
from collections import deque

from fusion.wire.v1 import tensor_pb2

from . import frame
from .status import Code, StatusError, data_loss

_FRAME_SECONDS = 0.02
_MIN_PAYLOAD_BYTES = 4096
_HOST_SECONDS = 0.005  # what the two machines add to a round trip
_LEAD_NS = 2_000_000  # how long before the link is free the next frame is chosen
_UNKNOWN_RATE_UNACKNOWLEDGED = 32 << 20


def _dense_bytes(message):
    if message.absent:
        return 0
    size = 4 if message.dtype.kind == "f" or message.dtype.name == "bfloat16" else message.dtype.itemsize
    for extent in message.shape:
        size *= extent
    return size


class _Credit:
    def __init__(self):
        self.window, self.granted, self.begun = 2, 0, 0

    @property
    def available(self):
        return self.begun < self.granted + self.window


class _Waiting:
    def __init__(self, message):
        self.message, self.number, self.sent = message, 0, 0


class Outbox:
    """Tensors in order of priority, handed out frame by frame: what is once a step first, then the lower step, then the lower
    micro-batch, then what came first. A tensor begins only when its edge and direction has a credit. Not thread-safe.
    """

    def __init__(self, frame_bytes):
        self._frame_bytes = frame_bytes
        self._waiting = {}  # priority: _Waiting
        self._credits = {}
        self._sequence = self._begun = 0

    def push(self, message):
        key = message.key
        self._waiting[not key.once_per_step, key.step, key.micro_batch, self._sequence] = _Waiting(message)
        self._sequence += 1

    def _credit(self, edge, direction):
        return self._credits.setdefault((edge, direction), _Credit())

    def set_window(self, edge, direction, window):
        self._credit(edge, direction).window = window

    def grant(self, edge, direction, granted):
        """`granted` in all since the start. Returns how many of them are new."""
        credit = self._credit(edge, direction)
        before = credit.granted
        credit.granted = max(before, min(granted, credit.begun))
        return credit.granted - before

    def _find(self):
        for priority in sorted(self._waiting):
            waiting = self._waiting[priority]
            key = waiting.message.key
            if waiting.number or self._credit(key.edge, key.direction).available:
                return priority
        return None

    @property
    def has_next(self):
        return self._find() is not None

    def next(self):
        """(header, message, payload): a tensor's descriptor first, then its data."""
        priority = self._find()
        waiting = self._waiting[priority]
        message = waiting.message
        size = 0 if message.absent else len(message.data)
        if not waiting.number:
            self._begun += 1
            waiting.number = self._begun
            self._credit(message.key.edge, message.key.direction).begun += 1
            header = tensor_pb2.FrameHeader(tensor=frame.descriptor(message, waiting.number))
            payload = b""
        else:
            end = min(waiting.sent + self._frame_bytes, size)
            header = tensor_pb2.FrameHeader(data=tensor_pb2.Data(tensor=waiting.number, offset=waiting.sent))
            payload = memoryview(message.data)[waiting.sent:end]
            waiting.sent = end
        if waiting.sent == size:
            del self._waiting[priority]
        return header, message, payload

    def __len__(self):
        return len(self._waiting)

    def clear(self):
        self._waiting.clear()


class Link:
    """One peer that we send to. `frames` is what gRPC's writer consumes; everything else may be called from any thread.

    Emulated: a frame reserves its way shortly before the one before has left, and is written when it would arrive; what the
    peer answers waits a latency too.
    """

    def __init__(self, to_stage, way, on_granted, on_error):
        self.to_stage = to_stage
        self._way = way
        self._on_granted = on_granted
        self._on_error = on_error
        self._frame_bytes = frame.MAX_PAYLOAD_BYTES
        self._unacknowledged = _UNKNOWN_RATE_UNACKNOWLEDGED
        if way is not None and way.bytes_per_second > 0:
            rate = way.bytes_per_second
            self._frame_bytes = round(min(max(rate * _FRAME_SECONDS, _MIN_PAYLOAD_BYTES), frame.MAX_PAYLOAD_BYTES))
            self._unacknowledged = round(rate * (2e-9 * way.latency_ns + _HOST_SECONDS)) + 2 * self._frame_bytes
        self._changed = threading.Condition()
        self._outbox = Outbox(self._frame_bytes)
        self._leaving = deque()  # (due, frame)
        self._arrived = deque()  # (due, header or StatusError or None: the peer ended in order)
        self._open = self._closing = self._close_sent = self._stopped = self._peer_closed = False
        self._status = None
        self._free_at = 0
        self._sent = self._acknowledged = 0
        self._bytes = self._dense_bytes = self._busy_ns = self._busy_since = 0

    # ------------------------------------------------------------------ any thread

    def send(self, message):
        with self._changed:
            if self._status is None:
                self._outbox.push(message)
                if self._peer_closed:
                    self._arrived.append((0, None))  # now it is an error
                self._changed.notify_all()

    def set_window(self, edge, direction, tensors):
        with self._changed:
            self._outbox.set_window(edge, direction, tensors)
            self._changed.notify_all()

    def counters(self):
        """(bytes, dense bytes, seconds with something under way)"""
        with self._changed:
            busy = self._busy_ns + (time.monotonic_ns() - self._busy_since if self._busy_since else 0)
            return self._bytes, self._dense_bytes, busy * 1e-9

    def wait_until_open(self, deadline):
        """Raises unless the peer has said Hello."""
        with self._changed:
            while not self._open and self._status is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StatusError(Code.DEADLINE_EXCEEDED, f"stage {self.to_stage} has not said Hello in time")
                self._changed.wait(left)
            if self._status is not None:
                raise self._status

    def on_reply(self, header):
        self._arrive(header)

    def on_disconnected(self, error):
        """None: the peer ended in order."""
        self._arrive(error)

    def _arrive(self, what):
        due = 0 if self._way is None else time.monotonic_ns() + self._way.latency_ns
        with self._changed:
            self._arrived.append((due, what))
            self._changed.notify_all()

    def drain(self, deadline):
        """Waits until all is sent and acknowledged and Close is said; else raises with what was left."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while not self._close_sent and self._status is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StatusError(Code.DEADLINE_EXCEEDED, self._rest())
                self._changed.wait(left)
            if self._status is not None:
                raise self._status

    def stop(self):
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    # ------------------------------------------------------------------ the writer's thread

    def frames(self, hello):
        """Generator of frames. It also acts on what the peer answers."""
        self._leaving.append((0, frame.pack(hello)))
        while True:
            with self._changed:
                out, ended = self._advance()
            if out is not None:
                yield out
            if ended:
                return

    def _advance(self):
        """Waits for the next frame to write. (frame or None, whether it was the last)"""
        while not self._stopped:
            now = time.monotonic_ns()
            if self._arrived and self._arrived[0][0] <= now:
                self._take_reply(self._arrived.popleft()[1])
            elif self._leaving and self._leaving[0][0] <= now:
                return self._leaving.popleft()[1], False
            elif self._may_load() and self._free_at <= now:
                self._load(now)
            elif self._may_close():
                self._close_sent = True
                self._changed.notify_all()
                return frame.pack(tensor_pb2.FrameHeader(close=tensor_pb2.Close())), True
            else:
                times = [queue[0][0] for queue in (self._arrived, self._leaving) if queue]
                times += [self._free_at] if self._may_load() else []
                self._changed.wait((min(times) - now) * 1e-9 if times else None)
        return None, True

    def _may_load(self):
        if not self._open or self._status is not None or self._close_sent or not self._outbox.has_next:
            return False
        # Without emulation the connection sets the pace: what is not given to it yet can still be overtaken.
        if self._way is None and self._leaving:
            return False
        under_way = self._sent - self._acknowledged
        return under_way == 0 or under_way + self._frame_bytes <= self._unacknowledged

    def _may_close(self):
        idle = not len(self._outbox) and not self._leaving and self._sent == self._acknowledged
        return self._closing and not self._close_sent and self._open and self._status is None and idle

    def _load(self, now):
        header, message, payload = self._outbox.next()
        if header.HasField("tensor"):
            header.tensor.checksum = frame.checksum(b"" if message.absent else message.data)
            self._dense_bytes += _dense_bytes(message)
        packed = frame.pack(header, payload)
        start, end = (now, now) if self._way is None else self._way.reserve(len(packed))
        self._busy_since = self._busy_since or now
        self._sent += len(packed)
        self._bytes += len(packed)
        self._free_at = end - _LEAD_NS
        self._leaving.append((end + (0 if self._way is None else self._way.latency_ns), packed))

    def _take_reply(self, what):
        if what is None or isinstance(what, StatusError):
            if self._close_sent:
                return
            if what is None and self._open and not len(self._outbox) and self._sent == self._acknowledged:
                self._peer_closed = True
                return
            reason = "closed by the peer" if what is None else what.message
            self._fail(StatusError(Code.UNAVAILABLE if what is None else what.code,
                                   f"to stage {self.to_stage}: {reason}; {self._rest()}"))
            return
        kind = what.WhichOneof("kind")
        if kind == "hello":
            self._open = True
            self._changed.notify_all()
        elif kind == "acknowledge":
            self._take_acknowledge(what.acknowledge)
        elif kind == "error":
            self._fail(StatusError(what.error.code or Code.UNKNOWN, f"stage {self.to_stage} refused: {what.error.message}"))
        else:
            self._fail(data_loss(f"stage {self.to_stage} answered with what is no reply"))

    def _take_acknowledge(self, acknowledge):
        if acknowledge.bytes > self._sent:
            self._fail(data_loss(f"stage {self.to_stage} acknowledged {acknowledge.bytes} of {self._sent} bytes"))
            return
        self._acknowledged = max(self._acknowledged, acknowledge.bytes)
        if self._sent == self._acknowledged:
            self._count_busy()
        for credit in acknowledge.credits:
            for _ in range(self._outbox.grant(credit.edge, credit.direction, credit.granted)):
                self._on_granted(self.to_stage, credit.edge, credit.direction)

    def _fail(self, error):
        if self._status is not None:
            return
        self._status = error
        self._outbox.clear()
        self._leaving.clear()
        self._count_busy()
        self._changed.notify_all()
        if self._open:  # else wait_until_open says it
            self._on_error(self.to_stage, error)

    def _count_busy(self):
        if self._busy_since:
            self._busy_ns += time.monotonic_ns() - self._busy_since
            self._busy_since = 0

    def _rest(self):
        return (f"{len(self._outbox)} tensors to stage {self.to_stage} were not sent, {self._sent - self._acknowledged} bytes "
                "sent were not acknowledged")

