"""Runs authors' code: async functions on an event loop of their own in a thread, sync functions in a pool of threads.

The SDK sends heartbeats through the worker's loop. A tool that blocks must not stall it: the run would look lost, and
every other run with it. Here it stalls only other async functions, and a warning names it.

Python cannot end a thread. A function that was abandoned (its timeout was over, its run was stopped) keeps its thread
until it returns. With too many such threads ``AuthorLoop.fatal_reason`` is set: the worker is to stop, and its process
to end.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any

from .loop_watch import author_function

# ---
# Threads for authors' sync functions. They are daemons: one that hangs does not keep the program from ending.
#
# The standard library's pool joins its threads when the interpreter exits, so a tool that never returns would keep the
# process alive, although its run has long gone on after the timeout.
#
# The pool has no maximum: a worker runs as many functions at once as it has activity slots, and a function that had to
# wait for a thread would lose part of its timeout. A function that was abandoned still occupies its thread, which is
# counted as lost until the function returns.


MAX_IDLE_THREADS = 32
"""Maximum of idle threads kept for the next functions."""
_JOIN_TIMEOUT = 0.5
"""Seconds to wait for threads to end."""


class ThreadJob:
    """A function in a thread. ``future`` has its result."""

    def __init__(self, pool: ThreadPool, fn: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self.fn: Callable[[], Any] | None = fn
        self._pool = pool
        self._is_abandoned = False

    def abandon(self) -> None:
        """Stop waiting for the result: until the function returns, its thread counts as lost."""
        with self._pool.lock:
            if self.fn is not None and not self._is_abandoned:
                self._is_abandoned = True
                self._pool.lost_count += 1

    def mark_ended(self) -> None:
        """Record that the function has returned. Call it with the pool's lock held."""
        self.fn = None  # an idle thread keeps nothing alive
        if self._is_abandoned:
            self._pool.lost_count -= 1


class ThreadPool:
    """Calls each function at once, in an idle thread or else in a new one."""

    def __init__(self, name: str) -> None:
        self.lost_count = 0
        """Threads whose function was abandoned and has not returned."""
        self.lock = threading.Lock()
        self._name = name
        self._idle_queues: list[SimpleQueue[ThreadJob | None]] = []
        self._threads: set[threading.Thread] = set()
        self._thread_count = 0
        self._is_stopped = False

    def submit(self, fn: Callable[[], Any]) -> ThreadJob:
        """Call ``fn`` in a thread. Raises ``RuntimeError`` after :meth:`stop`."""
        job = ThreadJob(self, fn)
        with self.lock:
            if self._is_stopped:
                raise RuntimeError("the worker has stopped")
            if self._idle_queues:
                self._idle_queues.pop().put(job)
                return job
            thread = threading.Thread(
                target=self._run_jobs, args=(job,), name=f"{self._name}-{self._thread_count}", daemon=True
            )
            self._thread_count += 1
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
            self._is_stopped = True
            idle, self._idle_queues = self._idle_queues, []
            threads = list(self._threads)
        for jobs in idle:
            jobs.put(None)
        until = monotonic() + _JOIN_TIMEOUT
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - monotonic()))

    def _run_jobs(self, first: ThreadJob) -> None:
        jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        job: ThreadJob | None = first
        del first
        while job is not None:
            goes_on = self._run_job(job, jobs)
            del job
            job = jobs.get() if goes_on else None
        with self.lock:
            self._threads.discard(threading.current_thread())

    def _run_job(self, job: ThreadJob, jobs: SimpleQueue[ThreadJob | None]) -> bool:
        """Call the function of ``job``. Return whether the thread is to wait for another job in ``jobs``."""
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
            job.mark_ended()
            if goes_on := not self._is_stopped and len(self._idle_queues) < MAX_IDLE_THREADS:
                # Before the result: its reader may submit the next function at once.
                self._idle_queues.append(jobs)
        if not begins:
            return goes_on
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
        return goes_on


logger = logging.getLogger("perdure.worker")

PROBE_INTERVAL = 1.0
"""Seconds between two probes of the loop; a function that blocks it longer is named in a warning."""
MAX_LOST_THREADS = 256
"""Number of abandoned sync functions still running at which the worker is to stop."""
LOST_THREADS_GRACE = 60.0
"""Seconds after which the number must still be reached: functions that are merely slow have returned by then."""
MAX_BLOCKED_TIME = 300.0
"""Seconds that an async function may block its loop before the worker is to stop: no other async function can run."""
CANCEL_TIMEOUT = 10.0
"""Seconds to wait for a cancelled async function to end."""
_STOP_TIMEOUT = 2.0


class OverdueError(TimeoutError):
    """An author's function did not return within its timeout."""


class AuthorLoop:
    """Runs authors' functions away from the worker's loop. Start it before use, and stop it at the end."""

    def start(self) -> None:
        """Start the threads. After :meth:`stop` it may be started again."""
        # Each start has its own loop and event: a thread blocked at the stop must not touch those of the next start.
        loop, stopping = asyncio.new_event_loop(), threading.Event()
        loop.set_task_factory(_create_named_task)
        self._loop, self._stopping = loop, stopping
        self._pool = ThreadPool("perdure-tool")
        self._recheck_scheduled = False
        self.fatal_reason: Future[str] = Future()
        """Why the worker can no longer run authors' functions; set once that is so."""
        self._threads = [
            threading.Thread(target=_run_loop_thread, args=(loop, stopping), name="perdure-author", daemon=True),
            threading.Thread(
                target=_watch_loop, args=(loop, stopping, self.fatal_reason), name="perdure-watch", daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the loop and cancel its tasks. A blocked thread is left behind: it cannot be ended."""
        self._stopping.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join(_STOP_TIMEOUT)
        self._pool.stop()

    async def run(self, name: str, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Call ``fn``, sync or async, on the author's side, and return its result.

        ``timeout``: seconds that ``fn`` may take, without the time that an async one waits for its loop; then
        ``OverdueError`` is raised.

        Cancelling this cancels an async ``fn`` at its next ``await`` and waits for it, ``CANCEL_TIMEOUT`` seconds at
        most; if it ends with a result all the same, that is returned. A sync ``fn`` runs to its end in its thread, and
        its result is dropped. Only an ``Exception`` is raised as it is: ``sys.exit()`` in a tool, or a cancellation
        that did not come from here, is raised as ``RuntimeError``.
        """
        if timeout is None:
            return await self._call_function(name, fn, args, None)
        clock = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:

                def begin() -> None:
                    if limit.when() is None:  # a function that returned an awaitable begins twice
                        with suppress(RuntimeError):  # it has ended already
                            limit.reschedule(clock.time() + timeout)

                return await self._call_function(name, fn, args, begin)
        except TimeoutError as error:
            if not limit.expired():  # the function's own
                raise
            raise OverdueError(f"{name} did not return within {timeout:g} s") from error

    async def _call_function(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], begin: Callable[[], None] | None
    ) -> Any:
        """Call ``fn``; ``begin`` is called, on this loop, when it begins."""
        if is_coroutine_function(fn):
            return await self._run_on_loop(name, fn(*args), begin)
        context = contextvars.copy_context()
        context.run(author_function.set, name)
        if begin is not None:  # not from the thread, which would wake this loop for it: the pool calls at once
            begin()
        job = self._pool.submit(lambda: context.run(_call_in_thread, fn, args))
        try:
            result = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            job.abandon()
            self._check_lost_threads(name)
            raise
        if inspect.isawaitable(result):  # a sync function that returns a coroutine: partial, lambda, decorator
            return await self._run_on_loop(name, _await_value(result), begin)
        return result

    def _check_lost_threads(self, name: str) -> None:
        """Log a warning at 8 lost threads, at 16, and so on; at ``MAX_LOST_THREADS`` check again after the grace
        time."""
        lost = self._pool.lost_count
        if lost >= MAX_LOST_THREADS:
            if not self._recheck_scheduled:
                self._recheck_scheduled = True
                asyncio.get_running_loop().call_later(LOST_THREADS_GRACE, self._recheck_lost_threads, self._pool, name)
        elif lost >= 8 and not lost & (lost - 1):
            logger.warning(
                "%d abandoned functions still run in threads of this worker, the last is %s; at %d the worker stops. "
                "Give blocking calls a timeout.",
                lost,
                name,
                MAX_LOST_THREADS,
            )

    def _recheck_lost_threads(self, pool: ThreadPool, name: str) -> None:
        """Set ``fatal_reason`` if there are still too many lost threads. ``pool`` is the pool of the first check."""
        if pool is self._pool:  # else it was stopped and started since
            self._recheck_scheduled = False
            if pool.lost_count >= MAX_LOST_THREADS:
                _report_lost(
                    self.fatal_reason,
                    f"{pool.lost_count} abandoned functions still run in threads of this worker; one is {name}",
                )

    async def _run_on_loop(
        self, name: str, coroutine: Coroutine[Any, Any, Any], begin: Callable[[], None] | None
    ) -> Any:
        loop, caller = self._loop, asyncio.get_running_loop()
        ended: Future[Any] = Future()
        tasks: list[asyncio.Task[Any]] = []

        def start_task() -> None:
            if begin is not None:
                with suppress(RuntimeError):  # the worker's loop is closed
                    caller.call_soon_threadsafe(begin)
            author_function.set(name)  # in the context of this callback, which the task and its own tasks inherit
            task = loop.create_task(_run_contained(coroutine))
            task.add_done_callback(lambda done: _copy_task_result(ended, done, coroutine))
            tasks.append(task)

        try:
            loop.call_soon_threadsafe(start_task)
        except RuntimeError:  # closed: the worker has stopped
            coroutine.close()
            raise
        ending = asyncio.wrap_future(ended)
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:  # ours: one of the function's own comes as RuntimeError
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            await asyncio.wait([ending], timeout=CANCEL_TIMEOUT)
            if not ending.done():
                logger.warning("%s was cancelled %g s ago and still runs; its result is dropped", name, CANCEL_TIMEOUT)
                raise
            if ending.exception() is not None:
                raise
            return ending.result()  # it ended with a result after all, so its effects count


def is_coroutine_function(fn: Callable[..., Any]) -> bool:
    """Whether a call of ``fn``, a function or an object, gives a coroutine. If not, it may still return one."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004  # asks whether the call is a coroutine, not whether there is one


def _create_named_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Create a task named after the author's function that it works for, also if the function itself began it."""
    options["name"] = options.get("name") or author_function.get()
    return _NamedTask(coroutine, loop=loop, **options)


class _NamedTask(asyncio.Task[Any]):
    def set_name(self, value: object) -> None:
        """Ignore None: ``loop.create_task`` of Python 3.13 sets the name that it was given last, None if none."""
        if value is not None:
            super().set_name(value)


def _run_loop_thread(loop: asyncio.AbstractEventLoop, stopping: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    try:
        while not stopping.is_set():
            _run_loop_forever(loop)
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _run_loop_forever(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt) as error:  # of a task that a tool left behind: not a reason to end here
        logger.warning("%r in a task that a tool began; it is ignored", error)


def _watch_loop(loop: asyncio.AbstractEventLoop, stopping: threading.Event, lost: Future[str]) -> None:
    """Probe the loop. Without a response in time, warn with the name of the function that blocks it; after
    ``MAX_BLOCKED_TIME``, set ``lost``."""
    while not stopping.is_set():
        answered = threading.Event()
        try:
            loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # closed meanwhile
            return
        if not answered.wait(PROBE_INTERVAL) and not stopping.is_set():
            logger.warning(
                "%s blocks its event loop; other async tools wait for it. "
                "Make it a plain def, which runs in a thread, or await what it waits for.",
                _name_running_function(loop),
            )
            looks = 0  # not the clock: a process that was suspended has probed nothing
            while not answered.wait(PROBE_INTERVAL) and not stopping.is_set():
                looks += 1
                if looks * PROBE_INTERVAL > MAX_BLOCKED_TIME:
                    _report_lost(
                        lost,
                        f"{_name_running_function(loop)} has blocked the event loop of async tools "
                        f"for {MAX_BLOCKED_TIME:g} s",
                    )
        stopping.wait(PROBE_INTERVAL)


def _name_running_function(loop: asyncio.AbstractEventLoop) -> str:
    task = asyncio.current_task(loop)
    return task.get_name() if task is not None else "an async function"


def _copy_task_result(ended: Future[Any], task: asyncio.Task[Any], coroutine: Coroutine[Any, Any, Any]) -> None:
    coroutine.close()  # cancelled before it began, it would be reported as never awaited
    if task.cancelled():
        ended.set_exception(RuntimeError("the function ended with CancelledError, but was not cancelled"))
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


async def _run_contained(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # SystemExit would end the loop, and every other tool with it
        raise _wrap_base_exception(error) from error


async def _await_value(awaitable: Any) -> Any:
    return await awaitable


def _report_lost(lost: Future[str], why: str) -> None:
    """Set ``lost``, once."""
    with suppress(InvalidStateError):
        lost.set_result(why)


def _call_in_thread(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return fn(*args)
    except StopIteration as error:  # a future cannot carry it: its waiter would wait without end
        raise _wrap_base_exception(error) from error
    except Exception:
        raise
    except BaseException as error:
        raise _wrap_base_exception(error) from error


def _wrap_base_exception(error: BaseException) -> RuntimeError:
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return RuntimeError(f"the function raised {said}")
