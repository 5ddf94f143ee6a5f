"""Approvals by HTTP: the inbox of all sessions, and many decisions in one request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from perdure import Agent, Client, ToolContext, tool
from perdure.client.pages import encode_cursor
from perdure.testing import ScriptedProvider, call
from tests.support.engine import ON_BOTH_STORES, Engine
from tests.support.wait import eventually
from tests.support.web import make_caller, serve

pytestmark = pytest.mark.server


@dataclass
class Inbox:
    """Sessions whose calls wait, and the callers who see them."""

    client: Client
    ada: httpx.AsyncClient
    acme: httpx.AsyncClient
    viewer: httpx.AsyncClient
    paid: list[int]

    async def start(self, agent: str, tenant: str) -> str:
        run = await self.client.start(agent, "Go", tenant=tenant, user="u")
        return run.id

    async def read(self, http: httpx.AsyncClient, count: int, **params: Any) -> list[dict[str, Any]]:
        """The list, once it has ``count`` rows."""

        async def read() -> tuple[list[dict[str, Any]]] | None:
            answer = await http.get("/approvals", params=params)
            assert answer.status_code == 200, answer.text
            rows: list[dict[str, Any]] = answer.json()["data"]
            return (rows,) if len(rows) == count else None

        (rows,) = await eventually(read)  # type: ignore[arg-type,misc]
        return rows


@asynccontextmanager
async def inbox(engine: Engine) -> AsyncIterator[Inbox]:
    paid: list[int] = []

    @tool(needs_approval=True)
    def pay(amount: int, note: str = "") -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    @tool
    async def consult(ctx: ToolContext, question: str) -> str:
        """Ask."""
        return str(await ctx.ask(question, int))

    agents = [
        Agent("payer", ScriptedProvider(lambda request: done(request) or call("pay", amount=3)), tools=[pay]),
        Agent(
            "asker",
            ScriptedProvider(lambda request: done(request) or call("consult", question="How many?")),
            tools=[consult],
        ),
        Agent(
            "big",
            ScriptedProvider(lambda request: done(request) or call("pay", amount=1, note="x" * 20_000)),
            tools=[pay],
        ),
    ]
    acme = make_caller("acme", "operator", tenants=("acme",))
    viewer = make_caller("eve", "viewer")
    async with (
        engine.served(*agents) as client,
        serve(client, acme, viewer) as service,
        service.connect() as one,
        service.connect("acme") as two,
        service.connect("eve") as three,
    ):
        yield Inbox(client, one, two, three, paid)


def done(request: Any) -> str | None:
    return "done" if request.messages[-1].role == "tool" else None


@ON_BOTH_STORES
async def test_the_inbox_and_many_decisions(engine: Engine) -> None:
    async with inbox(engine) as box:
        sessions = [await box.start("payer", tenant) for tenant in ("acme", "other", "acme")]
        sessions.append(await box.start("asker", "acme"))
        rows = await box.read(box.ada, 4)
        by_session = {row["run_id"]: row for row in rows}
        assert set(by_session) == set(sessions)
        first = by_session[sessions[0]]
        assert (first["kind"], first["agent"], first["tool"], first["arguments"]) == (
            "approval",
            "payer",
            "pay",
            {"amount": 3},
        )
        assert (first["tenant"], first["user"]) == ("acme", "u")
        assert by_session[sessions[3]]["question"] == "How many?"
        assert by_session[sessions[3]]["form"]["type"] == "integer"
        mine = await box.read(box.acme, 3)
        own = {session: session.removeprefix("@acme/") for session in sessions}
        assert own[sessions[0]] != sessions[0]
        assert {row["run_id"] for row in mine} == {own[sessions[0]], own[sessions[2]], own[sessions[3]]}
        assert [row["kind"] for row in await box.read(box.ada, 1, kind="question")] == ["question"]
        assert await box.read(box.ada, 0, agent="nobody") == []
        assert await box.read(box.ada, 0, order="expiry") == []
        pages, cursor = [], None
        while True:
            answer = (
                await box.acme.get("/approvals", params={"limit": 1, **({"cursor": cursor} if cursor else {})})
            ).json()
            pages += [row["call_id"] + row["run_id"] for row in answer["data"]]
            if (cursor := answer.get("cursor")) is None:
                break
        assert sorted(pages) == sorted(row["call_id"] + row["run_id"] for row in mine), "each once"

        names = [{"run_id": row["run_id"], "call_id": row["call_id"], "hash": row["hash"]} for row in rows]
        item = {name["run_id"]: name for name in names}
        decisions = [
            item[sessions[0]] | {"decision": "approve", "comment": "fine"},
            item[sessions[1]] | {"decision": "approve"},
            item[sessions[2]] | {"decision": "approve", "hash": "0" * 32},
            item[sessions[3]] | {"value": 7, "run_id": own[sessions[3]]},
            {"run_id": "nothing", "call_id": "c", "hash": "h", "decision": "deny"},
        ]
        answer = await box.acme.post("/approvals:decide", json={"decisions": decisions})
        assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        assert [result["run_id"] for result in results] == [own.get(row["run_id"], row["run_id"]) for row in decisions]
        outcomes = [result.get("decided", result.get("problem", {})) for result in results]
        assert [outcome.get("state", outcome.get("status")) for outcome in outcomes] == [
            "approved",
            404,
            400,
            "answered",
            404,
        ]
        assert outcomes[0]["by"] == outcomes[3]["by"] == "acme"
        hidden, missing = outcomes[1], outcomes[4]
        assert hidden["detail"].replace(sessions[1], "nothing") == missing["detail"], "another tenant's does not exist"
        await box.client.run(sessions[0]).result()
        assert box.paid == [3]
        left = await box.read(box.ada, 2)
        assert {row["run_id"] for row in left} == {sessions[1], sessions[2]}
        # The same again is the same answer; a late one names who was first.
        again = (await box.acme.post("/approvals:decide", json={"decisions": decisions[:1]})).json()["results"]
        assert again[0]["decided"]["state"] == "approved"
        late = decisions[0] | {"decision": "deny"}
        problem = (await box.ada.post("/approvals:decide", json={"decisions": [late]})).json()["results"][0]["problem"]
        assert (problem["status"], problem["error"], "acme" in problem["detail"]) == (409, "ApprovalDecidedError", True)
        for session in (sessions[1], sessions[2]):
            await box.client.run(session).terminate()


async def test_a_row_that_is_out_of_date_is_not_shown(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with inbox(engine) as box:
        session = await box.start("payer", "acme")
        [row] = await box.read(box.ada, 1)
        store = await box.client.store()
        [wait] = await store.list_waits()
        old = replace(wait, call_id="decided", created_at="2020-01-01T00:00:00.000000+00:00", body=None)
        await store.put_wait(old)
        await store.put_wait(replace(old, context_id="nothing"))
        assert len(await store.list_waits()) == 3
        [left] = await box.read(box.ada, 1)
        assert (left["run_id"], left["call_id"]) == (session, row["call_id"])
        await box.client.run(session).terminate()
        assert await box.read(box.ada, 0) == []


async def test_large_arguments_are_left_out_of_the_list(engine: Engine) -> None:
    async with inbox(engine) as box:
        session = await box.start("big", "acme")
        [row] = await box.read(box.ada, 1)
        assert row["is_cut"]
        assert "arguments" not in row
        await box.client.run(session).terminate()


async def test_hostile_decisions(engine: Engine) -> None:
    async with inbox(engine) as box:
        session = await box.start("payer", "acme")
        [row] = await box.read(box.ada, 1)
        item = {"run_id": session, "call_id": row["call_id"], "hash": row["hash"]}
        approve = item | {"decision": "approve"}
        for body in (
            {},
            {"decisions": []},
            {"decisions": None},
            {"decisions": [approve, approve]},
            {"decisions": [approve, item | {"decision": "deny"}]},
            {"decisions": [approve | {"run_id": f"{number}"} for number in range(51)]},
            {"decisions": [item]},
            {"decisions": [approve | {"always": True}]},
            {"decisions": [approve | {"value": 1}]},
            {"decisions": [item | {"decision": "explode"}]},
            {"decisions": [item | {"decision": "deny", "arguments": {}}]},
            {"decisions": [item | {"value": 1, "comment": "x"}]},
            {"decisions": [{"run_id": session, "call_id": row["call_id"], "decision": "approve"}]},
            {"decisions": [approve | {"hash": ""}]},
            {"decisions": [approve | {"run_id": "x" * 3000}]},
            {"decisions": [approve | {"surprise": 1}]},
            [approve],
            "approve",
        ):
            answer = await box.ada.post("/approvals:decide", json=body)
            assert (answer.status_code, answer.json()["error"]) == (400, "InvalidInputError"), (body, answer.text)
        assert box.paid == []
        refused = (await box.viewer.post("/approvals:decide", json={"decisions": [approve]})).json()["results"][0]
        assert refused["problem"]["status"] == 403
        answered = (await box.ada.post("/approvals:decide", json={"decisions": [item | {"value": 1}]})).json()
        assert answered["results"][0]["problem"]["status"] in (400, 409), "it waits for an approval"
        for path in (
            "/approvals?limit=0",
            "/approvals?limit=1e9",
            "/approvals?cursor=x",
            "/approvals?kind=x",
            "/approvals?agent=%00",
            f"/approvals?cursor={encode_cursor('waits', {'order': 'expiry'}, ['a', 'b', 'c', ''])}",
            f"/approvals?cursor={encode_cursor('waits', {'order': 'since'}, ['a', 'b'])}",
            "/approvals?order=x",
            "/approvals?group=agent",
            f"/approvals?text={'x' * 201}",
        ):
            assert (await box.ada.get(path)).status_code == 400, path
        key = {"idempotency-key": "k"}
        first = await box.ada.post("/approvals:decide", json={"decisions": [approve]}, headers=key)
        again = await box.ada.post("/approvals:decide", json={"decisions": [approve]}, headers=key)
        assert (first.json(), again.headers["idempotency-replayed"]) == (again.json(), "true")
        await box.client.run(session).result()
        assert box.paid == [3]
        subjects = await (await box.client.store()).list_audit(subject=session)
        assert {(entry.by, entry.verb, bool(entry.refused)) for entry in subjects} >= {
            ("ada", "approve", False),
            ("eve", "approve", True),
        }
