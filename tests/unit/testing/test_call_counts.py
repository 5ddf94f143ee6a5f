"""How many calls of perdure's own functions an iteration costs, and a piece of a streamed reply: no clock, no server.

Interpreter frames are most of what the engine adds to the CPU time of an agent, and a count of them is the same on each
machine. When a test here fails, read its list of functions against that of the commit before: what is new there is
asked once more for each iteration. When a change makes the engine cheaper, lower the constant to the figure that
``pytest -rP`` prints for the test; raise it only with a reason in the commit.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import perdure
from perdure import Agent, tool
from perdure.testing import call, scripted
from perdure.testing.provider import Reply

CALLS_OF_ITERATION = 1166
CALLS_OF_INLINE_ITERATION = 874
CALLS_OF_PIECE = 10
TOLERANCE = 1.05
TRIES = 3
"""Threads that hand over at an unhappy moment add some calls, and never leave one out: the fewest count."""

PACKAGE = f"{Path(perdure.__file__).parent}/"
IN_PLACE_OF_OTHERS = tuple(f"{PACKAGE}{part}" for part in ("testing/", "store/"))
"""What stands there for Temporal, the model and the disk."""
OF_THE_ENGINE = tuple(f"{PACKAGE}store/{module}.py" for module in ("chain", "cache"))
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Frames on Python 3.11 alone."""


@tool(idempotent=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(idempotent=True, inline=True)
def add_inline(a: int, b: int) -> int:
    """Add two numbers at once."""
    return a + b


@contextmanager
def counting() -> Iterator[Counter[CodeType]]:
    """Count the calls into perdure's own files that the threads make which start within the block: those of the
    engine. What is done in place of Temporal, the store and the model does not count."""
    counts: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            counts[code] += 1

    before = threading.getprofile()
    threading.setprofile(count)
    try:
        yield counts
    finally:
        threading.setprofile(before)
    for code in list(counts):
        is_in_place = code.co_filename.startswith(IN_PLACE_OF_OTHERS) and code.co_filename not in OF_THE_ENGINE
        if is_in_place or code.co_name in COMPREHENSIONS:
            del counts[code]


def run(agent: Agent, replies: Sequence[Reply]) -> Counter[CodeType]:
    with counting() as counts, scripted(agent, replies):
        assert agent.call_sync("Go.").content
    return counts


def check(agent: Agent, replies: Callable[[int], Sequence[Reply]], few: int, many: int, recorded: int) -> None:
    """Count the calls for each of the things of which ``replies`` scripts a number, when all of it is warm."""
    run(agent, replies(2))
    for _ in range(TRIES):
        counts = run(agent, replies(many))
        counts.subtract(run(agent, replies(few)))
        calls = round(counts.total() / (many - few))
        if calls <= recorded * TOLERANCE:
            break
    summary = describe(counts, many - few, calls, recorded)
    print(summary)
    assert calls <= recorded * TOLERANCE, summary


def describe(counts: Counter[CodeType], things: int, calls: int, recorded: int) -> str:
    modules: Counter[str] = Counter()
    for code, number in counts.items():
        modules[name_module(code)] += number
    return "\n".join(
        [
            f"{calls} calls, {recorded} recorded. The most-called functions:",
            *(
                f"{number / things:7.1f} {name_module(code)}:{code.co_qualname}"
                for code, number in counts.most_common(10)
            ),
            "The modules with the most calls:",
            *(f"{number / things:7.1f} {name}" for name, number in modules.most_common(10)),
        ]
    )


def name_module(code: CodeType) -> str:
    return code.co_filename.removeprefix(PACKAGE)


def script_tool_calls(name: str) -> Callable[[int], Sequence[Reply]]:
    return lambda iterations: [*(call(name, a=index, b=1) for index in range(iterations)), "Done."]


def test_an_iteration_with_a_tool_costs_no_more_calls() -> None:
    agent = Agent("adder", "openai:gpt-5-mini", tools=[add], max_iterations=100)
    check(agent, script_tool_calls("add"), 10, 40, CALLS_OF_ITERATION)


def test_an_iteration_with_an_inline_tool_costs_no_more_calls() -> None:
    agent = Agent("inliner", "openai:gpt-5-mini", tools=[add_inline], max_iterations=100)
    check(agent, script_tool_calls("add_inline"), 10, 40, CALLS_OF_INLINE_ITERATION)


def test_a_piece_of_a_streamed_reply_costs_no_more_calls() -> None:
    agent = Agent("streamer", "openai:gpt-5-mini")
    check(agent, lambda pieces: ["word " * pieces], 100, 1100, CALLS_OF_PIECE)
