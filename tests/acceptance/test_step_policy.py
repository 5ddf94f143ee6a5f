"""A policy that uses the clock, dice, files and HTTP: its run replays exactly, and goes on with other code."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from perdure import Run
from tests.servers.http import Answer, HttpServer, Request
from tests.servers.model_server import Call, OpenAIServer, Reply
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine, side_by_side

pytestmark = pytest.mark.server

ITERATIONS = 4


def model(request: dict[str, Any], n: int) -> Reply:
    """Looks at something until it has been told of enough; how long a conversation is the policy decides."""
    said = [str(message["content"]) for message in request["messages"] if message["role"] == "user"]
    if any(text.startswith((f"old {ITERATIONS}:", f"new {ITERATIONS}:")) for text in said):
        return Reply(text="Done.")
    return Reply(calls=[Call("look", {"n": str(n)}, id=f"call_{n}")])


async def facts(_: Request, answer: Answer) -> None:
    """Says something else each time."""
    await answer.send(200, str(uuid.uuid4()).encode())


async def _resumed(engine: Engine, point: str | None) -> tuple[Run, list[dict[str, Any]]]:
    """A run whose worker is killed at ``point`` of the second model call, and finished by one with other code."""
    requests: list[dict[str, Any]] = []

    def answered(request: dict[str, Any]) -> Reply:
        requests.append(request)
        return model(request, len(requests))

    async with OpenAIServer(answered) as server, HttpServer(facts) as other:
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_FACTS": f"http://127.0.0.1:{other.port}/"}
        first = await engine.process("stepping", **settings, **({"TEST_STEP_KILL": point} if point else {}))
        client = await engine.client()
        run = await client.start("stepping", "Go.")
        if point:
            await first.gone()
            await engine.process("stepping", **settings, TEST_POLICY="new")
        response = await asyncio.wait_for(run.result(), 60)
    assert response.content == "Done."
    assert_closed(response.messages)
    assert len(results(response.messages)) >= 1
    return run, requests


def policies(engine: Engine) -> list[str]:
    return [entry["key"] for entry in engine.ledger.entries("policy")]


@pytest.mark.slow
async def test_a_policy_replays_and_its_run_goes_on_with_other_code(engine: Engine) -> None:
    """Each history that a worker process had a part in is replayed at the end."""
    scenarios = {
        "what it decided is what is recorded": _not_killed,
        "a reply that is not recorded is decided on again, by the new code": _killed_before_the_record,
        "a recorded step is not taken again, and the new code goes on from it": _killed_behind_the_record,
    }
    await side_by_side(engine, scenarios)


async def _not_killed(engine: Engine) -> None:
    run, requests = await _resumed(engine, None)
    messages = await run.transcript()
    assert policies(engine) == [f"old {n}" for n in range(1, ITERATIONS + 1)]
    assert [text.split(":")[0] for text in users(messages)] == ["Go.", *policies(engine)]
    said = [str(one["content"]) for one in requests[-1]["messages"] if one["role"] == "user"]
    assert said == users(messages)
    settings = {(one.get("temperature"), one.get("seed")) for one in requests[1:]}
    assert len(settings) == ITERATIONS, "each step had settings of its own"


async def _killed_before_the_record(engine: Engine) -> None:
    run, requests = await _resumed(engine, "model.answered")
    assert policies(engine)[:2] == ["old 1", "new 1"]
    messages = await run.transcript()
    assert not [text for text in users(messages) if text.startswith("old")]
    assert [one.get("temperature") for one in requests[2:]] == [1.0] * (len(requests) - 2)


async def _killed_behind_the_record(engine: Engine) -> None:
    run, requests = await _resumed(engine, "model.recorded")
    assert policies(engine)[:2] == ["old 1", "new 2"]
    kept = requests[1]["temperature"], requests[1]["seed"]
    assert [one.get("seed") for one in requests[2:]] == [kept[1]] * (len(requests) - 2), "kept by the old code"
    assert {one.get("temperature") for one in requests[2:]} == {1.0}
    messages = await run.transcript()
    assert [text.split(":")[0] for text in users(messages)][-1] == f"new {ITERATIONS}"
