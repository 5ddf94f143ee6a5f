"""Threads for authors' sync functions. They are daemons: one that hangs does not keep the program from ending.

The standard library's pool joins its threads when the interpreter exits, so a tool that never returns, and whose
run has long gone on after its timeout, would hold the process.

The pool has no maximum: a worker runs as many functions at once as it has activity slots, and a function that waited
for a thread behind others would lose its time to them. A function that was abandoned still occupies its thread, which
is counted as lost until the function returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic
from typing import Any

IDLE = 32
"""Idle threads that are kept for the next functions."""
_JOIN = 0.5
"""Seconds that idle threads are given to end."""


class Job:
    """A function in a thread. ``future`` has its result."""

    def __init__(self, pool: Threads, fn: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self.fn: Callable[[], Any] | None = fn
        self._pool = pool
        self._abandoned = False

    def abandon(self) -> None:
        """Nobody waits for the result any more: until the function returns, its thread is lost."""
        with self._pool.lock:
            if self.fn is not None and not self._abandoned:
                self._abandoned = True
                self._pool.lost += 1

    def ended(self) -> None:
        """The function has returned. Called with the pool's lock held."""
        self.fn = None  # an idle thread keeps nothing alive
        if self._abandoned:
            self._pool.lost -= 1


class Threads:
    """Calls each function at once, in an idle thread or else in a new one."""

    def __init__(self, name: str) -> None:
        self.lost = 0
        """Threads whose function was abandoned and has not returned."""
        self.lock = threading.Lock()
        self._name = name
        self._idle: list[SimpleQueue[Job | None]] = []
        self._threads: set[threading.Thread] = set()
        self._made = 0
        self._stopped = False

    def submit(self, fn: Callable[[], Any]) -> Job:
        """Call ``fn`` in a thread. Raises ``RuntimeError`` after :meth:`stop`."""
        job = Job(self, fn)
        with self.lock:
            if self._stopped:
                raise RuntimeError("the worker has stopped")
            if self._idle:
                self._idle.pop().put(job)
                return job
            thread = threading.Thread(target=self._work, args=(job,), name=f"{self._name}-{self._made}", daemon=True)
            self._made += 1
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            with self.lock:
                self._threads.discard(thread)
            raise
        return job

    def stop(self) -> None:
        """End the idle threads; the others end with their function."""
        with self.lock:
            self._stopped = True
            idle, self._idle = self._idle, []
            threads = list(self._threads)
        for jobs in idle:
            jobs.put(None)
        until = monotonic() + _JOIN
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - monotonic()))

    def _work(self, first: Job) -> None:
        jobs: SimpleQueue[Job | None] = SimpleQueue()
        job: Job | None = first
        del first
        while job is not None:
            goes_on = self._do(job, jobs)
            del job
            job = jobs.get() if goes_on else None
        with self.lock:
            self._threads.discard(threading.current_thread())

    def _do(self, job: Job, jobs: SimpleQueue[Job | None]) -> bool:
        """Call the function of ``job``; whether the thread is to wait for another one in ``jobs``."""
        future, fn = job.future, job.fn
        assert fn is not None, "called once"
        error: BaseException | None = None
        result: Any = None
        if begins := future.set_running_or_notify_cancel():
            try:
                result = fn()
            except BaseException as raised:
                error = raised
        del fn
        with self.lock:
            job.ended()
            if goes_on := not self._stopped and len(self._idle) < IDLE:
                # Before the result: its reader may submit the next function at once.
                self._idle.append(jobs)
        if not begins:
            return goes_on
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
        return goes_on
