"""What is wrong with a tool is said where it is defined: which tool, where, why, and the way out."""

from __future__ import annotations

import functools
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, ClassVar, TypedDict

import pytest
from pydantic import BaseModel, Field

from perdure import Agent, background, delegate
from perdure.errors import DefinitionError
from perdure.tools import RunContext, ToolContext, as_tool, tool


def no_hint(x) -> None: ...  # type: ignore[no-untyped-def]


def star_args(*values: int) -> None: ...


def star_kwargs(**values: int) -> None: ...


def positional_only(x: int, /, y: int) -> None: ...


def wrong_default(x: int = "seven") -> None: ...  # type: ignore[assignment]


def none_default(x: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - the mistake that is shown


def constrained_default(x: Annotated[int, Field(ge=1)] = 0) -> None: ...


def no_schema(fine: int, sock: socket.socket) -> None: ...


def no_json_schema(callback: Callable[[], None]) -> None: ...


def extra_is_no_json(x: Annotated[int, Field(json_schema_extra={"not": object()})]) -> None: ...  # type: ignore[dict-item]


def class_variable(x: ClassVar[int]) -> None: ...  # type: ignore[valid-type]


def unresolvable(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the mistake that is shown


def unresolvable_inside(x: list[Nowhere]) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the same


def two_contexts(a: ToolContext, b: RunContext | None = None) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def naïve() -> None: ...


class Unfinished(BaseModel):
    other: Nowhere  # type: ignore[name-defined]  # noqa: F821 - the mistake that is shown


def unfinished_model(x: Unfinished) -> None: ...


class Method:
    def run(self, x: int) -> None: ...


class OldTypedDict(TypedDict):
    x: int


def old_typed_dict(x: OldTypedDict) -> None: ...


FUNCTIONS: list[tuple[Any, str, str]] = [
    (no_hint, "parameter 'x' has no type hint", "x: str"),
    (star_args, "a tool cannot take *values", "take a list or a dict"),
    (star_kwargs, "a tool cannot take **values", "take a list or a dict"),
    (positional_only, "'x' is positional-only", "take the / out"),
    (
        wrong_default,
        "the default 'seven' of 'x' does not fit its type: Input should be a valid integer",
        "Change",
    ),
    (none_default, "the default None of 'x' does not fit its type", "X | None"),
    (
        constrained_default,
        "the default 0 of 'x' does not fit its type: Input should be greater than",
        "Change",
    ),
    (no_schema, "the type hint of 'sock' has no JSON Schema", "pydantic models"),
    (no_json_schema, "the type hint of 'callback' has no JSON Schema", "pydantic models"),
    (extra_is_no_json, "the type hint of 'x' has no JSON Schema", "pydantic models"),
    *(
        [(old_typed_dict, "the type hint of 'x' has no JSON Schema", "Import TypedDict from typing_extensions")]
        if sys.version_info < (3, 12)
        else []
    ),
    (class_variable, "the type hint of 'x'", ""),
    (unresolvable, "the type hint of 'x' cannot be resolved: NameError: name 'Nowhere'", "TYPE_CHECKING"),
    (
        unresolvable_inside,
        "the type hint of 'x' cannot be resolved: NameError: name 'Nowhere'",
        "TYPE_CHECKING",
    ),
    (unfinished_model, "the type hint of 'x' has no JSON Schema", ""),
    (two_contexts, "'a' and 'b' both take the context", "Keep one"),
    (generator, "a tool cannot be a generator", "as a list"),
    (async_generator, "a tool cannot be a generator", "as a list"),
    (functools.partial(generator), "a tool cannot be a generator", "as a list"),
    (naïve, "the name 'naïve' does not match [a-zA-Z0-9_-]{1,64}", "@tool(name="),
    (Method.run, "'self' is not bound", "tool(instance.method)"),
]


@pytest.mark.parametrize(("fn", "reason", "way_out"), FUNCTIONS)
def test_functions(fn: Any, reason: str, way_out: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        tool(fn)
    error = caught.value
    bottom = fn.func if isinstance(fn, functools.partial) else fn
    assert reason in error.message
    assert f"tool {bottom.__name__!r} ({__file__}:{bottom.__code__.co_firstlineno})" in error.message
    assert error.hint is not None
    assert way_out in error.hint
    assert isinstance(error, TypeError)


def good(x: int) -> None: ...


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"name": "has space"}, "'has space' does not match"),
    ({"name": ""}, "'' does not match"),
    ({"name": "n" * 65}, "does not match"),
    ({"name": "line\n"}, "does not match"),
    ({"name": 7}, "does not match"),
    ({"retries": 3}, "retries needs idempotent=True"),
    ({"retries": -1, "idempotent": True}, "retries=-1 is not a number of retries"),
    ({"retries": True, "idempotent": True}, "retries=True is not a number of retries"),
    ({"inline": True, "task_queue": "q"}, "no task_queue"),
    ({"task_queue": ""}, "task_queue is empty"),
    ({"timeout": 0}, "timeout=0 is not a positive number of seconds"),
    ({"timeout": -1.5}, "timeout=-1.5 is not"),
    ({"timeout": float("inf")}, "timeout=inf is not"),
    ({"timeout": float("nan")}, "timeout=nan is not"),
    ({"timeout": "60"}, "timeout='60' is not"),
    ({"timeout": True}, "timeout=True is not"),
]


@pytest.mark.parametrize(("options", "reason"), OPTIONS)
def test_options(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(DefinitionError, match=re.escape(reason)) as caught:
        tool(**options)(good)
    assert "tool 'good'" in caught.value.message
    assert __file__ in caught.value.message
    assert caught.value.hint


class Plain:
    """No __call__."""


class WithCall:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("thing", "reason", "way_out"),
    [
        (lambda x: x, "no type hint", "x: str"),
        (lambda: 1, "a lambda has no name", "name="),
        (Plain, "a class cannot be a tool", "a __call__ method"),
        (WithCall, "a class cannot be a tool", "Pass an instance: WithCall(…)"),
        (int, "a class cannot be a tool", "a __call__ method"),
        (Plain(), "is not callable", "a function"),
        (7, "is not callable", "a function"),
        (print, "cannot take *args", ""),
        (min, "parameters cannot be read", "Wrap it in a function"),
        (len, "is positional-only", ""),
        (tool(good), "is a tool already", "tool(that.fn"),
    ],
)
def test_what_is_no_function(thing: Any, reason: str, way_out: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        tool(thing)
    assert reason in caught.value.message
    assert way_out in (caught.value.hint or "")


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="needs_aproval"):
        tool(needs_aproval=True)(good)  # type: ignore[call-overload]


def test_no_return_hint_and_no_description_are_fine() -> None:
    def bare(x: int): ...  # type: ignore[no-untyped-def]

    assert as_tool(bare).description == ""


def test_a_policy_takes_a_call_and_a_context() -> None:
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    class Policy:
        def __call__(self, call: Any, ctx: Any, *more: Any) -> bool:
            return True

    for fits in (lambda call, ctx: call is ctx, lambda *both: bool(both), Policy(), functools.partial(Policy(), None)):
        assert tool(pay, needs_approval=fits).needs_approval is fits
    no_context: Any = lambda call, limit=100: call.arguments["amount"] > limit  # noqa: E731  # it would get the context
    for wrong in (
        lambda: True,
        lambda call: bool(call),
        lambda a, b, c: a is b is c,
        lambda a, *, b: a is b,
        no_context,
    ):
        with pytest.raises(DefinitionError, match="cannot be called with a call and a context"):
            tool(pay, needs_approval=wrong)


def test_what_is_no_tool_has_a_place_elsewhere() -> None:
    agent = Agent("kid", "openai:gpt-5")
    for wrong, hint in ((agent, r"subagents=\[…\]"), (background([agent]), r"\*background")):
        with pytest.raises(DefinitionError, match="cannot be a tool") as raised:
            Agent("a", "openai:gpt-5", tools=[wrong])
        assert re.search(hint, raised.value.hint or "")


class Topic(BaseModel):
    word: str


@pytest.mark.parametrize("options", [{}, {"input": Topic}])
@pytest.mark.parametrize(
    ("name", "says"), [("a b", "does not match"), ("n" * 65, "does not match"), ("__finish__", "own")]
)
def test_the_name_of_an_agent_as_a_tool(options: dict[str, Any], name: str, says: str) -> None:
    agent = Agent("kid", "openai:gpt-5", **options)
    with pytest.raises(DefinitionError, match=f"(?s){says}.*as_tool"):
        agent.as_tool(name)
    with pytest.raises(DefinitionError, match=f"(?s){says}.*delegate"):
        delegate([agent], name=name)
