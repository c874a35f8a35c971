"""Emulated ways out: bytes reserve time on resources that all workers of a machine share, in the file of
worker/transport/link_emulation.cc: a robust process-shared pthread mutex and a table of names and times.
"""

import ctypes
import errno
import mmap
import os
import time
from dataclasses import dataclass

from .status import Code, StatusError, invalid, of_os_error, precondition

_MAGIC = 0x316B6E696C736675
_SLOTS = 1024
_NAME_BYTES = 120
_MUTEX_BYTES = 40  # of glibc on x86-64 and aarch64 with 64 bits
_USED = 8 + _MUTEX_BYTES
_TABLE = (_USED + 4 + 7) // 8 * 8
_SLOT_BYTES = _NAME_BYTES + 8
_SIZE = _TABLE + _SLOTS * _SLOT_BYTES
_PTHREAD_PROCESS_SHARED = 1
_PTHREAD_MUTEX_ROBUST = 1

_pthread = ctypes.CDLL(None, use_errno=True)


class LinkState:
    """The shared file. Thread-safe."""

    def __init__(self, path):
        try:
            if not os.path.exists(path):
                self._create(path)
            with open(path, "r+b") as file:
                size = os.fstat(file.fileno()).st_size
                if size != _SIZE:
                    raise precondition(f"link state {path}: {size} bytes instead of {_SIZE}; remove the file")
                self._memory = mmap.mmap(file.fileno(), _SIZE)
        except OSError as error:
            raise of_os_error(error, f"link state {path}") from error
        if int.from_bytes(self._memory[:8], "little") != _MAGIC:
            raise precondition(f"link state {path}: not written by this program; remove the file")
        self._mutex = self._mutex_of(self._memory)

    @staticmethod
    def _mutex_of(memory):
        return ctypes.byref((ctypes.c_char * _MUTEX_BYTES).from_buffer(memory, 8))

    @classmethod
    def _create(cls, path):
        """Made whole beside its place, then linked into it: nobody sees half a file, and the first one wins."""
        draft = f"{path}.{os.getpid()}"
        with open(draft, "w+b") as file:
            file.truncate(_SIZE)
            memory = mmap.mmap(file.fileno(), _SIZE)
            attributes = ctypes.create_string_buffer(16)
            _pthread.pthread_mutexattr_init(attributes)
            _pthread.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED)
            _pthread.pthread_mutexattr_setrobust(attributes, _PTHREAD_MUTEX_ROBUST)
            _pthread.pthread_mutex_init(cls._mutex_of(memory), attributes)
            memory[:8] = _MAGIC.to_bytes(8, "little")
            memory.flush()
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)

    def __enter__(self):
        if _pthread.pthread_mutex_lock(self._mutex) == errno.EOWNERDEAD:
            _pthread.pthread_mutex_consistent(self._mutex)

    def __exit__(self, *_):
        _pthread.pthread_mutex_unlock(self._mutex)

    def _integer(self, offset, size=8):
        return int.from_bytes(self._memory[offset:offset + size], "little", signed=True)

    def _write(self, offset, value, size=8):
        self._memory[offset:offset + size] = value.to_bytes(size, "little", signed=True)

    def slot(self, name):
        """Place of a resource, made if it is new."""
        text = name.encode()
        if not 0 < len(text) < _NAME_BYTES:
            raise invalid(f"resource '{name}': 1 to {_NAME_BYTES - 1} bytes")
        with self:
            used = self._integer(_USED, 4)
            for slot in range(used):
                begin = _TABLE + slot * _SLOT_BYTES
                if self._memory[begin:begin + _NAME_BYTES].rstrip(b"\0") == text:
                    return slot
            if used == _SLOTS:
                raise StatusError(Code.RESOURCE_EXHAUSTED, f"more than {_SLOTS} emulated resources")
            begin = _TABLE + used * _SLOT_BYTES
            self._memory[begin:begin + _SLOT_BYTES] = text.ljust(_SLOT_BYTES, b"\0")
            self._write(_USED, used + 1, 4)
            return used

    def reserve(self, uses):
        """[(slot, nanoseconds)]: (start, end) of a time that is free on all of them."""
        with self:
            start = time.monotonic_ns()
            places = [(_TABLE + slot * _SLOT_BYTES + _NAME_BYTES, duration) for slot, duration in uses]
            start = max([start, *(self._integer(place) for place, _ in places)])
            for place, duration in places:
                self._write(place, start + duration)
        return start, max([start, *(start + duration for _, duration in places)])


@dataclass
class EmulatedWay:
    """One direction between two stages."""

    state: LinkState
    resources: list  # (slot, nanoseconds a byte)
    latency_ns: int
    bytes_per_second: float

    @classmethod
    def create(cls, link, state):
        what = f"emulated link to stage {link.to_stage}"
        if not 0 <= link.latency_seconds < float("inf"):
            raise invalid(f"{what}: a latency of {link.latency_seconds} s")
        resources, rates = [], []
        for resource in link.resources:
            rate = resource.bits_per_second / 8
            if not 0 < rate < float("inf"):
                raise invalid(f"{what}: {resource.bits_per_second} bit/s for resource '{resource.name}'")
            resources.append((state.slot(resource.name), 1e9 / rate))
            rates.append(rate)
        return cls(state, resources, round(link.latency_seconds * 1e9), min(rates, default=0.0))

    def reserve(self, size):
        return self.state.reserve([(slot, round(size * per_byte)) for slot, per_byte in self.resources])
