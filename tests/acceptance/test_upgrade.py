"""Runs that the engine of version 1 carried over go on with today's: the same conversation, to the last byte.

The store that they were kept in is built again from what their histories say. Every message went through history once,
and a node's hash covers all before it: one differing byte would show.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.common import WorkflowIDConflictPolicy

from perdure import Agent, Client, Message, Run, tool
from perdure.ports import Commit, ModelRequest, Node, Outcome
from perdure.store import Chain, open_store
from perdure.testing import ScriptedProvider
from perdure.types.interface import WORKFLOW
from perdure.types.messages import ToolCallPart, ToolResultPart
from perdure.types.wire import ModelInput, ModelOutput, NewMessage
from tests.replay.record import HISTORIES
from tests.support import faults
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually

pytestmark = pytest.mark.server

V1 = HISTORIES / "v1"
STEPS = 12
"""Tool calls of the run that continued as new, as tests/replay/scenarios.py made it."""


def files(name: str) -> list[Any]:
    """The executions of a run, in order."""
    return sorted(V1.glob(f"{name}.*.json"), key=lambda file: int(file.suffixes[0][1:]))


def events(file: Any) -> list[dict[str, Any]]:
    return list(json.loads(file.read_text())["events"])


def plain(payloads: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(payloads["payloads"][0]["data"]))


def carried(file: Any) -> dict[str, Any]:
    """The input that an execution was started with."""
    return dict(plain(events(file)[0]["workflowExecutionStartedEventAttributes"]["input"]))


def activities(file: Any) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, input and result of each activity that completed."""
    scheduled: dict[str, tuple[str, dict[str, Any]]] = {}
    for event in events(file):
        if asked := event.get("activityTaskScheduledEventAttributes"):
            scheduled[event["eventId"]] = (asked["activityType"]["name"], plain(asked["input"]))
        if done := event.get("activityTaskCompletedEventAttributes"):
            yield (*scheduled[done["scheduledEventId"]], plain(done["result"]))


@dataclass
class Kept:
    """What the store of a run of version 1 had in it."""

    store_id: str
    nodes: list[Node]
    outcomes: list[Outcome]
    head: str

    async def into(self, engine: Engine) -> None:
        """Make it the store of ``engine``: under the same id, as a restored backup would be."""
        store = open_store(str(engine.store_url))
        await store.open()
        await store.commit(Commit(nodes=self.nodes))
        for outcome in self.outcomes:
            await store.commit(Commit(outcome=outcome))
        await store.close()
        faults.sql(engine.store_path, "UPDATE meta SET store_id = ?", self.store_id)


def kept(histories: list[Any]) -> Kept:
    """The transcript and the journal, from the executions in ``histories``. Checks every node's hash."""
    found = Kept("", [], [], "")
    texts: dict[str, str] = {}
    chain = Chain(None)  # type: ignore[arg-type]  # extends alone, and reads nothing
    for file in histories:
        for name, raw, result in activities(file):
            if name != "perdure.model":
                texts[result["key"]] = result["content"]
                found.outcomes.append(Outcome(result["key"], "tool", json.dumps(result).encode()))
                continue
            asked, output = ModelInput.model_validate(raw), ModelOutput.model_validate(result)
            node, blobs = chain.extend(asked.head, [*_fresh(asked, texts), _reply(output)])
            assert node.hash == output.head, "today's engine writes the same messages otherwise"
            assert blobs == []
            found.nodes.append(node)
            found.store_id, found.head = str(output.store_id), node.hash
    return found


def _fresh(asked: ModelInput, texts: dict[str, str]) -> Iterator[Message]:
    given = [item for item in asked.new if not isinstance(item, NewMessage)]
    if given:
        yield Message(
            role="tool",
            parts=tuple(
                ToolResultPart(call_id=item.call_id, name=item.name, content=texts[str(item.key)]) for item in given
            ),
        )
    for item in asked.new:
        if isinstance(item, NewMessage):
            yield Message.user(str(item.content), id=item.id)


def _reply(output: ModelOutput) -> Message:
    calls = [ToolCallPart(id=call.id, name=call.name, arguments=call.arguments or {}) for call in output.calls]
    said = Message.assistant(output.text).parts if output.text else ()
    return Message(
        role="assistant",
        parts=(*said, *calls),
        model=output.model,
        finish_reason=output.finish_reason,
        usage=output.usage,
    )


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def steps(request: ModelRequest) -> Any:
    """As the scenario's model, whose ids of calls were counted from the start of the run."""
    n = replied(request)
    return "Done." if n >= STEPS else ToolCallPart(id=f"call_{n + 1}", name="add", arguments={"a": n, "b": 1})


async def taken_over(client: Client, state: dict[str, Any]) -> Run:
    """The run under its own id: a conversation's rows in the store are kept by it."""
    handle = await client.temporal.start_workflow(
        WORKFLOW,
        state,
        id=state["state"]["context_id"],
        task_queue=client.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,  # left by a test that failed
    )
    return Run(client, handle)


RUN = files("continued_as_new")


@pytest.mark.parametrize("at", [1, 3, len(RUN) - 1])
async def test_a_run_that_version_1_carried_over_ends_as_it_did(engine: Engine, at: int) -> None:
    """Each of the states that it carried over; what came behind it in the history is done again, by today's engine."""
    whole, state = kept(RUN), carried(RUN[at])
    await kept(RUN[:at]).into(engine)
    assert state["state"]["schema_version"] == 1
    provider = ScriptedProvider(steps)
    async with engine.served(Agent("recorded", provider, tools=[add])) as client:
        run = await taken_over(client, state)
        response = await asyncio.wait_for(run.result(), 60)
    assert response.head == whole.head, "another conversation than version 1 had"
    assert response.content == "Done."
    assert response.iterations == STEPS + 1
    assert len(provider.requests) == STEPS + 1 - state["state"]["iterations"], "what was paid is not paid again"
    assert_closed(response.messages)
    assert users(response.messages) == ["Go.", *(f"message {n}" for n in range(5))]
    assert results(response.messages) == [str(n + 1) for n in range(STEPS)]


async def test_what_is_new_works_on_a_run_of_version_1(engine: Engine) -> None:
    """It is sent a message that it had, and another; it is asked for its turn, interrupted, and goes on."""
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        if users(request.messages)[-1] == "message 4":
            await gate()
        return f"{len(users(request.messages))} messages"

    state = carried(RUN[1])
    await kept(RUN[:1]).into(engine)
    async with engine.served(Agent("recorded", ScriptedProvider(reply), tools=[add])) as client:
        run = await taken_over(client, state)
        await eventually(lambda: gate.entered)
        turn = state["state"]["turn"]["task_id"]
        assert await run.handle.execute_update("send_message", {"content": "message 3", "id": "3"}) == {"task_id": turn}
        assert await run.handle.execute_update("send_message", "one more") == {"task_id": turn}
        assert (await run.turn().status()).state == "running"
        await run.interrupt("Stop that.")
        response = await asyncio.wait_for(run.result(), 60)
        await _goes_on(run)
    assert response.content == "8 messages"
    assert response.task_id == turn
    assert users(response.messages)[6:] == ["one more", "Stop that."]
    assert_closed(response.messages)


async def _goes_on(run: Run) -> None:
    """A run that has completed is sent a message."""
    turn = await run.send("And now?")
    response = await asyncio.wait_for(turn.result(), 60)
    assert response.content == "9 messages"
    assert_closed(response.messages)


async def test_a_run_that_was_cancelled_then_goes_on_now(engine: Engine) -> None:
    """The state before the cancellation, and nobody cancels it this time."""
    cancelled = files("continued_as_new_and_cancelled")
    state = carried(cancelled[-1])
    await kept(cancelled[:-1]).into(engine)
    provider = ScriptedProvider(lambda request: f"{replied(request)} replies")
    async with engine.served(Agent("recorded", provider, tools=[add])) as client:
        run = await taken_over(client, state)
        response = await asyncio.wait_for(run.result(), 60)
    assert response.content == f"{state['state']['iterations']} replies"
    assert_closed(response.messages)
