"""Many iterations under a window of 20,000 tokens: the run keeps working, and so does the provider's cache.

The model refuses what is longer than its window, as APIs do. What a cache can be read for is computed as APIs do it:
the bytes that a request has in common with the one before, from its first byte on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from perdure import Agent, Compaction, Message, tool
from perdure.calls.summary import SUMMARY_PROMPT
from perdure.errors import ContextLengthError
from perdure.ports.model import Completed, ModelRequest
from perdure.providers.anthropic_request import encode_request
from perdure.testing import ScriptedProvider
from perdure.types.messages import Part, TextPart, ThinkingPart, ToolCallPart, Usage
from tests.support.checks import assert_closed
from tests.support.engine import Engine

WINDOW = 20_000
SYSTEM = "You look at one thing after the other, and say what you have seen. " * 20


@tool(inline=True)
def look(at: int, why: str) -> str:
    """Look at a thing."""
    return f"thing {at}: " + f"seen at {at} " * 60


@dataclass
class Model:
    """Calls the tool so many times; counts tokens by the bytes of the request in Anthropic's format."""

    iterations: int
    refused: int = 0
    summaries: int = 0
    looks: int = 0
    bodies: list[bytes] = field(default_factory=list)
    """Of the requests of iterations, in order."""

    def __call__(self, request: ModelRequest) -> Completed | Exception:
        body = encode_request(request, origin="test").body
        tokens = len(body) // 4
        if tokens > WINDOW:
            self.refused += 1
            return ContextLengthError(f"prompt is too long: {tokens} tokens > {WINDOW} maximum")
        usage = Usage(input_tokens=tokens, output_tokens=60)
        if SUMMARY_PROMPT in request.messages[-1].text:
            self.summaries += 1
            return Completed((TextPart(text=f"{self.looks} things were looked at. " * 20),), "stop", usage, "m")
        self.bodies.append(without_marks(body))
        if self.looks == self.iterations - 1:
            return Completed((TextPart(text="All seen."),), "stop", usage, "m")
        self.looks += 1
        parts: tuple[Part, ...] = (
            ThinkingPart(text=f"I think about {self.looks}. " * 20),
            ToolCallPart(id=f"call_{self.looks}", name="look", arguments={"at": self.looks, "why": "because " * 20}),
        )
        return Completed(parts, "tool_calls", usage, "m")


def without_marks(body: bytes) -> bytes:
    """A request without its breakpoints, which move from call to call and are no content."""
    return body.replace(b',"cache_control":{"type":"ephemeral"}', b"")


def shares(bodies: list[bytes]) -> list[float]:
    """Of each request but the first, how much of it the one before began with."""
    return [in_common(before, after) / len(after) for before, after in pairwise(bodies)]


def in_common(before: bytes, after: bytes) -> int:
    """With how many bytes both begin."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[:middle] == after[:middle] else (low, middle - 1)
    return low


@dataclass(frozen=True)
class Case:
    """``least``: share of all input that a cache is read for; ``most_steps``: of calls for which it is of no use."""

    ways: list[Compaction]
    least: float
    most_steps: float
    iterations: int = 150
    refused: int = 0


CASES = {
    "summaries": Case([Compaction.summarise(at=15_000, keep_last=10)], 0.94, 0.03),
    "window": Case([Compaction.window(tokens=15_000)], 0.93, 0.05),
    "views and summaries": Case(
        [Compaction.truncate(after=10), Compaction.clear_results(after=10), Compaction.summarise(at=15_000)],
        0.90,
        0.06,
    ),
    "refused calls alone": Case([Compaction.summarise(at=1_000_000, keep_last=10)], 0.94, 0.03, refused=3),
}


@pytest.mark.parametrize("name", CASES)
async def test_150_iterations_under_a_window_of_20_000_tokens(engine: Engine, name: str) -> None:
    await under_a_window(engine, name, CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["summaries", "window"])
async def test_500_iterations_under_a_window_of_20_000_tokens(engine: Engine, name: str) -> None:
    await under_a_window(engine, name, replace(CASES[name], iterations=500))


async def under_a_window(engine: Engine, name: str, case: Case) -> None:
    model = Model(case.iterations)
    provider = ScriptedProvider(model)
    agent = Agent("looker", provider, instructions=SYSTEM, tools=[look], max_iterations=600, compaction=case.ways)
    async with engine.served(agent, stream=False) as client:
        run = await client.start("looker", "Look at everything.")
        response = await run.result()
        full = await run.transcript(full=True)
    assert (response.content, response.iterations) == ("All seen.", case.iterations)
    check_whole(full, case.iterations)
    found = shares(model.bodies)
    sizes = [len(body) for body in model.bodies[1:]]
    cached = sum(share * size for share, size in zip(found, sizes, strict=True)) / sum(sizes)
    steps = sum(share < 0.5 for share in found) / len(found)
    between = [share for share in found if share >= 0.5]
    print(
        f"{name}: {cached:.1%} of all input was in the cache ({sum(between) / len(between):.1%} between compactions); "
        f"{steps:.1%} of the calls began anew; {model.summaries} summaries; {model.refused} refused calls; "
        f"largest request {max(map(len, model.bodies)) // 4:,} tokens"
    )
    assert cached >= case.least
    assert steps <= case.most_steps
    assert model.refused <= case.refused


def check_whole(full: list[Message], iterations: int) -> None:
    """Everything that was ever said is there, once and in order."""
    said = [message for message in full if message.replaces is None]
    looked = [part.arguments["at"] for message in said for part in message.tool_calls]
    assert looked == list(range(1, iterations))
    results: list[Any] = [part.content.partition(":")[0] for message in said for part in message.tool_results]
    assert results == [f"thing {at}" for at in looked]
    assert_closed(full)
    assert len(json.dumps([message.model_dump(mode="json") for message in full])) > iterations * 1000
