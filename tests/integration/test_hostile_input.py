"""What hostile or broken input does to a run on a real server: it is refused, and the run lives."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure import Agent
from perdure.loop.apply import apply_model
from perdure.loop.lifecycle import build_continuation_input, create_run_state
from perdure.testing import ScriptedProvider
from perdure.worker.replay import replay_histories
from perdure.workflows import steps
from tests.support.engine import Engine
from tests.support.histories import histories
from tests.support.wait import eventually

pytestmark = pytest.mark.server

DEEP = b"[" * 6_000 + b"]" * 6_000
BROKEN = {
    "no JSON": Payload(metadata={"encoding": b"json/plain"}, data=b'{"agent": '),
    "unknown encoding": Payload(metadata={"encoding": b"binary/encrypted"}, data=b"\x00\xff"),
    "no encoding": Payload(data=b"{}"),
    "no UTF-8": Payload(metadata={"encoding": b"json/plain"}, data=b'"\xff\xfe"'),
    "deep": Payload(metadata={"encoding": b"json/plain"}, data=b'{"agent":"a","message":' + DEEP + b"}"),
    "a number too long": Payload(metadata={"encoding": b"json/plain"}, data=b'{"agent":' + b"9" * 5_000 + b"}"),
}
UPDATES = ("send_message", "decide_approval", "revoke_approval", "answer_call")
SIGNALS = ("inject_user_message", "interrupt", "resume", "child_ended", "close", "probe")


def hello() -> Agent:
    return Agent("hello", ScriptedProvider(lambda request: f"Heard {len(request.messages)}."))


async def started(engine: Engine, start: Any) -> WorkflowHandle[Any, Any]:
    """A run that a plain client started."""
    temporal = await engine.temporal()
    run_id = f"plain-{uuid.uuid4().hex}"
    return await temporal.start_workflow("AgentWorkflow", start, id=run_id, task_queue=engine.task_queue)


async def failure(handle: WorkflowHandle[Any, Any]) -> ApplicationError:
    async with asyncio.timeout(30):
        with pytest.raises(WorkflowFailureError) as raised:
            await handle.result()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError)
    return cause


async def test_a_start_that_cannot_be_decoded_fails_at_once_and_nulls_are_as_good_as_what_is_left_out(
    engine: Engine,
) -> None:
    message = {"content": "hi", "auth_context": None, "auth_ref": None, "id": None, "by": None}
    nulls: list[dict[str, Any]] = [
        {"agent": "hello", "message": "hi", "auth_ref": None, "auth_context": None},
        {"agent": "hello", "message": message},
    ]
    async with engine.served(hello()):
        broken = {name: await started(engine, RawValue(payload)) for name, payload in BROKEN.items()}
        fine = [await started(engine, start) for start in nulls]
        causes = {name: (await failure(handle)).type for name, handle in broken.items()}
        assert [(await handle.result())["content"] for handle in fine] == ["Heard 1."] * 2
    assert causes == dict.fromkeys(BROKEN, "InvalidInputError")


async def test_handlers_refuse_what_cannot_be_decoded_and_the_run_lives(engine: Engine) -> None:
    async with engine.served(hello()) as client:
        turn = await client.send("hello", "one", id=f"live-{uuid.uuid4().hex}")
        assert (await turn.result()).content == "Heard 1."
        handle = turn.run.handle
        for payload in BROKEN.values():
            for name in SIGNALS:
                if name != "close":  # it takes no argument, so it does what it says
                    await handle.signal(name, RawValue(payload))
            for name in UPDATES:
                with pytest.raises(WorkflowUpdateFailedError) as refused:
                    await handle.execute_update(name, RawValue(payload))
                assert isinstance(refused.value.cause, ApplicationError)
                assert refused.value.cause.type == "InvalidInputError"
        await handle.signal("inject_user_message", {"content": "two", "auth_context": None, "auth_ref": None})
        await eventually(lambda: _turns(turn.run, 2))
        status = await turn.run.status()
        assert len(status.refused) == 10
        assert all("cannot be decoded" in why for why in status.refused)
        await turn.run.close()
        await turn.run.result()
        histories_made = await histories(turn.run)
    report = await replay_histories({str(n): one for n, one in enumerate(histories_made)})
    assert [one.error for one in report.histories] == [None] * len(histories_made)


async def _turns(run: Any, count: int) -> bool:
    status = await run.status()
    return bool(status.turn == count and status.state == "idle")


async def test_a_fault_of_the_engine_pauses_the_run_and_a_deploy_heals_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def broken(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        apply_model(*arguments)  # what it has done by then is undone
        raise TypeError("a fault of this engine")

    monkeypatch.setattr(steps, "apply_model", broken)
    asked: list[int] = []

    def reply(request: Any) -> str:
        asked.append(len(request.messages))
        return "Hello."

    agent = Agent("hello", ScriptedProvider(reply))
    async with engine.served(agent) as client:
        run = await client.start("hello", "Hi.")

        async def paused() -> bool:
            return (await run.status()).state == "paused"

        await eventually(paused)
        status = await run.status()
        assert status.reason is not None
        assert "TypeError: a fault of this engine" in status.reason
        assert status.iteration == 0, "the state is as it was before"
        await run.resume()
        await eventually(lambda: calls == 2)
        await eventually(paused)
    monkeypatch.setattr(steps, "apply_model", apply_model)
    async with engine.served(agent) as client:  # another process has nothing cached
        run = client.run(run.id)
        assert (await run.status()).state == "paused"
        await run.resume()
        assert (await run.result()).content == "Hello."
        assert asked == [1], "paid once"
        (history,) = await histories(run)
    report = await replay_histories({"mended": history})
    assert report.histories[0].error is None


async def test_a_state_is_taken_from_no_client(engine: Engine) -> None:
    async with engine.served(hello()) as client:
        victim = await client.start("hello", "mine", id=f"victim-{uuid.uuid4().hex}", max_history_events=20)
        await victim.result()
        state = build_continuation_input(create_run_state({"agent": "hello", "message": "evil"}, victim.id, "s"), "r")
        for start in (state, {"state": state["state"]}):
            assert "state: Extra inputs" in (await failure(await started(engine, start))).message
