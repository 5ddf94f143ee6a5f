"""Schedules by HTTP on a real server."""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from perdure import Agent
from perdure.testing import ScriptedProvider
from perdure.web import schedules
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import make_caller, serve

ACME, OTHER = make_caller("acme", "admin", tenants=("acme",)), make_caller("other", "admin", tenants=("other",))
SENDER = make_caller("bob", "sender", tenants=("acme",))

pytestmark = pytest.mark.server


def answering() -> Agent:
    return Agent("echo", ScriptedProvider(lambda request: f"heard: {request.messages[-1].text}"))


async def create(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/schedules", json={"agent": "echo", "content": "hi", "every": "1h", **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_a_schedule_by_http(engine: Engine) -> None:
    async with (
        engine.served(answering()) as client,
        serve(client, ACME, OTHER) as service,
        service.connect("acme") as http,
    ):
        name = f"{engine.task_queue}: daily & 50%"
        made = await create(http, id=name, cron="0 7 * * 1-5", timezone="Europe/Lisbon", user="u1", paused=True)
        assert (made["agent"], made["tenant"], made["user"], made["paused"]) == ("echo", "acme", "u1", True)
        assert made["message"]["content"] == "hi"
        assert made["id"] == name
        path = f"/schedules/{quote(name)}"
        assert (await http.get(path)).json()["when"] == made["when"]
        taken = await http.post("/schedules", json={"agent": "echo", "content": "hi", "every": "1h", "id": name})
        assert (taken.status_code, taken.json()["error"]) == (409, "ScheduleExistsError")
        resumed = await http.post(f"{path}/resume", json={"note": "go"})
        assert (resumed.json()["paused"], resumed.json()["note"]) == (False, "resumed by acme: go")
        assert (await http.post(f"{path}/pause")).json()["paused"] is True
        replaced = await http.put(path, json={"agent": "echo", "content": "ho", "every": "2h"})
        assert (replaced.json()["when"], replaced.json()["paused"], replaced.json()["user"]) == (
            ["every 2h"],
            True,
            "u1",
        ), replaced.text
        key = {"idempotency-key": "t1"}
        triggered = [await http.post(f"{path}/trigger", json={}, headers=key) for _ in range(2)]
        assert triggered[1].headers["idempotency-replayed"] == "true"

        async def find_runs() -> list[Any]:
            return list((await http.get(path)).json()["recent"])

        runs = await eventually(find_runs)
        assert len(runs) == 1
        assert runs[0]["id"].startswith(f"schedule:{name}-")
        assert (await client.run(runs[0]["id"], tenant="acme").result()).content == "heard: ho"
        session = (await http.get(f"/sessions/{quote(runs[0]['id'])}")).json()
        assert (session["tenant"], session["user"]) == ("acme", "u1")
        trail = (await http.get("/audit", params={"subject": name, "verb": "schedule.*"})).json()["data"]
        labels = {(row["kind"], row["tenant"], row.get("user")) for row in trail if "refused" not in row}
        assert labels == {("schedule", "acme", "u1")}
        async with service.connect("other") as other:
            hidden = (await other.get("/audit", params={"subject": name})).json()
        assert hidden == {"data": []}, "whose schedule it is, Temporal knows"
        assert (await http.delete(path)).status_code == 204
        assert (await http.get(path)).status_code == 404
        rows = await (await client.store()).list_audit(subject=f"@acme/{name}")
        assert {row.verb for row in rows} >= {"schedule.create", "schedule.trigger", "schedule.delete"}
        assert {row.by for row in rows} == {"acme"}


async def read_pages(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    """All schedules; no cursor has the id of one that is not shown."""
    rows, after = list[dict[str, Any]](), dict[str, str]()
    while True:
        page = (await http.get("/schedules", params=after)).json()
        rows += page["data"]
        if "next" not in page:
            return rows
        after = {"after": page["next"]}
        named = base64.urlsafe_b64decode(page["next"] + "==").decode()
        assert re.search(r'"hash", ?"[0-9a-f]{64}"', named), named


async def test_the_schedules_of_another_tenant_do_not_exist(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        engine.served(answering()) as client,
        serve(client, ACME, OTHER, SENDER) as service,
        service.connect() as ada,
        service.connect("acme") as mine,
        service.connect("other") as theirs,
        service.connect("bob") as bob,
    ):
        names = [f"{engine.task_queue}-{number}" for number in range(3)]
        for name in names:
            await create(mine, id=name)
        try:
            for method, path, body in (
                ("GET", f"/schedules/{names[0]}", None),
                ("PUT", f"/schedules/{names[0]}", {"agent": "echo", "content": "x", "every": "1h"}),
                ("POST", f"/schedules/{names[0]}/pause", {}),
                ("POST", f"/schedules/{names[0]}/resume", {}),
                ("POST", f"/schedules/{names[0]}/trigger", {}),
                ("DELETE", f"/schedules/{names[0]}", None),
            ):
                missing = await theirs.request(method, path.replace(names[0], "nothing"), json=body)
                hidden = await theirs.request(method, path, json=body)
                assert hidden.status_code == missing.status_code == 404, path
                assert hidden.text.replace(names[0], "nothing") == missing.text
            new = {"agent": "echo", "content": "x", "every": "1h", "tenant": "acme"}
            assert (await theirs.post("/schedules", json=new)).status_code == 403
            assert (await bob.get(f"/schedules/{names[0]}")).status_code == 200
            for refused in (
                await bob.post("/schedules", json=new),
                await bob.post(f"/schedules/{names[0]}/trigger", json={}),
                await bob.delete(f"/schedules/{names[0]}"),
            ):
                assert (refused.status_code, refused.json()["error"]) == (403, "ForbiddenError")
            moved = await ada.put(f"/schedules/%40acme%2F{names[0]}", json=new | {"tenant": "other"})
            assert moved.status_code == 400

            async def listed() -> bool:
                return len((await mine.get("/schedules")).json()["data"]) == 3

            await eventually(listed)
            first = (await mine.get("/schedules", params={"limit": 2})).json()
            rest = (await mine.get("/schedules", params={"limit": 2, "after": first["next"]})).json()
            assert [row["id"] for row in first["data"] + rest["data"]] == names
            assert "next" not in rest
            assert (await theirs.get("/schedules")).json() == {"data": []}
            monkeypatch.setattr(schedules, "_MAX_DESCRIBED", 1)  # of one request, whatever the caller may see
            assert [row["id"] for row in await read_pages(mine)] == names
            assert await read_pages(theirs) == []
            damaged = await mine.get("/schedules", params={"after": names[0]})
            assert (damaged.status_code, damaged.json()["error"]) == (400, "InvalidInputError")
        finally:
            for name in names:
                await client.get_schedule(name, tenant="acme").delete()


HOSTILE: list[dict[str, Any]] = [
    {},
    {"agent": None},
    {"content": "x"},
    {"content": "x", "every": "never"},
    {"content": "x", "every": -1},
    {"content": "x", "every": 0.5},
    {"content": "x", "every": 1e400},
    {"content": "x", "cron": "not cron"},
    {"content": "x", "cron": []},
    {"content": "x", "cron": ["* * * * *"] * 101},
    {"content": "x", "cron": "* * * * *", "timezone": "Nowhere/City"},
    {"content": "x", "every": "1h", "timezone": "UTC"},
    {"content": "x", "every": "1h", "overlap": "sometimes"},
    {"content": "x", "every": "1h", "auth_context": {}},
    {"content": "x", "every": "1h", "id": "x" * 5000},
    {"content": "x", "every": "1h", "id": "x" * 801},
    {"content": "x", "every": "1h", "mode": "forever"},
    {"content": "x", "every": "1h", "note": "x" * 2000},
    {"content": None, "every": "1h"},
    {"content": [], "every": "1h"},
]


async def test_hostile_schedules_are_refused(engine: Engine) -> None:
    async with engine.served(answering()) as client, serve(client) as service, service.connect() as http:
        for fields in HOSTILE:
            body = {"agent": "echo", **fields} if fields else {}
            try:
                answer = await http.post("/schedules", json=body)
            except ValueError:  # httpx sends no infinite number
                infinite = b'{"agent": "echo", "content": "x", "every": 1e400}'
                headers = {"content-type": "application/json"}
                answer = await http.post("/schedules", content=infinite, headers=headers)
            assert answer.status_code == 400, (fields, answer.text)
        for name in ("a\0b", "a/b", "@acme/a", "schedule:a", "temporal-sys-scheduler:a", "x" * 901):
            answer = await http.post("/schedules", json={"agent": "echo", "content": "x", "every": "1h", "id": name})
            assert (answer.status_code, answer.json()["error"]) == (409, "RunIdError"), (name, answer.text)
        for path in ("nothing", "a%2Fb%00", "%0a", "x" * 3000):
            assert (await http.get(f"/schedules/{path}")).status_code == 404
        for query in ("limit=0", "limit=1000", "surprise=1"):
            assert (await http.get(f"/schedules?{query}")).status_code == 400
