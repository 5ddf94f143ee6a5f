"""Hooks one behind the other: order, what each sees, kinds mixed, failures, time."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from perdure import HookSet, Message, Veto, hook
from perdure.calls.author_loop import AuthorLoop
from perdure.errors import AbortError, DefinitionError, HookError
from perdure.hooks import Hook, HookArguments, HookEvent, run_hooks
from perdure.hooks.dispatch import read_hook_request
from perdure.hooks.hook import EVENTS, VETOABLE_EVENTS
from perdure.types.messages import ToolCallPart


@pytest.fixture
def author() -> Iterator[AuthorLoop]:
    """Where authors' code runs."""
    loop = AuthorLoop()
    loop.start()
    yield loop
    loop.stop()


def adding(name: str, *, sync: bool, seen: list[str]) -> Hook:
    """A hook that adds its name to the content, and says in which thread it ran."""

    def plain(content: str) -> str:
        seen.append(f"{name}: {threading.current_thread().name.rstrip('-0123456789')}")
        return content + name

    async def asynchronous(content: str) -> str:
        return plain(content)

    return hook("on_finish", name=name)(plain if sync else asynchronous)


def take(hook: Hook, returned: Any, given: HookArguments) -> bool:
    given["content"] = returned
    return bool(returned == "stop")


async def test_each_sees_what_the_one_before_has_made(author: AuthorLoop) -> None:
    seen: list[str] = []
    hooks = [adding(name, sync=name in "bce", seen=seen) for name in "abcdef"]
    given: HookArguments = {"content": ""}
    await run_hooks(author.run, hooks, given, take)
    assert given["content"] == "abcdef"
    on_loop, in_pool = "perdure-author", "perdure-tool"
    assert seen == [f"{name}: {in_pool if name in 'bce' else on_loop}" for name in "abcdef"]


async def test_those_of_a_kind_take_one_way_together() -> None:
    seen: list[str] = []
    ways: list[str] = []

    async def run(name: str, fn: Any, *args: Any) -> Any:
        ways.append(name)
        result = fn(*args)
        return await result if asyncio.iscoroutine(result) else result

    hooks = [adding(name, sync=name in "cd", seen=seen) for name in "abcde"]
    await run_hooks(run, hooks, {"content": ""}, take)
    assert ways == ["hook a", "hook c", "hook e"]


async def test_what_take_says_stops_those_behind(author: AuthorLoop) -> None:
    @hook("on_finish")
    def stopper() -> str:
        return "stop"

    @hook("on_finish")
    async def never() -> None:
        raise AssertionError

    given: HookArguments = {"content": ""}
    await run_hooks(author.run, [stopper, never, stopper], given, take)
    assert given["content"] == "stop"


@pytest.mark.parametrize("sync", [True, False])
async def test_one_that_fails_is_named_and_the_rest_do_not_run(author: AuthorLoop, sync: bool) -> None:
    def plain() -> None:
        raise ValueError("no")

    async def asynchronous() -> None:
        raise ValueError("no")

    broken = hook("on_finish", name="broken")(plain if sync else asynchronous)
    seen: list[str] = []
    behind = adding("x", sync=sync, seen=seen)
    with pytest.raises(HookError, match=r"the hook broken \(on_finish\) failed: ValueError: no"):
        await run_hooks(author.run, [broken, behind], {"content": ""}, take)
    assert seen == []


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("how", ["raises", "exits", "hangs"])
async def test_one_that_only_logs_lets_the_others_go_on(
    author: AuthorLoop, caplog: pytest.LogCaptureFixture, sync: bool, how: str
) -> None:
    released = threading.Event()

    def plain() -> str:
        if how == "hangs":
            released.wait(20)
        elif how == "exits":
            raise SystemExit(3)
        else:
            raise ValueError("no")
        return "too late"

    async def asynchronous() -> str:
        if how == "hangs":
            await asyncio.Event().wait()
        return plain()

    broken = hook("on_finish", name="broken", on_error="log", timeout=0.05)(plain if sync else asynchronous)
    seen: list[str] = []
    given: HookArguments = {"content": ""}
    hooks = [adding("a", sync=sync, seen=seen), broken, adding("b", sync=sync, seen=seen)]
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        await run_hooks(author.run, hooks, given, take)
    released.set()
    assert given["content"] == "ab"
    why = {"raises": "ValueError: no", "exits": "SystemExit: 3", "hangs": "it did not return within 0.05 s"}[how]
    assert any(
        "the hook broken (on_finish) failed, and the call goes on" in one and why in one for one in caplog.messages
    )


async def test_one_that_was_given_up_changes_nothing_any_more(author: AuthorLoop) -> None:
    """Its thread goes on to its end, but not to the hooks behind it."""
    released, ended = threading.Event(), threading.Event()

    @hook("on_finish", on_error="log", timeout=0.05)
    def slow(content: str) -> str:
        released.wait(20)
        ended.set()
        return "too late"

    ran: list[str] = []
    given: HookArguments = {"content": ""}
    await run_hooks(author.run, [slow, adding("a", sync=True, seen=ran)], given, take)
    released.set()
    assert await asyncio.to_thread(ended.wait, 20)
    await author.run("behind it", lambda: None)
    assert (given["content"], len(ran)) == ("a", 1)


async def test_one_that_was_given_up_fails_once(caplog: pytest.LogCaptureFixture) -> None:
    """When its thread raises at last, the changes of the hooks behind it are not undone."""
    released = threading.Event()
    failed: list[HookArguments] = []

    @hook("on_finish", on_error="log", timeout=0.05)
    def slow() -> str:
        released.wait(20)
        raise ValueError("too late")

    with ThreadPoolExecutor() as pool:

        async def run(name: str, fn: Any, *args: Any) -> Any:
            return await asyncio.wrap_future(pool.submit(fn, *args))

        given: HookArguments = {"content": ""}
        with caplog.at_level(logging.WARNING, "perdure.worker"):
            await run_hooks(run, [slow, adding("a", sync=True, seen=[])], given, take, failed.append)
            released.set()
            await asyncio.to_thread(pool.shutdown)
    assert (given, len(failed)) == ({"content": "a"}, 1)
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "TimeoutError: it did not return within 0.05 s"
    ]


async def test_abort_comes_out_as_it_is_whatever_on_error_says(author: AuthorLoop) -> None:
    @hook("on_finish", on_error="log")
    def abort() -> None:
        raise AbortError("enough")

    with pytest.raises(AbortError, match="enough"):
        await run_hooks(author.run, [abort], {})


async def test_a_sync_function_that_gives_an_awaitable_is_awaited(author: AuthorLoop) -> None:
    async def answer(prefix: str, content: str) -> str:
        return prefix + content

    one = hook("on_finish", name="bound")(functools.partial(answer, "so "))
    lazily = hook("on_finish", name="lazy")(lambda content: answer("and ", content))
    given: HookArguments = {"content": "it is"}
    await run_hooks(author.run, [one, lazily, lazily], given, take)
    assert given["content"] == "and and so it is"


@pytest.mark.parametrize("timeout", [0, -1, None, "soon", float("nan"), float("inf"), True])
def test_a_time_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(DefinitionError, match="timeout is a number of seconds above 0"):
        hook("on_finish", timeout=timeout)


def test_a_hook_is_checked_when_it_is_made() -> None:
    with pytest.raises(DefinitionError, match="does not tell its parameters"):
        hook("on_finish")(dict)
    with pytest.raises(DefinitionError, match="no hook event 'before_lunch'"):
        hook("before_lunch")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="on_finish gives no 'answer'"):
        hook("on_finish")(lambda answer: answer)
    with pytest.raises(DefinitionError, match="'content' is positional-only") as error:
        hook("on_finish")(lambda content, /: content)
    assert error.value.hint == "Take the / out of its parameters."
    with pytest.raises(DefinitionError, match="on_error is 'fail' or 'log'"):
        hook("on_finish", on_error="ignore")  # type: ignore[arg-type]
    for unhashable in ([], {}):
        with pytest.raises(DefinitionError, match="no hook event"):
            hook(unhashable)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r'Write @hook\("before_llm_call"\)'):
        hook(print)  # type: ignore[arg-type]  # @hook without its event


def test_a_generator_would_never_run() -> None:
    def plain(step: Any) -> Iterator[Any]:
        yield step

    async def asynchronous(step: Any) -> Any:
        yield step

    for fn in (plain, asynchronous):
        with pytest.raises(DefinitionError, match=f"hook '{fn.__name__}': a generator would never run"):
            hook("on_iteration")(fn)


@pytest.mark.parametrize("event", VETOABLE_EVENTS)
async def test_a_veto_ends_the_hooks_and_is_the_result(author: AuthorLoop, event: HookEvent) -> None:
    veto, ran = Veto("no"), list[str]()
    hooks = [hook(event)(lambda: None), hook(event, name="no")(lambda: veto), hook(event)(lambda: ran.append("late"))]
    assert await run_hooks(author.run, hooks, {"messages": ()}, lambda hook, *_: ran.append(hook.name)) is veto
    assert ran == ["<lambda>"]


@pytest.mark.parametrize("event", sorted(set(EVENTS) - set(VETOABLE_EVENTS)))
async def test_a_veto_of_what_has_happened_is_an_error(author: AuthorLoop, event: HookEvent) -> None:
    late = hook(event, name="late")(lambda: Veto("no"))
    with pytest.raises(HookError) as raised:
        await run_hooks(author.run, [late], {})
    assert raised.value.message.startswith(f"the hook late ({event}) returned a Veto, which only hooks on ")


async def test_what_a_hook_may_not_return_is_said_once(author: AuthorLoop) -> None:
    wrong = hook("before_llm_call", name="wrong")(lambda: 7)

    def read(hook: Hook, returned: Any, given: HookArguments) -> None:
        read_hook_request(hook, returned, given["request"])

    with pytest.raises(HookError) as raised:
        await run_hooks(author.run, [wrong], {"request": None}, read)
    assert raised.value.message.startswith("the hook wrong (before_llm_call) returned 7; it may return None, ")


async def test_a_hook_that_raises_a_hook_error_of_its_own_is_named(author: AuthorLoop) -> None:
    def check() -> None:
        raise HookError("the log is full")

    with pytest.raises(HookError) as raised:
        await run_hooks(author.run, [hook("on_finish")(check)], {})
    assert raised.value.message == "the hook check (on_finish) failed: HookError: the log is full"


def test_a_set_is_read_added_to_and_cleared() -> None:
    one, two = hook("on_finish", name="one")(lambda: None), hook("on_error", name="two")(lambda: None)
    hooks = HookSet([one, HookSet([two])])
    assert (list(hooks), hooks.on("on_finish"), len(hooks)) == ([one, two], (one,), 2)
    hooks.add(one)
    assert hooks.on("on_finish") == (one, one)
    hooks.clear("on_finish")
    assert (list(hooks), hooks.on("on_finish")) == ([two], ())
    hooks.clear()
    assert not hooks
    with pytest.raises(DefinitionError, match="is not a hook"):
        hooks.add(print)  # type: ignore[arg-type]


async def test_hooks_behind_the_one_at_which_the_call_was_cancelled_do_not_run(author: AuthorLoop) -> None:
    """A thread cannot be stopped; the attempt that follows runs them all again."""
    begun, released = threading.Event(), threading.Event()
    left = threading.Semaphore(0)

    @hook("on_finish")
    def slow(content: str) -> str:
        begun.set()
        released.wait(20)
        return content

    async def run(name: str, fn: Any, *args: Any) -> Any:
        def watched() -> Any:
            try:
                return fn(*args)
            finally:
                left.release()

        return await author.run(name, watched)

    ran: list[str] = []
    call = asyncio.ensure_future(run_hooks(run, [slow, adding("a", sync=True, seen=ran)], {"content": ""}, take))
    assert await asyncio.to_thread(begun.wait, 20)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    released.set()
    assert await asyncio.to_thread(left.acquire, True, 20)
    assert ran == []


async def test_the_time_of_a_hook_begins_when_it_does(author: AuthorLoop) -> None:
    """Other runs may hold every thread for longer than that; it is not the hook that is slow."""
    busy = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, busy.set)

    async def run(name: str, fn: Any, *args: Any) -> Any:
        await busy.wait()
        return await author.run(name, fn, *args)

    given: HookArguments = {"content": ""}
    quick = hook("on_finish", timeout=0.1)(lambda content: content + "a")
    await run_hooks(run, [quick], given, take)
    assert given["content"] == "a"


async def test_while_the_store_is_down_a_hook_that_reads_memory_has_time(author: AuthorLoop) -> None:
    there = threading.Event()

    class Down:
        @property
        def waits(self) -> bool:
            there.set()  # it was looked at, at the end of the hook's time
            return True

    class Context:
        memory = Down()

    @hook("on_finish", timeout=0.05)
    def reading(content: str) -> str:
        assert there.wait(20)
        return "read"

    given: HookArguments = {"content": "", "ctx": Context()}
    await run_hooks(author.run, [reading], given, take)
    assert given["content"] == "read"


def changes_inside(messages: Any) -> None:
    messages[0].parts[0].arguments["deep"].append("changed")


def looks(messages: Any) -> None:
    """One that only looks."""


@pytest.mark.parametrize("event", ["before_llm_call", "after_llm_call", "on_finish", "on_user_message"])
@pytest.mark.parametrize("on_error", ["fail", "log"])
async def test_what_is_changed_inside_a_message_is_put_back_and_said(
    author: AuthorLoop, event: HookEvent, on_error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    said = Message.assistant("", ToolCallPart(id="1", name="pay", arguments={"deep": [1]}))
    hooks = [hook(event)(looks), hook(event, on_error=on_error)(changes_inside), hook(event)(looks)]
    try:
        await run_hooks(author.run, hooks, {"messages": (said,)})
        told = caplog.text
    except HookError as error:
        told = str(error)
    assert f"the hook changes_inside ({event}) failed" in told
    assert "the arguments of a call of pay were changed in place" in told
    assert said.tool_calls[0].arguments == {"deep": [1]}


async def test_what_a_hook_that_fails_has_changed_inside_a_message_is_put_back(author: AuthorLoop) -> None:
    said = Message.assistant("", ToolCallPart(id="1", name="pay", arguments={"deep": [1]}))

    def fails(messages: Any) -> None:
        changes_inside(messages)
        raise ValueError("no")

    with pytest.raises(HookError, match="ValueError: no"):
        await run_hooks(author.run, [hook("before_llm_call")(fails)], {"messages": (said,)})
    assert said.tool_calls[0].arguments == {"deep": [1]}
    logs = hook("before_llm_call", on_error="log")(fails)
    await run_hooks(author.run, [logs, hook("before_llm_call")(looks)], {"messages": (said,)})
    assert said.tool_calls[0].arguments == {"deep": [1]}
