"""The loop where authors' code runs: what it survives, what a cancellation means, and what is left behind."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from perdure.calls import author_loop
from perdure.calls.author_loop import AuthorLoop
from tests.support.wait import eventually

VALUE: contextvars.ContextVar[str] = contextvars.ContextVar("value", default="none")


@pytest.fixture
def author() -> Iterator[AuthorLoop]:
    author = AuthorLoop()
    author.start()
    yield author
    author.stop()


def ours() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("perdure-"))


# --- what runs where


async def test_async_functions_share_a_loop_that_is_not_the_workers(author: AuthorLoop) -> None:
    async def where() -> tuple[str, asyncio.AbstractEventLoop]:
        return threading.current_thread().name, asyncio.get_running_loop()

    (name, loop), (_, other) = await author.run("a", where), await author.run("b", where)
    assert name == "perdure-author"
    assert loop is other is not asyncio.get_running_loop()


async def test_none_of_96_payments_waits_for_a_thread(author: AuthorLoop) -> None:
    together = threading.Barrier(96)

    def pay() -> str:
        together.wait(timeout=30)  # until all of them have begun
        return threading.current_thread().name

    names = await asyncio.gather(*(author.run("pay", pay, timeout=30) for _ in range(96)))
    assert len(set(names)) == 96
    assert await author.run("later", lambda: threading.current_thread().name) in names
    await eventually(
        lambda: len(ours()) <= author_loop.MAX_IDLE_THREADS + 2, what="the end of the threads that are not kept"
    )


async def test_the_time_of_an_async_function_begins_when_the_blocked_loop_calls_it(author: AuthorLoop) -> None:
    blocked, go = threading.Event(), threading.Event()

    async def block() -> None:
        blocked.set()
        go.wait(30)

    first = asyncio.ensure_future(author.run("block", block))
    await asyncio.to_thread(blocked.wait, 30)
    second = asyncio.ensure_future(author.run("second", asyncio.sleep, 0, "done", timeout=0.1))
    await asyncio.wait([second], timeout=0.5)
    go.set()
    assert await second == "done"
    await first


async def test_a_timeout_of_the_functions_own_is_not_ours(author: AuthorLoop) -> None:
    def raises() -> None:
        raise TimeoutError("of the function")

    with pytest.raises(TimeoutError, match="of the function"):
        await author.run("own", raises, timeout=30)
    with pytest.raises(author_loop.OverdueError, match=r"slow did not return within 0\.05 s"):
        await author.run("slow", asyncio.sleep, 60, timeout=0.05)


# --- threads that are lost


async def hang(author: AuthorLoop, count: int, go: threading.Event) -> None:
    """Abandon ``count`` functions, which hang until ``go``."""
    begun = threading.Barrier(count + 1)

    def wait() -> None:
        begun.wait(30)
        go.wait(30)

    hung = [asyncio.ensure_future(author.run("tool hang", wait)) for _ in range(count)]
    await asyncio.to_thread(begun.wait, 30)
    for task in hung:
        task.cancel()
    await asyncio.wait(hung)


async def test_hung_functions_take_no_thread_from_others_and_the_worker_hears_of_them(
    author: AuthorLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(author_loop, "MAX_LOST_THREADS", 20)
    monkeypatch.setattr(author_loop, "LOST_THREADS_GRACE", 0.01)
    first, last = threading.Event(), threading.Event()
    await hang(author, 19, first)
    assert await author.run("next", lambda: "runs", timeout=30) == "runs"
    assert "8 abandoned functions still run in threads of this worker, the last is tool hang" in caplog.text
    assert not author.fatal_reason.done()
    first.set()
    await eventually(lambda: author._pool.lost_count == 0, what="they are lost no more when they return")
    await hang(author, 20, last)
    why = await asyncio.wait_for(asyncio.wrap_future(author.fatal_reason), 30)
    assert "20 abandoned functions still run in threads of this worker; one is tool hang" in why
    last.set()


async def test_functions_that_are_slow_and_return_within_a_minute_do_not_stop_the_worker(
    author: AuthorLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(author_loop, "MAX_LOST_THREADS", 4)
    go, never = threading.Event(), threading.Event()
    await hang(author, 6, go)
    assert not author.fatal_reason.done()
    go.set()
    await eventually(lambda: author._pool.lost_count == 0, what="their return")
    author._recheck_lost_threads(author._pool, "tool hang")  # a minute later
    assert not author.fatal_reason.done()
    monkeypatch.setattr(author_loop, "LOST_THREADS_GRACE", 0.01)
    await hang(author, 4, never)  # looked at anew
    assert "4 abandoned" in await asyncio.wait_for(asyncio.wrap_future(author.fatal_reason), 30)
    never.set()


def test_a_process_that_was_suspended_at_a_breakpoint_has_not_lost_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping(threading.Event):
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > 9

    class Blocked:
        def call_soon_threadsafe(self, _: Any) -> None:
            """It is never called."""

    hours = itertools.count(0, 3600)
    monkeypatch.setattr(author_loop, "monotonic", lambda: next(hours), raising=False)
    monkeypatch.setattr(author_loop, "PROBE_INTERVAL", 0.001)
    stopping, lost = Stopping(), Future[str]()
    author_loop._watch_loop(Blocked(), stopping, lost)  # type: ignore[arg-type]
    assert stopping.looks > 9
    assert not lost.done()


@pytest.mark.usefixtures("_looks_often")
async def test_a_loop_that_stays_blocked_is_lost(author: AuthorLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(author_loop, "MAX_BLOCKED_TIME", 0.05)
    go = threading.Event()

    async def block() -> None:
        go.wait(30)

    blocking = asyncio.ensure_future(author.run("tool scrape", block))
    why = await asyncio.wait_for(asyncio.wrap_future(author.fatal_reason), 30)
    assert "tool scrape has blocked the event loop of async tools" in why
    go.set()
    await blocking


@pytest.mark.parametrize("count", [1, 5])
async def test_a_thread_that_is_idle_is_taken_first(author: AuthorLoop, count: int) -> None:
    names = {await author.run("one", lambda: threading.current_thread().name) for _ in range(count)}
    assert names == {"perdure-tool-0"}


async def test_every_kind_of_callable(author: AuthorLoop) -> None:
    async def add(a: int, b: int = 1) -> int:
        return a + b

    class Adder:
        async def __call__(self, a: int) -> int:
            return a + 1

    def hidden(a: int) -> Any:  # as a decorator without async makes it
        return add(a)

    assert await author.run("plain", add, 1, 2) == 3
    assert await author.run("partial", functools.partial(add, 1)) == 2
    assert await author.run("object", Adder(), 1) == 2
    assert await author.run("coroutine", hidden, 1) == 2
    assert await author.run("sync", lambda: 2) == 2


async def test_both_kinds_see_the_callers_context_and_change_only_a_copy(author: AuthorLoop) -> None:
    VALUE.set("caller")

    def look() -> str:
        seen = VALUE.get()
        VALUE.set("changed")
        return seen

    async def look_async() -> str:
        await asyncio.sleep(0)
        return look()

    assert await author.run("sync", look) == "caller"
    assert await author.run("async", look_async) == "caller"
    assert VALUE.get() == "caller"


# --- what they raise


class Strange(BaseException):
    pass


RAISED = [ValueError("no"), StopIteration(3), SystemExit(2), KeyboardInterrupt(), GeneratorExit(), Strange("x")]


@pytest.mark.parametrize("error", RAISED, ids=repr)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_whatever_they_raise_arrives_as_an_exception(author: AuthorLoop, kind: str, error: Any) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    async with asyncio.timeout(10):
        with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is what is asked below
            await author.run("fail", fail if kind == "sync" else fail_async)
    assert isinstance(caught.value, ValueError if isinstance(error, ValueError) else RuntimeError)
    assert type(error).__name__ in repr(caught.value)
    assert await author.run("next", asyncio.sleep, 0, "alive") == "alive"


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_cancellation_of_their_own_is_an_error_and_not_ours(author: AuthorLoop, kind: str) -> None:
    def fail() -> None:
        raise asyncio.CancelledError

    async def fail_async() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    with pytest.raises(RuntimeError, match="CancelledError"):
        await author.run("fail", fail if kind == "sync" else fail_async)


async def test_a_task_left_behind_that_exits_does_not_end_the_loop(
    author: AuthorLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def exit_later() -> None:
        raise SystemExit(3)

    left: list[asyncio.Task[None]] = []

    async def begin() -> None:
        left.append(asyncio.ensure_future(exit_later()))

    await author.run("begin", begin)
    assert await author.run("next", asyncio.sleep, 0, "alive") == "alive"
    assert "SystemExit(3)" in caplog.text


# --- cancellation


async def started(author: AuthorLoop, fn: Callable[[asyncio.Event], Any]) -> asyncio.Task[Any]:
    """``fn`` running on the author's loop, cancelled once it has begun; it is given an event that is never set."""
    begun = threading.Event()

    async def wrapped() -> Any:
        begun.set()
        return await fn(asyncio.Event())

    task = asyncio.ensure_future(author.run("cancelled", wrapped))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    return task


async def test_a_cancelled_async_function_has_ended_when_the_call_returns(author: AuthorLoop) -> None:
    said: list[str] = []

    async def clean_up(never: asyncio.Event) -> None:
        try:
            await never.wait()
        finally:
            await asyncio.sleep(0.05)
            said.append("cleaned up")

    with pytest.raises(asyncio.CancelledError):
        await (await started(author, clean_up))
    assert said == ["cleaned up"]


async def test_what_ends_with_a_result_all_the_same_counts(author: AuthorLoop) -> None:
    async def swallow(never: asyncio.Event) -> str:
        try:
            await never.wait()
        except asyncio.CancelledError:
            return "paid"
        return "never"

    assert await (await started(author, swallow)) == "paid"


async def test_an_error_while_it_is_cancelled_is_a_cancellation(author: AuthorLoop) -> None:
    async def fail(never: asyncio.Event) -> None:
        try:
            await never.wait()
        finally:
            raise ValueError("in the middle")

    with pytest.raises(asyncio.CancelledError):
        await (await started(author, fail))


async def test_one_that_does_not_end_is_left_with_a_warning(
    author: AuthorLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(author_loop, "CANCEL_TIMEOUT", 0.05)

    async def stubborn(never: asyncio.Event) -> None:
        while True:
            try:
                await asyncio.wait_for(never.wait(), 30)
            except asyncio.CancelledError:
                if author_loop_stops.is_set():
                    raise

    author_loop_stops = threading.Event()
    with pytest.raises(asyncio.CancelledError):
        await (await started(author, stubborn))
    assert "cancelled was cancelled 0.05 s ago and still runs" in caplog.text
    author_loop_stops.set()  # so that the stop's own cancellation ends it


async def test_a_timeout_around_it_cancels_it(author: AuthorLoop) -> None:
    ended = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await author.run("slow", slow)
    assert ended.is_set()


async def test_cancelled_before_it_began_it_never_runs(author: AuthorLoop) -> None:
    ran: list[str] = []
    blocked, go = threading.Event(), threading.Event()

    async def block() -> None:
        blocked.set()
        go.wait(10)

    async def never() -> None:
        ran.append("ran")

    first = asyncio.ensure_future(author.run("block", block))
    await asyncio.to_thread(blocked.wait, 10)
    second = asyncio.ensure_future(author.run("never", never))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)  # the cancellation stands in the queue behind the beginning
    go.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await second
    assert ran == []


async def test_a_cancelled_sync_function_runs_to_its_end_and_nobody_waits(author: AuthorLoop) -> None:
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        go.wait(10)
        ended.set()

    task = asyncio.ensure_future(author.run("act", act))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()
    go.set()
    assert await asyncio.to_thread(ended.wait, 10)


# --- blocking


@pytest.fixture
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the loop starts: the first look is as far away as the others."""
    monkeypatch.setattr(author_loop, "PROBE_INTERVAL", 0.02)


@pytest.mark.usefixtures("_looks_often")
async def test_a_function_that_blocks_is_named_and_the_workers_loop_goes_on(
    author: AuthorLoop, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    async def block() -> None:
        go.wait(30)

    blocking = asyncio.ensure_future(author.run("tool scrape of agent a", block))
    await eventually(lambda: "blocks its event loop" in caplog.text)
    assert await author.run("sync", lambda: "goes on") == "goes on"
    go.set()
    await blocking
    assert "tool scrape of agent a blocks its event loop" in caplog.text
    assert "plain def" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]  # once, however long it blocks


@pytest.mark.usefixtures("_looks_often")
async def test_a_task_of_a_tool_that_blocks_is_named_after_the_tool(
    author: AuthorLoop, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    async def part() -> None:
        go.wait(30)

    async def gather() -> None:
        await asyncio.gather(part(), part())

    blocking = asyncio.ensure_future(author.run("tool crawl of agent a", gather))
    await eventually(lambda: "tool crawl of agent a blocks" in caplog.text)
    go.set()
    await blocking


# --- start and stop


async def test_nothing_is_left_after_the_stop() -> None:
    author = AuthorLoop()
    author.start()
    await author.run("sync", lambda: None)
    await author.run("async", asyncio.sleep, 0)
    assert ours() == ["perdure-author", "perdure-tool-0", "perdure-watch"]
    author.stop()
    assert ours() == []
    with pytest.raises(RuntimeError):
        await author.run("sync", lambda: None)
    with pytest.raises(RuntimeError):
        await author.run("async", asyncio.sleep, 0)


async def test_what_runs_at_the_stop_is_cancelled() -> None:
    author = AuthorLoop()
    author.start()
    said: list[str] = []
    begun = threading.Event()

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            said.append("cleaned up")

    running = asyncio.ensure_future(author.run("forever", forever))
    await asyncio.to_thread(begun.wait, 10)
    author.stop()
    assert said == ["cleaned up"]
    assert ours() == []
    with pytest.raises(RuntimeError, match="CancelledError"):
        await running


async def test_it_starts_again_also_after_a_stop_that_left_a_blocked_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(author_loop, "_STOP_TIMEOUT", 0.05)
    monkeypatch.setattr(author_loop, "PROBE_INTERVAL", 0.02)
    author = AuthorLoop()
    author.start()
    begun, go = threading.Event(), threading.Event()

    async def block() -> None:
        begun.set()
        go.wait(30)

    blocking = asyncio.ensure_future(author.run("block", block))
    await asyncio.to_thread(begun.wait, 10)
    author.stop()
    left = [thread for thread in threading.enumerate() if thread.name == "perdure-author"]
    assert len(left) == 1  # blocked: it cannot be ended
    author.start()
    go.set()
    await blocking
    await asyncio.to_thread(left[0].join, 10)
    # The old thread has closed its own loop, and no other.
    assert await author.run("async", asyncio.sleep, 0, "alive") == "alive"
    author.stop()
    assert ours() == []


def test_a_sync_tool_that_never_returns_does_not_hold_the_program() -> None:
    code = """
import asyncio, threading

from perdure.calls.author_loop import AuthorLoop

async def main():
    author = AuthorLoop()
    author.start()
    try:
        async with asyncio.timeout(0.1):
            await author.run("hang", threading.Event().wait)
    except TimeoutError:
        print("given up")
    author.stop()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "given up\n"
    assert done.stderr == ""
