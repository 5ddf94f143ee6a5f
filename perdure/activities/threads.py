"""Threads for authors' sync functions. They are daemons: one that hangs does not keep the program from ending.

The standard library's pool joins its threads when the interpreter exits, so a tool that never returns, and whose
run has long gone on after its timeout, would hold the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

_JOIN = 0.5
"""Seconds that idle threads are given to end."""

Job = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """At most ``most`` functions at once, the rest in order. A thread that is idle is used again."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def submit(self, fn: Callable[[], Any]) -> Future[Any]:
        """Call ``fn`` in a thread. From one thread at a time. Raises ``RuntimeError`` after :meth:`stop`."""
        if self._stopped:
            raise RuntimeError("the worker has stopped")
        future: Future[Any] = Future()
        self._jobs.put((future, fn))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def stop(self) -> None:
        """Cancel what has not begun, and end the idle threads; the others end with their function."""
        self._stopped = True
        try:
            while True:
                waiting = self._jobs.get_nowait()
                if waiting is not None:
                    waiting[0].cancel()
        except Empty:
            pass
        for _ in self._threads:
            self._jobs.put(None)
        until = monotonic() + _JOIN
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            del job  # an idle thread keeps nothing alive

    def _do(self, future: Future[Any], fn: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            self._idle.release()
            return
        try:
            result = fn()
        except BaseException as error:  # whatever it is, it belongs to the one who waits
            self._idle.release()  # before the answer: who gets it may submit the next one at once
            future.set_exception(error)
        else:
            self._idle.release()
            future.set_result(result)
