"""What a process of the benchmarks writes: standard output, which another one reads line by line, and how far it is."""

from __future__ import annotations

import os
import sys
import time

from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig


def keep_clean() -> None:
    """Temporal's core writes its warnings there, as on a busy machine it does. Before the process's first client."""
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="ERROR"))))


def answer_cpu() -> None:
    """A worker's answer to every line of its input, until that ends: the CPU seconds of all its threads so far."""
    for _ in sys.stdin:
        print(time.process_time(), flush=True)


class Progress:
    """Says on standard error how far something is, every 15 s: what takes minutes must not look stuck."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._began = self._shown = time.monotonic()

    def set(self, done: int) -> None:
        """So many are done."""
        self._done = done
        now = time.monotonic()
        if now - self._shown >= _SHOW_SECONDS:
            self._shown = now
            load = os.getloadavg()[0]
            line = f"{self._what}: {done} of {self._total} after {now - self._began:.0f} s, load {load:.1f}"
            print(line, file=sys.stderr, flush=True)

    def step(self) -> None:
        """One more is done."""
        self.set(self._done + 1)


_SHOW_SECONDS = 15
