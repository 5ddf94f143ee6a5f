"""``perdure.contrib.hooks``: what they count is right also when every turn is another worker's."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Client, HookSet, PerdurePlugin, Response, RunContext, tool
from perdure.contrib.hooks import (
    TokenCollector,
    ToolUsage,
    audit_log,
    auto_summarise,
    check_audit_log,
    notify_every,
    redact,
    warn_on_tokens,
)
from perdure.errors import DefinitionError, HookError
from perdure.ports.model import Completed
from perdure.testing import ScriptedProvider, call
from perdure.types.compaction import Compaction
from perdure.types.messages import TextPart, ThinkingPart, Usage
from tests.support.checks import results, users
from tests.support.engine import Engine
from tests.support.scripts import calls_then

KEY = "sk-abcdefghijklmnopqrstuvwxyz"


@tool
def look(n: str) -> str:
    """Look."""
    if n == "1":
        raise ValueError("nothing there")
    return f"seen {n}"


async def turns(engine: Engine, hooks: Callable[[], list[HookSet]], count: int, **agent: Any) -> tuple[Client, Any]:
    """A session of ``count`` turns, each served by a worker of its own; the client and the session's last answer."""
    for n in range(count):
        options = {"tools": [look], **agent}
        served = Agent("watched", ScriptedProvider(calls_then(2 * n + 2, "look", n="{n}")), hooks=hooks(), **options)
        async with engine.served(served) as client:
            turn = await client.send("watched", f"Turn {n}.", id=f"{engine.task_queue}-s", message_id=f"m{n}")
            response: Response = await turn.result()
    return client, response


async def test_tokens_and_tools_are_counted_across_workers(engine: Engine) -> None:
    collector, usage = TokenCollector(), ToolUsage()
    client, _ = await turns(engine, lambda: [TokenCollector(), ToolUsage()], 2)
    run = client.run(f"{engine.task_queue}-s")
    transcript = await run.transcript()
    paid = [message.usage for message in transcript if message.usage is not None]
    sums = await collector.of(client.memory, run.id)
    assert sums["calls"] == len(paid) == 5
    assert sums["input_tokens"] == sum(one.input_tokens for one in paid)
    assert sums["output_tokens"] == sum(one.output_tokens for one in paid)
    assert await usage.of(client.memory, run.id) == {"look": {"calls": 3, "errors": 1}}
    assert await usage.of(client.memory, run.id[:-1]) == {}
    assert await collector.of(client.memory, "another") == {}


async def test_notices_come_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    warned: list[int] = []
    notified: list[tuple[str, int]] = []

    def warn(ctx: RunContext, tokens: int) -> None:
        warned.append(tokens)

    async def notify(ctx: RunContext, iteration: int) -> str:
        notified.append((ctx.run_id, iteration))
        return "not a reply"

    def hooks() -> list[HookSet]:
        return [warn_on_tokens(1, warn), notify_every(2, notify), warn_on_tokens(10, namespace="logged")]

    with caplog.at_level(logging.WARNING, "perdure.hooks"):
        _, response = await turns(engine, hooks, 2)
    run = f"{engine.task_queue}-s"
    assert len(warned) == 1, "once for the run, whichever worker counts"
    assert warned[0] > 1
    assert notified == [(run, 2), (run, 2)], "the second iteration of each turn"
    assert len([line for line in caplog.messages if line.startswith(f"run {run} of agent watched has used")]) == 1
    assert response.content == "Done."


async def test_a_conversation_is_summed_up_at_the_threshold(engine: Engine) -> None:
    def reply(request: Any) -> Any:
        if users(request.messages)[-1] == "Sum up.":
            return "They looked around."
        return calls_then(20, "look", n="{n}")(request)

    provider = ScriptedProvider(reply)
    agent = Agent("long", provider, tools=[look], hooks=[auto_summarise(100, keep_last=2, prompt="Sum up.")])
    assert agent.compaction is not None
    assert agent.compaction.summarise == Compaction.summarise(at=100, keep_last=2, prompt="Sum up.")
    async with engine.served(agent, hooks=[TokenCollector()]) as client:
        run = await client.start("long", "Look around.")
        await run.result()
        transcript = await run.transcript()
    assert any(message.replaces is not None for message in transcript)
    with pytest.raises(DefinitionError, match=r"worker: .* summarises the conversations of an agent"):
        PerdurePlugin([], hooks=[auto_summarise(1000)])
    both = Agent("both", provider, compaction=Compaction.window(messages=10), hooks=[auto_summarise(1000)])
    assert both.compaction is not None
    assert (both.compaction.window is not None, both.compaction.summarise is not None) == (True, True)


async def test_secrets_reach_neither_store_nor_model(engine: Engine) -> None:
    @tool
    def env() -> str:
        """The environment."""
        return f"KEY={KEY}"

    def reply(request: Any) -> Any:
        if len(provider.requests) == 1:
            return call("env")
        parts = (
            ThinkingPart(text=f"signed {KEY}", provider="x", opaque={"signature": "s"}),
            ThinkingPart(text=f"It is {KEY}."),
            TextPart(text=f"It is {KEY}.", opaque={"raw": KEY}),
        )
        return Completed(parts=parts, usage=Usage(input_tokens=1))

    provider = ScriptedProvider(reply)
    agent = Agent("masked", provider, tools=[env], hooks=[redact(), redact(["(?i)hunter2"], mask="•")])
    async with engine.served(agent, stream=False) as client:
        run = await client.start("masked", "My password is Hunter2.", id=f"{engine.task_queue}-m")
        response = await run.result()
    assert users(response.messages) == ["My password is •."]
    assert results(response.messages) == ["KEY=[redacted]"]
    assert response.content == "It is [redacted]."
    thoughts = [part for part in response.messages[-1].parts if isinstance(part, ThinkingPart)]
    assert [part.text for part in thoughts] == ["It is [redacted]."], "one that is signed cannot be changed"
    sent = json.dumps(
        [message.model_dump(mode="json") for request in provider.requests for message in request.messages]
    )
    for secret in (KEY, "Hunter2"):
        assert secret not in sent
        assert secret.encode() not in b"".join(path.read_bytes() for path in engine.folder.glob("store.db*"))


async def test_an_audit_log_says_everything_in_order_and_shows_what_was_changed(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    agent = Agent("audited", ScriptedProvider(calls_then(2, "look", n="{n}")), tools=[look])
    for _ in range(2):
        async with engine.served(agent, hooks=[audit_log(path)]) as client:
            await (await client.start("audited", "Go.")).result()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    asked, said = "model.asked", "model.said"
    first = ["message", asked, said, "tool.called", "tool.done", asked, said, "tool.called", "error", "tool.done"]
    assert [line["event"] for line in lines] == [*first, asked, said, "finished"] * 2
    assert {line["run_id"] for line in lines[:13]} == {lines[0]["run_id"]} != {lines[13]["run_id"]}
    assert (lines[3]["arguments"], lines[4]["text"], lines[9]["error"]) == ({"n": "0"}, "seen 0", True)
    assert check_audit_log(path) == 26
    whole = path.read_bytes()
    for damaged in (whole.replace(b"seen 0", b"seen 7", 1), whole.replace(whole.splitlines()[7] + b"\n", b"")):
        path.write_bytes(damaged)
        with pytest.raises(HookError, match=r"audit log .*: line \d+ does not follow"):
            check_audit_log(path)


async def test_an_audit_log_goes_on_behind_a_line_that_was_cut_off(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    agent = Agent("audited", ScriptedProvider(lambda _: "Done."), hooks=[audit_log(path, content=False)])
    async with engine.served(agent) as client:
        await (await client.start("audited", "A secret.")).result()
        path.write_bytes(path.read_bytes() + b'{"at": "2026')
        await (await client.start("audited", "A secret.")).result()
    assert check_audit_log(path) == 9
    assert b"secret" not in path.read_bytes()
    assert b"text_sha256" in path.read_bytes()


async def test_an_audit_log_finds_its_last_line_whatever_its_length(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    agent = Agent("audited", ScriptedProvider(lambda _: "Done."), hooks=[audit_log(path)])
    async with engine.served(agent) as client:
        for kib in (63, 64, 65, 127, 128, 200, 900):
            await (await client.start("audited", "x" * (kib << 10))).result()
        path.write_bytes(path.read_bytes() + b'{"at": "' + b"2" * 200_000)
        await (await client.start("audited", "x")).result()
    assert check_audit_log(path) == 4 * 8 + 1


async def test_a_line_that_cannot_be_written_fails_the_call(engine: Engine, tmp_path: Path) -> None:
    hooks = [audit_log(tmp_path / "no" / "folder.jsonl")]
    async with engine.served(Agent("audited", ScriptedProvider(["Done."]), hooks=hooks)) as client:
        run = await client.start("audited", "Go.")
        with pytest.raises(HookError, match=r"the hook audit_log .* failed: FileNotFoundError"):
            await run.result()


def test_what_they_are_given_is_checked() -> None:
    with pytest.raises(DefinitionError, match="redact: a pattern is not a regular expression"):
        redact(["("])
    with pytest.raises(DefinitionError, match="notify_every: n must be a whole number of at least 1, not 0"):
        notify_every(0, print)
    with pytest.raises(DefinitionError, match="warn_on_tokens: limit"):
        warn_on_tokens(True)
