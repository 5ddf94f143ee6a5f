"""Which callables become tools, and what they are called with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from perdure.tools import ArgumentsError, RunContext, ToolContext, as_tool, tool

CONTEXT: ToolContext[Any] = ToolContext(run_id="r", task_id="t", agent="a", call_id="c", idempotency_key="k")


class Search:
    """Search the web.

    Args:
        query: What for.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def __call__(self, query: str, limit: int = 3) -> str:
        return f"{self.prefix}{query} {limit}"

    def lookup(self, ctx: ToolContext, query: str) -> str:
        """Look up."""
        return f"{self.prefix}{query} {ctx.call_id}"

    @staticmethod
    def fixed(query: str) -> str:
        return query

    @classmethod
    def made(cls, query: str) -> str:
        return f"{cls.__name__} {query}"


class FetchPage:
    name = "fetch"
    description = "Fetch a page."

    async def __call__(self, url: str) -> str:
        return url


def plain(query: str, *, limit: int = 1, secret: str = "") -> str:
    """Plain."""
    return f"{query} {limit} {secret}"


def passing(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


@passing
async def decorated(query: str) -> str:
    """Decorated."""
    return query


CALLABLES: list[tuple[Any, str, str, list[str], Any]] = [
    (plain, "plain", "Plain.", ["query", "limit", "secret"], "q 1 "),
    (Search("> "), "search", "Search the web.", ["query", "limit"], "> q 3"),
    (Search("> ").lookup, "lookup", "Look up.", ["query"], "> q c"),
    (Search.fixed, "fixed", "", ["query"], "q"),
    (Search.made, "made", "", ["query"], "Search q"),
    (functools.partial(plain, secret="s"), "plain", "Plain.", ["query", "limit"], "q 1 s"),
    (functools.partial(Search("> ").lookup, CONTEXT), "lookup", "Look up.", ["query"], "> q c"),
    (functools.lru_cache(plain), "plain", "Plain.", ["query", "limit", "secret"], "q 1 "),
]


@pytest.mark.parametrize(("fn", "name", "description", "parameters", "result"), CALLABLES)
def test_callables(fn: Any, name: str, description: str, parameters: list[str], result: Any) -> None:
    made = as_tool(fn)
    assert (made.name, made.description, list(made.parameters["properties"])) == (
        name,
        description,
        parameters,
    )
    assert not made.is_async
    assert made.bind({"query": "q"}, CONTEXT)() == result
    assert as_tool(made) is made
    assert made.spec.name == name
    assert made.spec.parameters is made.parameters


async def test_async_callables() -> None:
    fetch = as_tool(FetchPage())
    assert (fetch.name, fetch.description, fetch.is_async) == ("fetch", "Fetch a page.", True)
    assert as_tool(functools.partial(FetchPage())).is_async
    assert await fetch.bind({"url": "u"})() == "u"

    wrapped = as_tool(decorated)  # a sync function around an async one: it is its result that is awaitable
    assert not wrapped.is_async
    result = wrapped.bind({"query": "q"})()
    assert inspect.isawaitable(result)
    assert await result == "q"


def test_a_tool_is_still_its_function() -> None:
    @tool(timeout=60, idempotent=True, retries=3, task_queue="gpu", name="double-it")
    def double(x: int) -> int:
        """Double."""
        return 2 * x

    assert double(4) == 8
    assert (double.name, double.timeout, double.retries, double.task_queue) == ("double-it", 60, 3, "gpu")
    assert (double.idempotent, double.inline, double.is_async) == (True, False, False)
    assert double.__doc__ == "Double."
    assert double.where.startswith(f"{__file__}:")
    assert list(inspect.signature(double).parameters) == ["x"]
    assert tool(lambda: 1, name="one")() == 1


class UserContext(BaseModel):
    user: str


class MyContext(ToolContext[UserContext]):
    pass


def _first(ctx: ToolContext, x: int) -> Any:
    return ctx


def _last(x: int, ctx: RunContext[UserContext]) -> Any:
    return ctx


def _keyword(x: int, *, ctx: ToolContext[UserContext]) -> Any:
    return ctx


def _optional(x: int, ctx: ToolContext | None = None) -> Any:
    return ctx


def _union(x: int, ctx: RunContext | None = None) -> Any:
    return ctx


def _subclass(x: int, ctx: MyContext) -> Any:
    return ctx


def _annotated(ctx: Annotated[ToolContext, "engine"], x: int) -> Any:
    return ctx


def _quoted(ctx: "ToolContext[UserContext]", x: int) -> Any:  # noqa: UP037 - quoted twice on purpose
    return ctx


@pytest.mark.parametrize("fn", [_first, _last, _keyword, _optional, _union, _subclass, _annotated, _quoted])
def test_the_context_parameter(fn: Any) -> None:
    made = as_tool(fn)
    assert made.context_parameter == "ctx"
    assert list(made.parameters["properties"]) == ["x"]
    assert made.bind({"x": 1}, CONTEXT)() is CONTEXT
    with pytest.raises(ArgumentsError, match="ctx: there is no such argument"):
        made.bind({"x": 1, "ctx": {}}, CONTEXT)


def test_context_imported_for_the_type_checker_alone() -> None:
    # What linters do to imports that only hints use.
    namespace: dict[str, Any] = {}
    exec(  # noqa: S102 - a module of its own
        "from __future__ import annotations\ndef fn(ctx: ToolContext, x: int) -> Missing: return ctx.run_id",
        namespace,
    )
    assert as_tool(namespace["fn"]).bind({"x": 1}, CONTEXT)() == "r"


def test_types_of_an_enclosing_function() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def probe(value: list[Local]) -> Any:
        return value

    assert probe.bind({"value": [{"x": 1}]})() == [Local(x=1)]


def test_context_methods() -> None:
    beats: list[tuple[Any, ...]] = []
    stopped = False
    ctx = ToolContext(
        run_id="r",
        task_id="t",
        agent="a",
        call_id="c",
        idempotency_key="k",
        attempt=2,
        iteration=3,
        context=UserContext(user="u"),
        resources={"db": 1},
        heartbeat=lambda *details: beats.append(details),
        cancelled=lambda: stopped,
    )
    ctx.heartbeat()
    ctx.heartbeat("half", 50)
    assert beats == [(), ("half", 50)]
    assert not ctx.cancelled
    stopped = True
    assert ctx.cancelled
    assert (ctx.attempt, ctx.iteration, ctx.context.user, ctx.resources) == (2, 3, "u", {"db": 1})
    assert "agent='a'" in repr(ctx)
    CONTEXT.heartbeat("nobody listens")
    assert not CONTEXT.cancelled
