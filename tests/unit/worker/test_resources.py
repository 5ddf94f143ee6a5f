"""A worker's lifespan: where it runs, what fails loudly at the start, and what must never hold up the end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from perdure.calls.author_loop import AuthorLoop
from perdure.errors import DefinitionError, RuntimeSetupError
from perdure.worker import engine
from perdure.worker.engine import LifespanResources


@pytest.fixture
def author() -> Iterator[AuthorLoop]:
    loop = AuthorLoop()
    loop.start()
    yield loop
    loop.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LIFESPAN_EXIT_SECONDS", 0.2)
    monkeypatch.setattr(engine, "LIFESPAN_WARN_SECONDS", 0.05)
    monkeypatch.setattr(engine, "_LIFESPAN_CANCEL_SECONDS", 0.2)


async def test_it_is_entered_and_left_by_one_task_on_the_authors_loop(author: AuthorLoop) -> None:
    seen: list[Any] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        seen.append((threading.current_thread().name, asyncio.current_task()))
        async with asyncio.timeout(60), asyncio.TaskGroup():  # neither may be left by another task
            yield "pool"
        seen.append((threading.current_thread().name, asyncio.current_task()))

    async with LifespanResources(pool, author) as held:
        assert held.value == "pool"
        assert len(seen) == 1
        assert await author.run("tool", lambda: held.value) == "pool"
    assert held.value is None
    assert seen[0] == seen[1]
    assert seen[0][0] == "perdure-author"


async def test_it_can_be_opened_again(author: AuthorLoop) -> None:
    opened: list[int] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[int]:
        opened.append(1)
        yield len(opened)

    held = LifespanResources(pool, author)
    for n in (1, 2):
        async with held:
            assert held.value == n


async def test_without_one_there_is_nothing(author: AuthorLoop) -> None:
    async with LifespanResources(None, author) as held:
        assert held.value is None


class RefusedError(Exception):
    pass


@asynccontextmanager
async def refusing() -> AsyncIterator[None]:
    raise RefusedError("no such database")
    yield


@asynccontextmanager
async def exiting() -> AsyncIterator[None]:
    raise SystemExit(3)
    yield


@asynccontextmanager
async def silent() -> AsyncIterator[None]:
    if not silent:
        yield


@contextmanager
def sync() -> Iterator[None]:
    yield


async def coroutine() -> None:
    pass


@pytest.mark.parametrize(
    ("lifespan", "said"),
    [
        (refusing, "the lifespan refusing failed at its start: RefusedError: no such database"),
        (exiting, "SystemExit: 3"),
        (silent, "yield"),
        (sync, "@asynccontextmanager"),
        (coroutine, "@asynccontextmanager"),
        (lambda: None, "NoneType"),
    ],
)
async def test_what_cannot_be_entered_is_an_error_at_the_start(author: AuthorLoop, lifespan: Any, said: str) -> None:
    with pytest.raises(RuntimeSetupError) as caught:
        async with LifespanResources(lifespan, author):
            pytest.fail("the worker must not serve")
    assert said in str(caught.value)
    assert caught.value.hint
    assert caught.value.__cause__ is not None


async def undecorated() -> AsyncIterator[None]:
    yield


async def with_app(app: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("lifespan", "said"),
    [
        (undecorated, "Put @asynccontextmanager above it"),
        (refusing(), "without calling it"),
        ({"db": 1}, "a function that returns an async context manager"),
        (with_app, "the lifespan with_app is called without arguments: missing a required argument: 'app'"),
    ],
)
def test_what_is_no_lifespan_is_refused_at_the_definition(lifespan: Any, said: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        LifespanResources(lifespan, AuthorLoop())
    assert said in str(caught.value)
    assert caught.value.hint


async def test_a_slow_one_is_named_while_the_worker_waits(author: AuthorLoop, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    class Waiting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            go.set()

    @asynccontextmanager
    async def slow() -> AsyncIterator[int]:
        await asyncio.to_thread(go.wait)
        yield 7

    handler = Waiting()
    logging.getLogger("perdure.worker").addHandler(handler)
    try:
        async with LifespanResources(slow, author) as held:
            assert held.value == 7
    finally:
        logging.getLogger("perdure.worker").removeHandler(handler)
    assert "the lifespan slow has not started yet" in caplog.text


async def test_a_worker_that_is_stopped_while_it_enters_cleans_up(author: AuthorLoop) -> None:
    entering, left = threading.Event(), threading.Event()

    @asynccontextmanager
    async def never() -> AsyncIterator[None]:
        entering.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            left.set()

    opening = asyncio.ensure_future(LifespanResources(never, author).__aenter__())
    await asyncio.to_thread(entering.wait, 10)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert left.is_set()


async def test_one_that_fails_when_it_is_left_is_told_and_stops_nothing(
    author: AuthorLoop, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def failing() -> AsyncIterator[None]:
        yield
        raise RefusedError("cannot close")

    async with LifespanResources(failing, author):
        pass
    assert "the lifespan failing failed at its exit" in caplog.text
    assert "cannot close" in caplog.text


async def test_one_that_hangs_when_it_is_left_is_cancelled(
    author: AuthorLoop, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = threading.Event()

    @asynccontextmanager
    async def hanging() -> AsyncIterator[None]:
        yield
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with LifespanResources(hanging, author):
        pass
    assert cancelled.is_set()
    assert "the lifespan hanging did not exit within 0.2 s" in caplog.text


async def test_one_that_blocks_when_it_is_left_does_not_hold_the_worker(
    author: AuthorLoop, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    @asynccontextmanager
    async def blocking() -> AsyncIterator[None]:
        yield
        go.wait(30)

    async with asyncio.timeout(20):
        async with LifespanResources(blocking, author):
            pass
        go.set()
    assert "did not exit within" in caplog.text


async def test_one_that_ends_while_the_worker_serves_is_told(
    author: AuthorLoop, caplog: pytest.LogCaptureFixture
) -> None:
    fail, told = threading.Event(), asyncio.Event()

    async def background() -> None:
        await asyncio.to_thread(fail.wait)
        raise RefusedError("the connection is gone")

    @asynccontextmanager
    async def grouped() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(background())
            yield

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    handler = Told()
    logging.getLogger("perdure.worker").addHandler(handler)
    try:
        async with LifespanResources(grouped, author):
            fail.set()
            await asyncio.wait_for(told.wait(), 20)
    finally:
        logging.getLogger("perdure.worker").removeHandler(handler)
    assert "the lifespan grouped ended while the worker serves; its resources are gone" in caplog.text
    assert "the connection is gone" in caplog.text
