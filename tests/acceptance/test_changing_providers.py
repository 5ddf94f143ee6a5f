"""A conversation that was begun on one provider goes on on another, and comes back, without a refused request.

The servers are ours, and as strict as the APIs are: about the order of roles, a result for every call, ids, signatures
and sealed thoughts that are not their own or were changed, and what a message may hold.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from perdure import Agent, File, tool
from perdure.types.messages import ThinkingPart, iter_file_parts
from tests.support.apis import FORMATS, Says, StrictApi, opaque_in, strict_api
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine

PNG = bytes.fromhex("89504e470d0a1a0a") + b"a picture"
PDF = b"%PDF-1.7 a report"


@tool
def draw(what: str) -> list[Any]:
    """Draw a picture, and write a report about it."""
    return [
        f"drawn: {what}",
        File(PNG, name="drawing.png"),
        File(PDF, name="report.pdf"),
        File(b"a,b\n1,2\n", name="t.csv"),
    ]


@tool
def broken() -> str:
    """Fail."""
    raise ValueError("it is broken")


def turn(who: str, *, strange: bool = True) -> list[Says]:
    """A turn with everything: thoughts, text, calls that succeed, fail, and are no calls."""
    calls: list[tuple[str, Any]] = [("draw", {"what": f"{who}'s cat"}), ("broken", {})]
    if strange:
        calls += [("draw", '{"what": '), ("no such tool!", {"deep": {"er": [1, None, "ü"]}})]
    return [
        Says(f"{who} begins.", calls, thinking=f"{who} thinks"),
        Says("", [("draw", {"what": "a dog"})], thinking=f"{who} thinks again"),
        Says(f"{who} is done.", thinking=f"{who} concludes"),
    ]


PAIRS = [(first, second) for first in FORMATS for second in FORMATS]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a} to {b}" for a, b in PAIRS])
async def test_a_conversation_goes_on_elsewhere_and_comes_back(engine: Engine, first: str, second: str) -> None:
    await goes_on_and_comes_back(engine, first, second, "")


OLDER = {"claude-sonnet-4-5": "anthropic", "gemini-2.5-flash": "google"}
"""Models that are stricter about thinking, and about files in results, than those of today."""


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("older", OLDER)
async def test_a_conversation_goes_on_with_an_older_model(engine: Engine, first: str, older: str) -> None:
    await goes_on_and_comes_back(engine, first, OLDER[older], older)


async def goes_on_and_comes_back(engine: Engine, first: str, second: str, model: str) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(strict_api(first))
        other = one if second == first else await stack.enter_async_context(strict_api(second))
        target = f"{other.provider}:{model or other.name}"
        agent = Agent("a", one.model, instructions="Draw.", tools=[draw, broken], settings={"reasoning_effort": "low"})
        async with engine.served(agent) as client:
            said = [
                "Look at these.",
                File(PNG, name="cat.png"),
                File(PDF, name="cat.pdf"),
                File(b"# Cats", name="cats.md"),
            ]
            one.replies = turn("Ana")
            run = await client.start("a", said, mode="session")
            contents = [(await run.turn().result()).content]
            other.replies = turn("Bo")
            contents.append((await (await run.send("Go on.", override={"model": target})).result()).content)
            one.replies = turn("Cy")
            begun = len(one.requests)
            response = await (await run.send(["Once more.", File(PNG)])).result()
            contents.append(response.content)
            await run.close()
        assert (one.refused, other.refused) == (0, 0)
        assert contents == ["Ana is done.", "Bo is done.", "Cy is done."]
        assert_closed(response.messages)
        thoughts = [part.text for m in response.messages for part in m.parts if isinstance(part, ThinkingPart)]
        assert thoughts == [
            f"{who} {how}" for who in ("Ana", "Bo", "Cy") for how in ("thinks", "thinks again", "concludes")
        ]
        assert sum(1 for _ in iter_file_parts(response.messages)) == 4 + 3 * 6
        assert results(response.messages)[1] == "ValueError: it is broken"
        if other is not one:
            nothing_foreign(one, other, begun)


def nothing_foreign(one: StrictApi, other: StrictApi, begun: int) -> None:
    """Each was told all that was said, was sent back what it had given itself, and nothing of the other's."""
    for request in other.requests:
        assert not opaque_in(request, one.format)
        assert "Ana thinks" not in json.dumps(request)
        assert "Ana begins." in json.dumps(request)
    for request in one.requests[begun:]:
        assert not opaque_in(request, other.format)
        assert "Bo thinks" not in json.dumps(request)
        assert "Bo begins." in json.dumps(request)
        assert opaque_in(request, one.format)
