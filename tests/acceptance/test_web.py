"""The native HTTP API on a real server: sessions, events, decisions, repeats, tenants."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import Agent, tool
from perdure.testing import ScriptedProvider, call
from perdure.web.app import WebOptions, create_app
from perdure.web.limits import WebLimits
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually
from tests.support.web import ADA, NamedCallers, make_caller, read_frames, serve


def answering() -> Agent:
    return Agent("echo", ScriptedProvider(lambda request: f"heard: {request.messages[-1].text}"))


async def create(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/sessions", json={"agent": "echo", **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def finished_turn(http: httpx.AsyncClient, session: str, task_id: str) -> dict[str, Any]:
    answer = await http.get(f"/sessions/{session}/turns/{task_id}", params={"wait": 30})
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] != "running"
    return dict(answer.json())


@pytest.mark.server
async def test_a_session_by_http(engine: Engine) -> None:
    async with engine.served(answering()) as client, serve(client) as service, service.connect() as http:
        session = await create(http)
        assert session["agent"] == "echo"
        said = await http.post(f"/sessions/{session['id']}/events", json={"type": "message", "content": "one"})
        assert said.status_code == 202, said.text
        turn = await finished_turn(http, session["id"], said.json()["task_id"])
        assert turn["response"]["content"] == "heard: one"
        said = await http.post(f"/sessions/{session['id']}/events", json={"type": "message", "content": "two"})
        path = f"/sessions/{session['id']}/turns/{said.json()['task_id']}/events"
        async with http.stream("GET", path, headers={"accept": "text/event-stream"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["cache-control"] == "no-store"
            frames = [frame async for frame in read_frames(stream)]
        ended = [event for _, event in frames if event["type"] == "turn"][-1]
        assert (ended["state"], ended["content"]) == ("completed", "heard: two")
        page = (await http.get(f"/sessions/{session['id']}/events")).json()
        assert [event["seq"] for event in page["data"]][-1] == page["last"]
        after = frames[0][0]
        again = (await http.get(f"/sessions/{session['id']}/events", params={"after": after})).json()
        assert [event["seq"] for event in again["data"]] == [
            event["seq"] for event in page["data"] if event["seq"] > (after or 0)
        ]
        closed = await http.post(f"/sessions/{session['id']}/events", json={"type": "close"})
        assert closed.status_code == 202
        await client.run(session["id"]).wait_for_close()
        headers = {"accept": "text/event-stream"}
        async with http.stream("GET", f"/sessions/{session['id']}/events", headers=headers) as stream:
            frames = [frame async for frame in read_frames(stream)]
        assert frames[-1][1] | {"at": ""} == frames[-1][1] | {"type": "run", "state": "completed", "at": ""}
        headers["last-event-id"] = str(frames[-1][0])
        assert (await http.get(f"/sessions/{session['id']}/events", headers=headers)).status_code == 204


@pytest.mark.server
async def test_a_repeated_request_acts_once_on_any_replica(engine: Engine) -> None:
    async with (
        engine.served(answering()) as client,
        serve(client) as first,
        serve(await engine.client()) as second,
        first.connect() as one,
        second.connect() as other,
    ):
        key = {"idempotency-key": "k1"}
        created = await asyncio.gather(
            *(http.post("/sessions", json={"agent": "echo", "content": "hi"}, headers=key) for http in (one, other) * 3)
        )
        codes = {answer.status_code for answer in created}
        assert codes <= {201, 409}
        again = await other.post("/sessions", json={"agent": "echo", "content": "hi"}, headers=key)
        assert again.status_code == 201
        assert again.headers["idempotency-replayed"] == "true"
        assert {answer.json()["id"] for answer in (*created, again) if answer.status_code == 201} == {
            again.json()["id"]
        }
        assert again.headers["location"].endswith(f"/v1/sessions/{again.json()['id']}")
        conflict = await one.post("/sessions", json={"agent": "echo", "content": "ho"}, headers=key)
        assert (conflict.status_code, conflict.json()["error"]) == (409, "IdempotencyKeyConflict")
        session, key = again.json()["id"], {"idempotency-key": "k2"}
        event = {"type": "message", "content": "once"}
        sent = [await http.post(f"/sessions/{session}/events", json=event, headers=key) for http in (one, other, one)]
        assert len({answer.json()["task_id"] for answer in sent}) == 1
        await finished_turn(one, session, sent[0].json()["task_id"])
        texts = [message.text for message in await client.run(session).transcript() if message.role == "user"]
        assert texts == ["hi", "once"]


@pytest.mark.server
async def test_an_approval_by_http_needs_the_hash_and_names_the_caller(engine: Engine) -> None:
    paid: list[int] = []

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    provider = ScriptedProvider([call("pay", amount=3), "done"])
    approver, viewer = make_caller("bob", "approver"), make_caller("eve", "viewer")
    async with (
        engine.served(Agent("payer", provider, tools=[pay])) as client,
        serve(client, approver, viewer) as service,
        service.connect() as ada,
        service.connect("bob") as bob,
        service.connect("eve") as eve,
    ):
        session = (await ada.post("/sessions", json={"agent": "payer", "content": "Pay"})).json()["id"]
        headers = {"accept": "text/event-stream"}
        async with ada.stream("GET", f"/sessions/{session}/events", headers=headers) as stream:
            async for _, event in read_frames(stream):
                if event["type"] == "approval.requested":
                    asked = event
                    break
        path = f"/sessions/{session}/events"
        decision = {"type": "approval", "call_id": asked["call_id"], "decision": "approve"}
        refused = await bob.post(path, json=decision)
        assert (refused.status_code, refused.json()["error"]) == (400, "InvalidInputError")
        denied = await eve.post(path, json=decision | {"hash": asked["hash"]})
        assert (denied.status_code, denied.json()["error"]) == (403, "ForbiddenError")
        wrong = await bob.post(path, json=decision | {"hash": "0" * 32})
        assert wrong.status_code == 400
        assert paid == []
        decided = await bob.post(path, json=decision | {"hash": asked["hash"], "comment": "fine"})
        assert decided.status_code == 202, decided.text
        assert decided.json()["decided"]["by"] == "bob"
        late = await ada.post(path, json=decision | {"hash": asked["hash"]})
        assert (late.status_code, late.json()["error"]) == (409, "ApprovalDecidedError")
        rows = await (await client.store()).list_audit(subject=session)
        assert {(row.by, row.verb, bool(row.refused)) for row in rows} >= {
            ("bob", "approve", False),
            ("bob", "approve", True),
            ("eve", "approve", True),
        }
        assert {row.auth for row in rows if row.by == "bob"} == {"token:bob"}


async def test_a_standing_approval_is_revoked_by_who_may_decide(engine: Engine) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    provider = ScriptedProvider([call("pay"), "done", call("pay"), "done"])
    async with (
        engine.served(Agent("payer", provider, tools=[pay])) as client,
        serve(client, make_caller("bob", "approver"), make_caller("sam", "sender")) as service,
        service.connect("bob") as bob,
        service.connect("sam") as sam,
    ):
        run = await client.start("payer", "Pay", mode="session")
        path = f"/sessions/{run.id}"

        async def wait() -> dict[str, Any] | None:
            return next(iter((await bob.get(path)).json()["approvals"]), None)

        asked = await eventually(wait)
        decision = {"type": "approval", "call_id": asked["call_id"], "hash": asked["hash"], "decision": "approve"}
        assert (await bob.post(f"{path}/events", json=decision | {"always": True})).status_code == 202
        await run.turn().result()
        [standing] = (await bob.get(path)).json()["standing"]
        revoke = {"type": "revoke", "tool": "pay"}
        assert (await sam.post(f"{path}/events", json=revoke)).status_code == 403
        headers = {"Idempotency-Key": "k"}
        for _ in range(2):
            answer = await bob.post(f"{path}/events", json=revoke, headers=headers)
            assert (answer.status_code, answer.json()["revoked"]) == (202, [standing])
        again = await bob.post(f"{path}/events", json=revoke)
        assert (again.status_code, again.json()["error"]) == (400, "InvalidInputError")
        for wrong in ({"type": "revoke"}, revoke | {"tool": ""}, revoke | {"tool": None}, revoke | {"by": "ada"}):
            assert (await bob.post(f"{path}/events", json=wrong)).status_code == 400
        await run.send("Pay again")
        assert (await eventually(wait))["tool"] == "pay", "it waits again"


@pytest.mark.server
async def test_the_sessions_of_another_tenant_do_not_exist(engine: Engine) -> None:
    acme, other = make_caller("acme", "admin", tenants=("acme",)), make_caller("other", "admin", tenants=("other",))
    async with (
        engine.served(answering()) as client,
        serve(client, acme, other) as service,
        service.connect("acme") as mine,
        service.connect("other") as theirs,
        httpx.AsyncClient(base_url=f"{service.url}/v1") as nobody,
    ):
        session = await create(mine)
        assert session["tenant"] == "acme"
        for method, path, body in (
            ("GET", f"/sessions/{session['id']}", None),
            ("GET", f"/sessions/{session['id']}/events", None),
            ("POST", f"/sessions/{session['id']}/events", {"type": "message", "content": "hi"}),
            ("POST", f"/sessions/{session['id']}/events", {"type": "cancel"}),
        ):
            missing = await theirs.request(method, path.replace(session["id"], "nothing"), json=body)
            hidden = await theirs.request(method, path, json=body)
            assert hidden.status_code == missing.status_code == 404
            assert hidden.text.replace(session["id"], "nothing") == missing.text
            assert (await nobody.request(method, path, json=body)).status_code == 401
        assert (await theirs.post("/sessions", json={"agent": "echo", "tenant": "acme"})).status_code == 403
        for name in (f"@acme/{session['id']}", f"@other/@acme/{session['id']}"):
            taken = await theirs.post("/sessions", json={"agent": "echo", "id": name})
            assert (taken.status_code, taken.json()["error"]) == (409, "RunIdError"), name
        same = await theirs.post("/sessions", json={"agent": "echo", "id": session["id"], "content": "hi"})
        assert (same.status_code, same.json()["id"], same.json()["tenant"]) == (201, session["id"], "other")
        assert (await mine.get(f"/sessions/{session['id']}")).json()["state"] == "idle"
        assert (await theirs.post(f"/sessions/{session['id']}/events", json={"type": "cancel"})).status_code == 202
        assert (await mine.get(f"/sessions/{session['id']}")).json()["state"] == "idle"


@pytest.mark.server
async def test_a_follower_goes_on_with_another_replica_when_the_first_is_lost(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def wait() -> str:
        await gate()
        return "open"

    provider = ScriptedProvider([call("wait"), "The end."])
    async with engine.served(Agent("slow", provider, tools=[wait])) as client, serve(await engine.client()) as second:
        headers = {"accept": "text/event-stream"}
        seen: list[Any] = []
        async with serve(await engine.client()) as first, first.connect() as http:
            session = (await http.post("/sessions", json={"agent": "slow", "content": "Go"})).json()["id"]
            with suppress(httpx.HTTPError):
                async with http.stream("GET", f"/sessions/{session}/events", headers=headers) as stream:
                    async for seq, event in read_frames(stream):
                        seen.append((seq, event))
                        if event["type"] == "tool.started":
                            await first.kill()
            assert seen[-1][1]["type"] == "tool.started"
        gate.open()
        headers["last-event-id"] = str(seen[-1][0])
        path = f"/sessions/{session}/events"
        async with second.connect() as http, http.stream("GET", path, headers=headers) as stream:
            async for seq, event in read_frames(stream):
                seen.append((seq, event))
                if event["type"] == "turn" and event["state"] == "completed":
                    break
        recorded = [event.seq async for event in client.run(session).events(wait=False)]
        numbers = [seq for seq, _ in seen]
        assert numbers == sorted(set(numbers))
        assert set(recorded) <= {*numbers, numbers[-1] + 1}, "but for that the session waits again"
        assert seen[-1][1]["content"] == "The end."


HOSTILE = [
    ("POST", "/sessions", b"", 400),
    ("POST", "/sessions", b"null", 400),
    ("POST", "/sessions", b"{", 400),
    ("POST", "/sessions", b'{"agent": null}', 400),
    ("POST", "/sessions", b'{"agent": "echo", "surprise": 1}', 400),
    ("POST", "/sessions", b'{"agent": "echo", "id": ""}', 400),
    ("POST", "/sessions", b'{"agent": "echo", "id": "' + b"x" * 1500 + b'"}', 409),
    ("POST", "/sessions", b'{"agent": "echo", "idle_timeout": -1}', 400),
    ("POST", "/sessions", b'{"agent": "echo", "context": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
    ("POST", "/sessions", b'{"agent": "echo", "content": [{"type": "file", "media_type": "a", "url": "x"}]}', 400),
    ("POST", "/sessions", b'{"agent": "echo", "content": [{"type": "file", "media_type": "a/b", "data": "%"}]}', 400),
    ("POST", "/sessions", b'{"agent": "echo", "content": "\\ud800"}', 400),
    ("POST", "/sessions", b'{"agent": "echo", "content": NaN}', 400),
    ("GET", "/sessions/nothing", None, 404),
    ("GET", "/sessions/a%2Fb%252F%00", None, 404),
    ("GET", "/sessions/nothing/turns/x?wait=1e9", None, 404),
    ("GET", "/nowhere", None, 404),
    ("PUT", "/sessions", b"{}", 405),
    ("GET", "/sessions/{id}/events?after=x", None, 400),
    ("GET", "/sessions/{id}/events?after=1&after=2", None, 400),
    ("GET", "/sessions/{id}/events?surprise=1", None, 400),
    ("GET", "/sessions/{id}/turns/unknown", None, 404),
    ("GET", "/sessions/{id}/turns/unknown?wait=nan", None, 400),
    ("POST", "/sessions/{id}/events", b'{"type": "explode"}', 400),
    ("POST", "/sessions/{id}/events", b"[]", 400),
    ("POST", "/sessions/{id}/events", b'{"type": "message", "content": []}', 400),
    ("POST", "/sessions/{id}/events", b'{"type": "answer", "call_id": "c", "value": 1}', 400),
    ("POST", "/sessions/{id}/events", b'{"type": "resume", "limits": {"nothing": 1}}', 400),
]


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-secret")
    return "sk-planted-secret"


@pytest.mark.server
async def test_hostile_requests_are_refused_with_a_problem(engine: Engine, secret: str) -> None:
    async with engine.served(answering()) as client, serve(client) as service, service.connect() as http:
        session = (await create(http, content="hi"))["id"]
        for method, path, body, status in HOSTILE:
            answer = await http.request(
                method, path.replace("{id}", session), content=body, headers={"content-type": "application/json"}
            )
            assert answer.status_code == status, (method, path, body, answer.text)
            problem = answer.json()
            assert answer.headers["content-type"] == "application/problem+json"
            assert problem["status"] == status
            assert problem["error"]
            assert len(answer.content) < 5000
            assert secret not in answer.text
            assert str(engine.folder) not in answer.text


@pytest.mark.server
async def test_a_service_without_a_worker_says_so(engine: Engine) -> None:
    client = await engine.client()
    async with serve(client) as service, service.connect() as http:
        session = await create(http, content="hi")
        assert session["state"] == "running"
        assert (await http.get(f"/sessions/{session['id']}")).json()["reason"]


@pytest.mark.server
async def test_the_location_of_a_session_reaches_it_whatever_its_id(engine: Engine) -> None:
    async with engine.served(answering()) as client, serve(client) as service, service.connect() as http:
        for name in ("zürich €", "a#b?c", "50%25", "x;y", "'\"\\"):
            made = await http.post("/sessions", json={"agent": "echo", "id": name})
            assert made.status_code == 201, (name, made.text)
            found = await http.get(f"{service.url}{made.headers['location']}")
            assert found.json()["id"] == name
        for name in ("a/b", "..", ".", "a\nb", "\N{LINE SEPARATOR}"):
            refused = await http.post("/sessions", json={"agent": "echo", "id": name})
            assert (refused.status_code, refused.json()["error"]) == (409, "RunIdError"), name
        for path in ("/sessions/", "/sessions/x/"):
            missing = await http.post(path, json={"agent": "echo"})
            assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.server
async def test_an_id_that_another_tenant_has_tells_nothing_of_its_session(engine: Engine) -> None:
    acme, other = make_caller("acme", "admin", tenants=("acme",)), make_caller("other", "admin", tenants=("other",))
    limited = make_caller("limited", "admin", agents=("fax",))
    async with (
        engine.served(answering()) as client,
        serve(client, acme, other, limited) as service,
        service.connect("acme") as mine,
        service.connect("other") as theirs,
        service.connect("limited") as restricted,
    ):
        session = (await create(mine, content="the secret question"))["id"]
        attempts = (
            (theirs, {"agent": "echo", "id": f"@acme/{session}"}),
            (theirs, {"agent": "echo", "id": "@acme/nothing"}),
            (restricted, {"agent": "fax", "id": session, "tenant": "acme"}),
            (restricted, {"agent": "fax", "id": f"@acme/{session}", "tenant": "acme"}),
            (restricted, {"agent": "fax", "id": f"@acme/{session}"}),
        )
        answers = [
            await http.post("/sessions", json={**body, "content": text}, headers=headers)
            for number, (http, body) in enumerate(attempts)
            for text in ("the secret question", "a guess")
            for headers in ({}, {"idempotency-key": f"take {number} {text}"})
        ]
        assert {answer.status_code for answer in answers} == {409}
        assert len({answer.text for answer in answers}) == 1
        for name in (session, f"%40acme%2F{session}"):
            assert (await theirs.post(f"/sessions/{name}/events", json={"type": "cancel"})).status_code == 404
        assert (await theirs.post("/sessions", json={"agent": "echo", "tenant": "acme"})).status_code == 403
        rows = await (await client.store()).list_audit()
        refused = {(row.by, row.auth, row.verb, row.subject) for row in rows if row.refused and row.origin}
        assert refused >= {
            ("other", "token:other", "start", "session"),
            ("limited", "token:limited", "start", f"@acme/{session}"),
            ("other", "token:other", "post_event", f"@acme/{session}"),
        }
        named = [row.detail for row in rows if (row.by, row.verb, row.count > 0) == ("other", "start", True)]
        assert named, "the name that was tried stands beside"


@pytest.mark.server
async def test_a_refusal_that_may_pass_is_not_the_answer_of_its_key(engine: Engine) -> None:
    callers = NamedCallers(ADA, make_caller("eve", "viewer"))
    async with engine.served(answering()) as client:
        app = create_app(client, authenticator=callers, options=WebOptions(dev=True))
        async with serve(client, app=app) as service, service.connect() as ada, service.connect("eve") as eve:
            path, key = f"/sessions/{(await create(ada))['id']}/events", {"idempotency-key": "k"}
            event = {"type": "message", "content": "hi"}
            assert (await eve.post(path, json=event, headers=key)).status_code == 403
            callers.callers["eve"] = make_caller("eve", "sender")
            sent = await eve.post(path, json=event, headers=key)
            assert sent.status_code == 202, sent.text
            assert (await eve.post(path, json=event, headers=key)).json() == sent.json()
            callers.callers["eve"] = make_caller("eve", "sender", agents=("echo",))
            event = {"type": "message", "content": "ho"}
            other = await eve.post(path, json=event, headers=key)
            assert other.status_code == 202, "a caller of that name with other rights has keys of its own"


@pytest.mark.server
async def test_the_stream_of_a_turn_does_not_make_a_follower_connect_again_for_ever(engine: Engine) -> None:
    async with engine.served(answering()) as client, serve(client) as service, service.connect() as http:
        session = await create(http, content="hi")
        stream = {"accept": "text/event-stream"}
        path = f"/sessions/{session['id']}/turns"
        unknown = await http.get(f"{path}/unknown/events", headers=stream)
        assert (unknown.status_code, unknown.json()["error"]) == (404, "RunNotFoundError")
        async with http.stream("GET", f"{path}/{session['task_id']}/events", headers=stream) as response:
            frames = [frame async for frame in read_frames(response)]
        last = {"last-event-id": str(frames[-1][0])}
        again = await http.get(f"{path}/{session['task_id']}/events", headers=stream | last)
        assert (again.status_code, again.content) == (204, b"")
        last = {"last-event-id": str(frames[-2][0])}
        async with http.stream("GET", f"{path}/{session['task_id']}/events", headers=stream | last) as response:
            assert [frame async for frame in read_frames(response)] == frames[-1:]


@pytest.mark.server
async def test_a_request_that_waits_for_a_turn_counts_as_a_stream(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def wait() -> str:
        await gate()
        return "open"

    provider = ScriptedProvider([call("wait"), "The end."])
    async with engine.served(Agent("slow", provider, tools=[wait])) as client:
        options = WebOptions(dev=True, limits=WebLimits(streams=1))
        app = create_app(client, authenticator=NamedCallers(ADA), options=options)
        async with serve(client, app=app) as service, service.connect() as http:
            session = (await http.post("/sessions", json={"agent": "slow", "content": "Go"})).json()
            path = f"/sessions/{session['id']}"
            async with http.stream("GET", f"{path}/events", headers={"accept": "text/event-stream"}) as response:
                frames = read_frames(response)
                await anext(frames)
                waits = await http.get(f"{path}/turns/{session['task_id']}", params={"wait": 30})
                assert (waits.status_code, waits.json()["error"]) == (429, "ConnectionLimitError")
                gate.open()
                async for _, event in frames:
                    if event["type"] == "turn" and event["state"] == "completed":
                        break


@pytest.mark.server
async def test_an_auth_context_that_cannot_be_encrypted_names_no_server(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERDURE_ENCRYPTION_KEYS", raising=False)
    async with engine.served(answering()) as client, serve(client) as service, service.connect() as http:
        refused = await http.post("/sessions", json={"agent": "echo", "auth_context": {"token": "planted"}})
        assert (refused.status_code, refused.json()["error"]) == (503, "AuthContextUnavailableError")
        assert client.temporal.service_client.config.target_host not in refused.text
        assert "planted" not in refused.text


@pytest.mark.server
async def test_the_application_within_another_under_a_named_mount(engine: Engine) -> None:
    async with engine.served(answering()) as client:
        app = create_app(client, authenticator=NamedCallers(ADA), options=WebOptions(dev=True))
        outer = Starlette(routes=[Mount("/agents", Starlette(routes=[Mount("/api", app, name="api")]), name="agents")])
        async with serve(client, app=outer) as service, service.connect() as http:
            made = await http.post(f"{service.url}/agents/api/v1/sessions", json={"agent": "echo"})
            assert made.status_code == 201, made.text
            assert made.headers["location"] == f"/agents/api/v1/sessions/{made.json()['id']}"
            assert (await http.get(service.url + made.headers["location"])).json()["id"] == made.json()["id"]


@pytest.mark.server
async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    client = await engine.client()
    answered = asyncio.Event()
    app = create_app(client, authenticator=NamedCallers(ADA), options=WebOptions(dev=True))

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        finally:
            answered.set()

    async with serve(client, app=watched) as service:
        host, _, port = service.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = "POST /v1/sessions HTTP/1.1", f"Host: {host}", "Authorization: Bearer ada", "Content-Length: 100"
        writer.write("\r\n".join((*head, "Content-Type: application/json", "", "{")).encode())
        await writer.drain()
        writer.close()
        await answered.wait()
    assert [record.message for record in caplog.records if record.name == "perdure.web"] == []


@pytest.mark.server
async def test_a_workflow_of_another_program_is_no_session(engine: Engine) -> None:
    client = await engine.client()
    handle = await client.temporal.start_workflow("Billing", id=f"{engine.task_queue}-other", task_queue="nobody")
    try:
        async with serve(client) as service, service.connect() as http:
            assert (await http.get(f"/sessions/{handle.id}")).status_code == 404
            assert (await http.post(f"/sessions/{handle.id}/events", json={"type": "cancel"})).status_code == 404
            assert (await handle.describe()).status is not None
            assert not [event async for event in handle.fetch_history_events() if "cancel" in str(event).lower()]
    finally:
        await handle.terminate()
