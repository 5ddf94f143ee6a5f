"""Lists of the HTTP API on a real server: agents, sessions in pages, items, turns, subagents, and deletion."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from typing import Any

import httpx
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from perdure import Agent, Client, tool
from perdure.client.pages import encode_cursor
from perdure.errors import InvalidInputError
from perdure.ports.store import AgentRow, Commit, RunRow
from perdure.testing import ScriptedProvider, call
from perdure.web.app import WebOptions, create_app
from tests.support.engine import ON_BOTH_STORES, Engine
from tests.support.wait import eventually
from tests.support.web import ADA, NamedCallers, make_caller, serve

pytestmark = pytest.mark.server


def echo(name: str = "echo") -> Agent:
    return Agent(name, ScriptedProvider(lambda request: f"heard: {request.messages[-1].text}"))


async def read_all(http: httpx.AsyncClient, path: str, **params: Any) -> list[list[Any]]:
    """The pages of a list."""
    pages, cursor = [], None
    while True:
        answer = await http.get(path, params=params | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        pages.append(answer.json()["data"])
        cursor = answer.json().get("cursor")
        if cursor is None:
            return pages


async def ids_of(http: httpx.AsyncClient, **params: Any) -> list[str]:
    return [row["id"] for page in await read_all(http, "/sessions", **params) for row in page]


async def forget(client: Client, run_id: str) -> None:
    """Delete a run from Temporal, as the end of its retention does."""
    description = await client.temporal.get_workflow_handle(run_id).describe()
    execution = WorkflowExecution(workflow_id=run_id, run_id=description.run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.temporal.namespace, workflow_execution=execution)
    await client.temporal.workflow_service.delete_workflow_execution(request)

    async def is_gone() -> bool:
        return not [run async for run in client.temporal.list_workflows(f"WorkflowId = '{run_id}'")]

    await eventually(is_gone)


@ON_BOTH_STORES
async def test_sessions_in_pages(engine: Engine) -> None:
    acme, both = make_caller("acme", tenants=("acme",)), make_caller("both", tenants=("acme", "other"))
    name = f"echo-{engine.task_queue}"
    async with (
        engine.served(echo(name)) as client,
        serve(client, acme, both) as service,
        service.connect() as http,
        service.connect("acme") as mine,
        service.connect("both") as theirs,
    ):
        made: dict[str, list[str]] = {"acme": [], "other": [], "": []}

        def names() -> list[str]:
            """What a caller of acme alone calls its sessions."""
            return [one.removeprefix("@acme/") for one in made["acme"]]

        for number in range(6):
            tenant = ("acme", "other", "")[number % 3]
            run = await client.start(name, f"{number}", tenant=tenant or None, user="u")
            await run.result()
            made[tenant].append(run.id)
        session = await client.start(name, "open", mode="session", tenant="acme")
        made["acme"].append(session.id)
        everything = sorted(one for ids in made.values() for one in ids)

        async def is_listed() -> bool:
            return sorted(await ids_of(http, agent=name)) == everything

        await eventually(is_listed)
        pages = await read_all(http, "/sessions", agent=name, limit=2)
        assert all(len(page) <= 2 for page in pages)
        listed = [row["id"] for page in pages for row in page]
        assert sorted(listed) == everything, "each once"
        assert listed[0] == session.id, "the open one is first"
        await eventually(partial(_lists, mine, names(), agent=name, limit=1))
        assert sorted(await ids_of(theirs, agent=name, limit=1)) == sorted([*made["acme"], *made["other"]])
        assert sorted(await ids_of(http, agent=name, status="completed")) == sorted({*everything} - {session.id})
        assert await ids_of(http, agent=name, status="open") == [session.id]
        assert sorted(await ids_of(http, agent=name, tenant="other", user="u", limit=1)) == sorted(made["other"])
        assert await ids_of(http, agent=name, tenant="other", user="v") == []
        assert await ids_of(mine, agent=name, tenant="other") == []
        times = {
            row["id"]: row["started"] for row in (await http.get("/sessions", params={"agent": name})).json()["data"]
        }
        first, last = sorted(times.values())[2], times[session.id]
        assert sorted(await ids_of(http, agent=name, limit=2, started_from=first, started_before=last)) == sorted(
            one for one, at in times.items() if first <= at < last
        )
        assert await ids_of(http, agent=name, started_before="1970-01-01") == []
        for time in ("0.5", "1700000000", "x", "0001-01-01T00:00:00+14:00"):
            refused = await http.get("/sessions", params={"started_before": time})
            assert (refused.status_code, "started_before" in refused.text) == (400, True), time
        # Temporal forgets some: the store still has them, after those that Temporal has.
        forgotten = [made["acme"][0], made["other"][0], made[""][0]]
        await asyncio.gather(*(forget(client, gone) for gone in forgotten))
        listed = await ids_of(http, agent=name, limit=2)
        assert sorted(listed) == everything
        assert sorted(listed[-3:]) == sorted(forgotten)
        assert sorted(await ids_of(mine, agent=name, limit=1)) == sorted(names())
        assert sorted(await ids_of(theirs, agent=name, limit=1)) == sorted([*made["acme"], *made["other"]])


async def _lists(http: httpx.AsyncClient, expected: list[str], **params: Any) -> bool:
    return sorted(await ids_of(http, **params)) == sorted(expected)


async def test_a_session_that_was_opened_again_is_listed_once(engine: Engine) -> None:
    name = f"echo-{engine.task_queue}"
    async with engine.served(echo(name)) as client, serve(client) as service, service.connect() as http:
        run = await client.start(name, "one")
        await run.result()
        turn = await run.send("two")
        await turn.result()
        await run.wait_for_close()
        query = f"WorkflowId = '{run.id}' AND ExecutionStatus = 'Completed'"

        async def are_closed() -> bool:
            return len([execution async for execution in client.temporal.list_workflows(query)]) == 2

        await eventually(are_closed)
        newest = await client.temporal.get_workflow_handle(run.id).describe()
        for limit in (1, 50):
            assert await ids_of(http, agent=name, limit=limit) == [run.id]
            row = (await http.get("/sessions", params={"agent": name, "limit": limit})).json()["data"][0]
            assert row["started"] < newest.start_time.isoformat(), "when it began, not when it went on"


async def test_a_cursor_names_no_session_that_its_caller_may_not_see(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = make_caller("both", tenants=("acme", "other"))
    monkeypatch.setattr("perdure.client.run_pages._STORE_ROWS", 2)
    monkeypatch.setattr("perdure.client.run_pages.MAX_REQUESTS", 1)
    client = await engine.client()
    store = await client.store(create=True)
    for number in range(9):
        tenant = "acme" if number == 0 else "secret"
        await store.commit(Commit(run=RunRow(f"{tenant}-{number}", "old", "s", None, "completed", tenant=tenant)))
    async with serve(client, both) as service, service.connect("both") as http:
        pages, cursor = 0, None
        seen: list[str] = []
        while True:
            answer = await http.get(
                "/sessions", params={"agent": "old", "limit": 1, **({"cursor": cursor} if cursor else {})}
            )
            assert "secret" not in answer.text
            seen += [row["id"] for row in answer.json()["data"]]
            cursor, pages = answer.json().get("cursor"), pages + 1
            if cursor is None:
                break
            assert b"secret" not in base64.urlsafe_b64decode(cursor + "==")
        assert seen == ["acme-0"]
        assert pages > 3


async def test_agents_without_their_code(engine: Engine) -> None:
    limited = make_caller("limited", "viewer", agents=("echo",))

    @tool
    def look(place: str) -> str:
        """Look somewhere."""
        return place

    odd = Agent("odd", ScriptedProvider(["x"]), instructions="Be odd.", tools=[look])
    async with (
        engine.served(echo(), odd) as client,
        serve(
            client,
            app=create_app(client, authenticator=NamedCallers(ADA, limited), options=WebOptions(dev=True)),
        ) as service,
        service.connect() as http,
        service.connect("limited") as other,
    ):
        answer = await http.get("/agents")
        assert [agent["name"] for agent in answer.json()["data"]] == ["echo", "odd"]
        assert answer.json()["data"][1]["tools"] == ["look"]
        again = await http.get("/agents", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == answer.headers["etag"]
        one = await http.get("/agents/odd")
        assert one.status_code == 200, one.text
        assert one.json()["definition"]["instructions"] == [{"text": "Be odd."}]
        assert one.json()["definition"]["tools"][0]["parameters"]["properties"] == {"place": {"type": "string"}}
        weak = {"if-none-match": "W/" + one.headers["etag"]}
        assert (await http.get("/agents/odd", headers=weak)).status_code == 304
        store = await client.store()
        body = json.dumps({"name": "echo", "description": "newer"}).encode()
        await store.record_agents([AgentRow("f" * 64, "echo", body)])
        newer = (await http.get("/agents/echo")).json()
        assert newer["hash"] == "f" * 64
        assert len(newer["versions"]) == 2
        assert (await http.get("/agents", headers={"if-none-match": answer.headers["etag"]})).status_code == 200
        for name in ("nothing", "odd%2F", "%00", "..%2F..", "%2525", "x" * 3000):
            assert (await http.get(f"/agents/{name}")).status_code == 404
        assert [agent["name"] for agent in (await other.get("/agents")).json()["data"]] == ["echo"]
        assert (await other.get("/agents/odd")).status_code == 404


async def test_the_items_of_a_session(engine: Engine) -> None:
    @tool
    def fetch() -> str:
        """Fetch much."""
        return "long " * 20_000

    provider = ScriptedProvider([call("fetch"), "done"])
    other = make_caller("other", tenants=("other",))
    async with (
        engine.served(Agent("fetcher", provider, tools=[fetch])) as client,
        serve(client, other) as service,
        service.connect() as http,
        service.connect("other") as theirs,
    ):
        run = await client.start("fetcher", "Fetch it.")
        await run.result()
        answer = await http.get(f"/sessions/{run.id}/items")
        page = answer.json()
        assert [item["role"] for item in page["data"]] == ["user", "assistant", "tool", "assistant"]
        [result] = page["data"][2]["parts"]
        assert result["blob"]["size"] == 100_000
        assert "content" not in result
        assert len(answer.content) < 5_000
        assert (page["total"], page["last"], page["has_more"]) == (4, 3, False)
        headers = {"if-none-match": answer.headers["etag"]}
        assert (await http.get(f"/sessions/{run.id}/items", headers=headers)).status_code == 304
        assert (await http.get(f"/sessions/{run.id}/items?limit=1", headers=headers)).status_code == 200
        first = (await http.get(f"/sessions/{run.id}/items?limit=3")).json()
        rest = (await http.get(f"/sessions/{run.id}/items?limit=3&after={first['last']}")).json()
        assert first["has_more"]
        assert first["data"] + rest["data"] == page["data"]
        full = (await http.get(f"/sessions/{run.id}/items?full=true")).json()
        assert full["data"] == page["data"]
        assert (await http.get(f"/sessions/{run.id}/items?after=1000000")).json()["data"] == []
        assert (await theirs.get(f"/sessions/{run.id}/items")).status_code == 404


async def test_turns_and_subagents(engine: Engine) -> None:
    helper = Agent("helper", ScriptedProvider(lambda _: "helped"))
    calls = [call("call_helper", task=f"{number}") for number in range(3)]
    lead = Agent("lead", ScriptedProvider([calls, "one", "two", "three"]), subagents=[helper])
    async with engine.served(lead) as client, serve(client) as service, service.connect() as http:
        run = await client.start("lead", mode="session")
        for text in ("a", "b", "c"):
            await (await run.send(text, task_id=f"turn/{text}")).result()
        pages = await read_all(http, f"/sessions/{run.id}/turns", limit=2)
        assert [[row["task_id"] for row in page] for page in pages] == [["turn/c", "turn/b"], ["turn/a"]]
        assert {row["state"] for page in pages for row in page} == {"completed"}
        pages = await read_all(http, f"/sessions/{run.id}/subagents", limit=2)
        assert [len(page) for page in pages] == [2, 1]
        children = [row for page in pages for row in page]
        assert {(row["agent"], row["status"]) for row in children} == {("helper", "completed")}
        path = children[0]["id"].replace("/", "%2F")
        assert (await http.get(f"/sessions/{path}/items")).json()["data"][0]["parts"][0]["text"] == "0"
        assert (await http.get(f"/sessions/{path}/subagents")).json()["data"] == []
        listed = await ids_of(http, agent="helper", children="true")
        assert {row["id"] for row in children} <= set(listed)
        assert not {row["id"] for row in children} & set(await ids_of(http, agent="helper"))


@pytest.mark.slow
async def test_the_deletion_of_a_session(engine: Engine) -> None:
    operator, viewer = make_caller("op", tenants=("acme",)), make_caller("eve", "viewer", tenants=("acme",))
    outsider = make_caller("outsider", "admin", tenants=("other",))
    helper = Agent("helper", ScriptedProvider(lambda _: "helped"))
    lead = Agent("lead", ScriptedProvider([call("call_helper", task="x"), "done"]), subagents=[helper])
    async with (
        engine.served(lead) as client,
        serve(client, operator, viewer, outsider) as service,
        service.connect("op") as http,
        service.connect("eve") as eve,
        service.connect("outsider") as theirs,
    ):
        run = await client.start("lead", mode="session", tenant="acme")
        await (await run.send("go")).result()
        name = run.id.removeprefix("@acme/")
        path = f"/sessions/{name}"
        refused = await http.delete(path)
        assert (refused.status_code, refused.json()["error"]) == (409, "RunOpenError")
        assert "cancel" in refused.json()["hint"]
        await run.close()
        await run.wait_for_close()
        assert (await eve.delete(path)).status_code == 403
        assert (await theirs.delete(path)).status_code == 404
        [child] = await run.children()
        below = await http.delete(f"/sessions/{child.id.replace('/', '%2F')}")
        assert (below.status_code, name in below.text, run.id in below.text) == (400, True, False)
        deleted = await http.delete(path)
        assert (deleted.status_code, deleted.content) == (204, b"")
        store = await client.store()
        assert await store.get_run(run.id) is None
        assert await store.get_run(child.id) is None
        assert await store.read_events(run.id) == []

        async def is_unknown() -> bool:
            return (await http.get(path)).status_code == 404

        await eventually(is_unknown)
        assert (await http.delete(path)).status_code == 404
        rows = [row for row in await store.list_audit(subject=run.id) if row.verb == "delete"]
        assert [(row.by, row.auth, bool(row.refused)) for row in rows] == [
            ("op", "token:op", False),
            ("op", "token:op", True),
        ]
        refusals = [row for row in await store.list_audit(subject=run.id) if row.by == "eve"]
        assert [row.verb for row in refusals] == ["delete_session"]


async def test_a_run_that_is_lost_is_deleted_only_on_request(engine: Engine) -> None:
    client = await engine.client()
    store = await client.store(create=True)
    await store.commit(Commit(run=RunRow("lost", "a", "s", None, "running")))
    async with serve(client) as service, service.connect() as http:
        refused = await http.delete("/sessions/lost")
        assert (refused.status_code, refused.json()["error"]) == (409, "RunOpenError")
        assert (await client.delete("lost", lost=True)).runs == 1
        assert (await http.delete("/sessions/lost")).status_code == 404


FOREIGN = encode_cursor("runs", {"agent": "other", "roots": True}, ["store", "2026", "x"])
FORGED = encode_cursor("runs", {"roots": True}, ["temporal", "AAAA"])
CURSORS = ("x", "%00", "e30", "W10", "[]", "A" * 9000, FOREIGN, FORGED, "🦜", "")
HOSTILE = [
    *(f"/sessions?limit={limit}" for limit in ("0", "-1", "1e9", "1000000000", "x", "", "201")),
    *(f"/sessions?cursor={cursor}" for cursor in CURSORS),
    f"/sessions?cursor={encode_cursor('runs', {'roots': True}, ['store', 'x'])}",
    f"/sessions?cursor={encode_cursor('turns', {'roots': True}, ['store', 'x', 'y'])}",
    "/sessions?status=exploded",
    "/sessions?agent=",
    "/sessions?children=perhaps",
    "/sessions?surprise=1",
    "/sessions?agent=a&agent=b",
    "/agents?limit=1",
    "/sessions/{id}/items?after=x",
    "/sessions/{id}/items?after=-2",
    "/sessions/{id}/items?after=99999999999999999999",
    "/sessions/{id}/items?limit=0",
    "/sessions/{id}/turns?cursor=x",
    f"/sessions/{{id}}/turns?cursor={encode_cursor('turns', {'id': 'another'}, ['a', 'b'])}",
    "/sessions/{id}/turns?limit=-1",
    "/sessions/{id}/subagents?cursor=x",
]


async def test_hostile_lists_are_refused_with_a_problem(engine: Engine) -> None:
    async with engine.served(echo()) as client, serve(client) as service, service.connect() as http:
        run = await client.start("echo", "hi")
        await run.result()
        for path in HOSTILE:
            answer = await http.get(path.replace("{id}", run.id))
            assert answer.status_code == (414 if len(path) > 8000 else 400), (path[:100], answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
            assert len(answer.content) < 5000
            assert str(engine.folder) not in answer.text
        for path in ("items", "turns", "subagents"):
            assert (await http.get(f"/sessions/nothing%2F%25/{path}")).status_code == 404
        # A filter is a value, and never a part of the query.
        for text in ("a' OR WorkflowType != '", "a\\' OR 1=1", "%", "\u0000", "🦜", "x" * 200):
            answer = await http.get("/sessions", params={"agent": text, "user": text})
            assert (answer.status_code, answer.json().get("data")) in ((200, []), (400, None)), (text, answer.text)
        for limit in (0, -1, 10**9, True, "5", None):
            with pytest.raises(InvalidInputError, match="limit"):
                await client.list_page(limit=limit)  # type: ignore[arg-type]
