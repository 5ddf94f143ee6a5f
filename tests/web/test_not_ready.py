"""A run that Temporal holds requests back from for the moment: no client takes that for the end of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from temporalio.service import RPCStatusCode

from perdure import Agent, Client, tool
from perdure.client import decisions
from perdure.errors import PerdureError, RunNotReadyError
from perdure.testing import ScriptedProvider, call
from perdure.testing.fake_service import InProcessService, build_rpc_error
from perdure.web import sessions
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import ADA, serve

NOT_READY = "Unable to perform workflow execution update due to Workflow Task in failed state."
REFUSALS = {
    "failed": (RPCStatusCode.FAILED_PRECONDITION, NOT_READY),
    "busy": (RPCStatusCode.RESOURCE_EXHAUSTED, "Workflow is busy."),
    "full": (RPCStatusCode.RESOURCE_EXHAUSTED, "limit on number of concurrent in-flight updates has been reached (10)"),
    "aborted": (RPCStatusCode.UNAVAILABLE, "workflow update was aborted"),
}


@tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay a person."""
    return f"paid {to}"


def payer() -> Agent:
    return Agent("payer", ScriptedProvider([call("pay", to="bob"), "Done.", "Again.", "Again."]), tools=[pay])


class Door:
    """Refuses updates, all or so many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        self._left = 0
        self._refusal = REFUSALS["failed"]
        inner = InProcessService._on_update_workflow_execution

        async def update(service: InProcessService, request: Any) -> Any:
            if self._left > 0:
                self._left -= 1
                self.refused += 1
                raise build_rpc_error(*self._refusal)
            return await inner(service, request)

        monkeypatch.setattr(InProcessService, "_on_update_workflow_execution", update)

    @contextmanager
    def refuse(self, refusal: str = "failed", times: int = 1_000_000) -> Iterator[None]:
        self._refusal, self._left = REFUSALS[refusal], times
        try:
            yield
        finally:
            self._left = 0


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(monkeypatch)


async def _start(client: Client) -> Any:
    run = await client.start("payer", "Pay bob.")

    async def asks() -> bool:
        return bool((await run.status()).approvals)

    await eventually(asks)
    return run


@pytest.mark.fault(
    "Temporal",
    "Temporal holds a request back for now.",
    "Clients ask again. After that they say that there is no answer for now (503), not that the run has failed.",
)
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_client_sends_again_within_the_delivery(engine: Engine, door: Door, refusal: str) -> None:
    async with engine.served(payer()) as client:
        run = await _start(client)
        with door.refuse(refusal, times=2):
            assert (await run.approve()).state == "approved"
        assert (await run.result()).content == "Done."
        with door.refuse(refusal, times=2):
            turn = await run.send("More.", message_id="m-1")
        assert (await turn.result()).content == "Again."
        with door.refuse(refusal, times=2):
            new = await client.send("payer", "More.", id=run.id, message_id="m-2")
        assert (await new.result()).content == "Again."
        assert door.refused == 6


async def test_the_inbox_has_the_run(engine: Engine, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_memo(*_: Any) -> None:
        return None

    monkeypatch.setattr("perdure.client.inbox.read_pending_memo", no_memo)  # as in a namespace without the attribute
    async with engine.served(payer()) as client:
        run = await _start(client)
        with door.refuse(times=3):
            assert [pending.run_id for pending in await client.approvals()] == [run.id]


async def test_what_is_no_answer_is_no_end_of_the_run(
    engine: Engine, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "_READY_SECONDS", 0.3)
    async with engine.served(payer()) as client:
        run = await _start(client)
        with door.refuse():
            with pytest.raises(RunNotReadyError, match="takes no requests at present: Unable to perform") as caught:
                await run.deny("call_0", hash=(await _hash(client, run)))
            assert caught.value.retryable
            status = await run.status()
            assert (status.state, bool(status.approvals)) == ("waiting", True)
        assert (await run.approve()).state == "approved"


async def _hash(client: Client, run: Any) -> str:
    return (await run.status()).approvals[0].hash


def build_requests(run: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """A message to the run, in each protocol that sends one."""
    text = {"id": "m", "role": "user"}
    agui = {"threadId": run, "runId": "r1", "state": {}, "messages": [{**text, "content": "Hi."}], "tools": []}
    return {
        "native": (f"/v1/sessions/{run}/events", {"type": "message", "content": "Hi."}),
        "openai": ("/openai/v1/chat/completions", {"model": "payer", "messages": [{"role": "user", "content": "Hi."}]}),
        "responses": ("/openai/v1/responses", {"model": "payer", "input": "Hi."}),
        "agui": ("/agui/payer", {**agui, "context": [], "forwardedProps": {}}),
        "vercel": ("/ui/payer", {"id": run, "messages": [{**text, "parts": [{"type": "text", "text": "Hi."}]}]}),
        "decision": ("/v1/approvals:decide", {}),
    }


@pytest.mark.parametrize("protocol", build_requests(""))
async def test_http_says_503_and_when_to_come_back(
    engine: Engine, door: Door, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setattr(decisions, "_READY_SECONDS", 0.3)
    monkeypatch.setattr(sessions, "MESSAGE_SECONDS", 0.3)
    async with engine.served(payer()) as client:
        run = await _start(client)
        pending = (await run.status()).approvals[0]
        decision = {"run_id": run.id, "call_id": pending.call_id, "hash": pending.hash, "decision": "approve"}
        async with serve(client, ADA) as service, service.connect() as http:
            path, body = build_requests(run.id)[protocol]
            if protocol in ("openai", "responses"):
                http.headers["x-perdure-session"] = run.id
            with door.refuse():
                url = service.url.removesuffix("/v1") + path
                answer = await http.post(url, json=body or {"decisions": [decision]})
            assert door.refused
            if protocol == "decision":
                [result] = answer.json()["results"]
                assert (result["problem"]["status"], result["problem"]["error"]) == (503, "RunNotReadyError")
            else:
                assert answer.status_code == 503, answer.text
                assert answer.headers["retry-after"] == "1"
        await run.approve()
        assert (await run.result()).content == "Done."


async def test_a_delivery_is_bounded_by_its_caller(engine: Engine, door: Door) -> None:
    async with engine.served(payer()) as client:
        run = await _start(client)
        with door.refuse(), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await run.send("More.")
        with pytest.raises(PerdureError):
            await client.run("none").send("More.")
