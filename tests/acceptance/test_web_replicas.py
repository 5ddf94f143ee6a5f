"""A client of the native HTTP API loses its replica and its worker, and ends with what the transcript has at another.

Both are real processes, ended by SIGKILL. A follower keeps the number of its last event and the text so far, no more.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.console.test_inbox import row_form
from tests.support import faults
from tests.support.engine import Engine
from tests.support.pages import Browser
from tests.support.replicas import Replicas, replicas_of
from tests.support.wait import eventually
from tests.support.web import read_frames

pytestmark = [pytest.mark.server, pytest.mark.slow]


class Follower:
    """What a client makes of a session's events: the text of each reply, and the calls that wait."""

    def __init__(self) -> None:
        self.last = 0
        self.texts: list[str] = []
        self.written = ""
        """Of the reply in progress."""
        self.waiting: dict[str, dict[str, Any]] = {}
        """Requests for approval, by the call's first argument."""
        self.results: dict[str, str] = {}

    def take(self, seq: int | None, event: dict[str, Any]) -> None:
        """Take one event, whose number must be higher than that of the one before."""
        assert seq is not None
        assert seq > self.last
        self.last = seq
        match event["type"]:
            case "model.delta":
                self.written = self.written[: event.get("offset", 0)] + event["text"]
            case "model.retracted":
                self.written = ""
            case "model.completed":
                self.texts.append(event.get("text", ""))
                self.written = ""
            case "approval.requested":
                self.waiting[event["arguments"]["to"]] = event
            case "tool.completed":
                self.results[event["call_id"]] = event["content"]

    async def follow(self, http: httpx.AsyncClient, session: str, until: Any) -> None:
        """Follow from behind the last event until ``until`` says of one that it is enough."""
        headers = {"accept": "text/event-stream", "last-event-id": str(self.last)}
        async with http.stream("GET", f"/sessions/{session}/events", headers=headers) as stream:
            assert stream.status_code == 200
            async for seq, event in read_frames(stream):
                self.take(seq, event)
                if until(event):
                    return
        raise AssertionError("the stream ended before")


def has_ended(event: dict[str, Any]) -> bool:
    """Whether the event ends the turn."""
    return event["type"] == "turn" and event["state"] == "completed"


@asynccontextmanager
async def connect(replicas: Replicas) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a new replica."""
    async with httpx.AsyncClient(base_url=f"{await replicas.start()}/v1", timeout=120) as http:
        yield http


async def test_a_reply_outlives_the_replica_and_the_worker(engine: Engine) -> None:
    go = engine.folder / "go"
    worker = await engine.process("streaming", TEST_GO=str(go))
    follower, begin = Follower(), {"agent": "slow", "content": "go"}
    async with replicas_of(engine) as replicas:
        async with connect(replicas) as http:
            answer = await http.post("/sessions", json=begin, headers={"idempotency-key": "k-1"})
            session = answer.json()["id"]
            await follower.follow(http, session, lambda event: event["type"] == "model.delta")
            assert follower.written == "Half "
            reading = asyncio.ensure_future(follower.follow(http, session, has_ended))
            await asyncio.gather(replicas.kill(), worker.kill())
            with pytest.raises((httpx.HTTPError, AssertionError)):
                await reading
        go.touch()
        await engine.process("streaming", TEST_GO=str(go))
        async with connect(replicas) as http:
            repeated = await http.post("/sessions", json=begin, headers={"idempotency-key": "k-1"})
            assert repeated.json()["id"] == session, "the same session, on another replica"
            await follower.follow(http, session, has_ended)
            items = (await http.get(f"/sessions/{session}/items", params={"full": True})).json()["data"]
    messages = await (await engine.client()).run(session).transcript()
    assert follower.texts == [message.text for message in messages if message.role == "assistant"] == ["Half whole."]
    assert [item["role"] for item in items] == [message.role for message in messages]


async def test_approvals_outlive_the_replica_and_the_worker(engine: Engine) -> None:
    worker = await engine.process("approving")
    follower = Follower()
    async with replicas_of(engine) as replicas:
        async with connect(replicas) as http:
            session = (await http.post("/sessions", json={"agent": "paying", "content": "ada bob"})).json()["id"]
            await follower.follow(http, session, lambda _: len(follower.waiting) == 1)
            await asyncio.gather(replicas.kill(), worker.kill())
        worker = await engine.process("approving")
        async with connect(replicas) as http:
            await follower.follow(http, session, lambda _: len(follower.waiting) == 2)
            ada, bob = follower.waiting["ada"], follower.waiting["bob"]
            approve = {"type": "approval", "call_id": ada["call_id"], "hash": ada["hash"], "decision": "approve"}
            deny = {"type": "approval", "call_id": bob["call_id"], "decision": "deny", "comment": "not bob"}
            accepted = await http.post(f"/sessions/{session}/events", json=approve)
            assert accepted.status_code == 202, accepted.text
            await asyncio.gather(replicas.kill(), worker.kill())
        await engine.process("approving")
        async with connect(replicas) as http:
            for body in (approve, deny):  # the first once more: the same decision
                answer = await http.post(f"/sessions/{session}/events", json=body)
                assert answer.status_code == 202, answer.text
            await follower.follow(http, session, has_ended)
    messages = await (await engine.client()).run(session).transcript()
    results = {
        part.call_id: part.content for message in messages for part in message.parts if part.type == "tool_result"
    }
    assert follower.texts[-1] == messages[-1].text == "Done."
    assert follower.results.items() <= results.items()
    assert (results[ada["call_id"]], "not bob" in results[bob["call_id"]]) == ("paid 5 to ada", True)
    assert set(engine.ledger.counts("pay")) == {"ada"}  # an idempotent tool may be called again


async def test_a_decision_is_repeated_soon_after_its_replica_was_killed(engine: Engine) -> None:
    """The worker stands still, so the request is in progress when its replica is killed, and has the key."""
    worker = await engine.process("approving")
    key = {"idempotency-key": "decision-1"}
    async with replicas_of(engine) as replicas:
        async with connect(replicas) as http:
            session = (await http.post("/sessions", json={"agent": "paying", "content": "ada"})).json()["id"]
            follower = Follower()
            await follower.follow(http, session, lambda _: len(follower.waiting) == 1)
            [pending] = follower.waiting.values()
            decision = {"run_id": session, "call_id": pending["call_id"], "hash": pending["hash"]}
            body = {"decisions": [{**decision, "decision": "approve"}]}
            worker.process.send_signal(signal.SIGSTOP)
            deciding = asyncio.ensure_future(http.post("/approvals:decide", json=body, headers=key))
            await eventually(lambda: _count_keys(engine) == 1)
            await replicas.kill()
            with pytest.raises(httpx.HTTPError):
                await deciding
        worker.process.send_signal(signal.SIGCONT)
        async with connect(replicas) as http:
            for _ in range(10):  # each a second, as the answer says
                answer = await http.post("/approvals:decide", json=body, headers=key)
                if answer.status_code != 409:
                    break
                assert answer.json()["error"] == "IdempotencyKeyInUse"
                await asyncio.sleep(float(answer.headers["retry-after"]))
            assert answer.status_code == 200, answer.text
            assert answer.json()["results"][0]["decided"]["state"] == "approved"
    await eventually(lambda: engine.ledger.counts("pay") == {"ada": 1})


@pytest.mark.parametrize("survivor", ["worker", "replica"])
async def test_a_decision_outlives_who_was_to_send_it(engine: Engine, survivor: str) -> None:
    """The console's decision can be taken back for 5 s. Whoever could send it is killed meanwhile; then one of them is
    there again."""
    worker = await engine.process("approving")
    async with replicas_of(engine) as replicas:
        async with connect(replicas) as http:
            session = (await http.post("/sessions", json={"agent": "paying", "content": "ada"})).json()["id"]
            follower = Follower()
            await follower.follow(http, session, lambda _: len(follower.waiting) == 1)
            browser = Browser(str(http.base_url).removesuffix("/v1/"))
            await browser.open("/inbox")
            run = (await engine.client()).run(session)
            await browser.send(row_form(browser, run), ("decision", "approve"), comment="once")
            await asyncio.gather(replicas.kill(), worker.kill())
            await browser.http.aclose()
        assert faults.sql(engine.store_path, "SELECT count(*) FROM decisions WHERE answer IS NULL") == [(1,)]
        assert engine.ledger.counts("pay") == {}
        if survivor == "replica":
            await replicas.start()  # it and the worker may both send it
        await engine.process("approving")
        await run.turn().result()
    assert engine.ledger.counts("pay") == {"ada": 1}
    assert [(one.state, one.comment) for one in (await run.status()).decided] == [("approved", "once")]


def _count_keys(engine: Engine) -> int:
    statement = "SELECT count(*) FROM idempotency WHERE key LIKE 'http/%decision-1'"
    return int(faults.sql(engine.store_path, statement)[0][0])
