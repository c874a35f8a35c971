"""How long tasks take, and the imitation of a slower machine (worker/pipeline/task_timer.h).

XLA computes on threads of its own: what a task cost is the CPU time of the whole process meanwhile. That includes what the
transport's threads did in that time.
"""

import time
from dataclasses import dataclass


@dataclass
class Span:
    begin_ns: int
    end_ns: int
    overrun: bool = False  # emulated: its real time exceeded the emulated one

    @property
    def seconds(self):
        return (self.end_ns - self.begin_ns) * 1e-9


class TaskTimer:
    """One thread's tasks, one after the other. `slowdown`: machine / emulated FLOP/s; 0: full speed."""

    def __init__(self, slowdown):
        self._slowdown = slowdown
        self._last_end = 0

    @property
    def emulated(self):
        return self._slowdown > 0

    def begin(self, waited):
        """`waited`: nothing was ready after the task before; else an emulated task begins where that one ended."""
        follows = self.emulated and not waited and self._last_end > 0
        self._begin = self._last_end if follows else time.monotonic_ns()
        self._begin_cpu = time.process_time_ns()

    def end(self):
        """Sleeps until the emulated end."""
        span = Span(self._begin, time.monotonic_ns())
        if self.emulated:
            emulated_end = self._begin + int((time.process_time_ns() - self._begin_cpu) * self._slowdown)
            span.overrun = span.end_ns > emulated_end
            if not span.overrun:
                while (left := emulated_end - time.monotonic_ns()) > 0:
                    time.sleep(left * 1e-9)
                span.end_ns = emulated_end
        self._last_end = span.end_ns
        return span
