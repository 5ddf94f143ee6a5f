"""Files, artifacts and forks by HTTP on a real server, with two tenants and hostile requests."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from perdure import Agent, Client, Compaction, File, tool
from perdure.artifacts import Artifacts
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import iter_file_parts
from perdure.web import files, limits
from perdure.web.app import WebOptions, create_app
from tests.support.engine import Engine
from tests.support.web import ADA, NamedCallers, Service, make_caller, serve

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
REPORT = "line\n" * 10_000
ACME, OTHER = make_caller("acme", "admin", tenants=("acme",)), make_caller("other", "admin", tenants=("other",))
VIEWER = make_caller("eve", "viewer", tenants=("acme",))

pytestmark = pytest.mark.server


def answering() -> Agent:
    return Agent("echo", ScriptedProvider(lambda request: f"heard: {request.messages[-1].text}"))


@asynccontextmanager
async def connected(
    engine: Engine, *agents: Agent
) -> AsyncIterator[tuple[Client, httpx.AsyncClient, httpx.AsyncClient]]:
    """The client, and HTTP clients of the two tenants."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(engine.served(*agents))
        service: Service = await stack.enter_async_context(serve(client, ACME, OTHER, VIEWER))
        mine, theirs = [await stack.enter_async_context(service.connect(name)) for name in ("acme", "other")]
        yield client, mine, theirs


async def upload(http: httpx.AsyncClient, data: bytes, **query: str) -> dict[str, Any]:
    answer = await http.post("/files", content=data, params=query)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def ask(http: httpx.AsyncClient, content: Any, agent: str = "echo") -> str:
    """Start a session, and return its id when its first turn has ended."""
    created = await http.post("/sessions", json={"agent": agent})
    assert created.status_code == 201, created.text
    session = str(created.json()["id"])
    await say(http, session, content)
    return session


async def say(http: httpx.AsyncClient, session: str, content: Any) -> dict[str, Any]:
    sent = await http.post(f"/sessions/{session}/events", json={"type": "message", "content": content})
    assert sent.status_code == 202, sent.text
    turn = await http.get(f"/sessions/{session}/turns/{sent.json()['task_id']}", params={"wait": 30})
    assert turn.json()["state"] == "completed", turn.text
    return dict(turn.json())


async def test_a_file_goes_up_and_comes_back_as_an_attachment(engine: Engine) -> None:
    async with connected(engine, answering()) as (_, http, _other):
        part = await upload(http, PNG, name='../../a\r\nSet-Cookie: x=1;"q"\u202egnp.exe', media_type="text/html")
        assert part["media_type"] == "image/png", "the bytes count"
        assert part["blob"] == {"hash": hashlib.sha256(PNG).hexdigest(), "size": len(PNG)}
        assert part["name"] == 'aSet-Cookie: x=1;"q"gnp.exe'
        session = await ask(http, [{"type": "text", "text": "Look"}, part])
        path = f"/sessions/{session}/files/{part['blob']['hash']}"
        got = await http.get(path)
        assert got.content == PNG
        assert got.headers["content-type"] == "image/png"
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["cache-control"].startswith("private")
        disposition = got.headers["content-disposition"]
        assert disposition.startswith('attachment; filename="aSet-Cookie_ x_1__q_gnp.exe"; filename*=')
        head = await http.head(path)
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(PNG)))
        again = await http.get(path, headers={"if-none-match": got.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        # Once in the session, it may be sent again by anyone who may write there.
        await say(http, session, [part])


async def test_the_example_of_the_page_runs(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "how-to" / "http-files.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "cat.png").write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    async with engine.served(answering()) as client, serve(client) as service, service.connect() as http:
        session = (await http.post("/sessions", json={"agent": "echo"})).json()["id"]
        names: dict[str, Any] = {"url": service.url, "token": "ada", "session": session}
        await eval(compile(program, "http-files.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)  # noqa: S307  # our page
        assert names["got"].content == PNG


async def test_a_script_is_served_as_plain_text(engine: Engine) -> None:
    async with connected(engine, answering()) as (_, http, _other):
        part = await upload(http, b"<script>alert(1)</script>", name="x.html", media_type="text/html")
        session = await ask(http, [part])
        got = await http.get(f"/sessions/{session}/files/{part['blob']['hash']}")
        assert got.headers["content-type"] == "text/plain; charset=utf-8"
        assert "sandbox" in got.headers["content-security-policy"]
        unknown = await upload(http, b"\xff\x00\xfe")
        assert unknown["media_type"] == "application/octet-stream"


async def test_the_hash_of_anothers_file_gives_no_right_to_it(engine: Engine) -> None:
    @tool
    def note(blob: dict[str, Any]) -> str:
        return "noted"

    foreign = {"hash": hashlib.sha256(PNG).hexdigest(), "size": len(PNG)}
    # A model that is told to repeat the hash writes it into the transcript and into events, as a call's argument.
    provider = ScriptedProvider([call("note", blob=foreign), "done"])
    async with connected(engine, answering(), Agent("noter", provider, tools=[note])) as (client, mine, theirs):
        part = await upload(mine, PNG)
        session = await ask(mine, [part])
        for digest in (foreign["hash"], "0" * 64):
            stolen = part | {"blob": foreign | {"hash": digest}}
            for path, body in (
                ("/sessions", {"agent": "echo", "content": [stolen]}),
                (f"/sessions/{await ask(theirs, 'hi')}/events", {"type": "message", "content": [stolen]}),
                (f"/sessions/{await ask(theirs, 'hi')}/events", {"type": "interrupt", "content": [stolen]}),
                (f"/sessions/{await ask(theirs, 'hi')}/fork", {"content": [stolen]}),
                ("/schedules", {"agent": "echo", "every": "1h", "content": [stolen]}),
            ):
                refused = await theirs.post(path, json=body)
                assert (refused.status_code, refused.json()["error"]) == (400, "InvalidInputError"), path
        # A schedule may have the id of a session of another tenant, and is not that session.
        hourly = {"agent": "echo", "every": "1h", "paused": True}
        made = await theirs.post("/schedules", json={**hourly, "content": "x", "id": session})
        assert made.status_code == 201, made.text
        try:
            del hourly["paused"]
            refused = await theirs.put(f"/schedules/{session}", json={**hourly, "content": [part]})
            assert (refused.status_code, refused.json()["error"]) == (400, "InvalidInputError")
        finally:
            await client.get_schedule(session, tenant="other").delete()
        own = await ask(theirs, "Repeat it", agent="noter")
        text = await ask(theirs, f'{{"blob": {{"hash": "{foreign["hash"]}", "size": {len(PNG)}}}}}')
        holders = (await (await client.store()).read_holders([str(foreign["hash"])]))[str(foreign["hash"])]
        assert f"@other/{own}" in holders, "the store keeps the blob for it"
        for reader in (own, text):
            missing = await theirs.get(f"/sessions/{reader}/files/{foreign['hash']}")
            assert (missing.status_code, missing.json()["error"]) == (404, "NotFoundError")
        assert (await theirs.get(f"/sessions/{session}/files/{foreign['hash']}")).status_code == 404
        assert (await mine.get(f"/sessions/{session}/files/{foreign['hash']}")).content == PNG
        # Who has the bytes may upload them, too.
        assert await upload(theirs, PNG) == part


async def test_a_wrong_size_and_an_upload_of_another_caller_are_refused(engine: Engine) -> None:
    friend = make_caller("friend", "admin", tenants=("acme",))
    async with (
        engine.served(answering()) as client,
        serve(client, ACME, friend) as service,
        service.connect("acme") as mine,
        service.connect("friend") as theirs,
    ):
        part = await upload(mine, PNG)
        wrong = part | {"blob": part["blob"] | {"size": -5}}
        assert (await mine.post("/sessions", json={"agent": "echo", "content": [wrong]})).status_code == 400
        assert (await theirs.post("/sessions", json={"agent": "echo", "content": [part]})).status_code == 400
        # Looks at a key that is not there leave it free for the upload of the same file at the same time.
        looks = [theirs.post("/sessions", json={"agent": "echo", "content": [part]}) for _ in range(5)]
        answers = await asyncio.gather(*looks, theirs.post("/files", content=PNG), theirs.post("/files", content=PNG))
        assert {answer.status_code for answer in answers[-2:]} == {201}
        assert (await theirs.post("/sessions", json={"agent": "echo", "content": [part]})).status_code == 201


async def test_long_texts_and_files_of_tools_are_files_of_the_session(engine: Engine) -> None:
    @tool
    def report() -> list[object]:
        return [REPORT, File(PNG, name="plot.png")]

    provider = ScriptedProvider([call("report"), "x" * 40_000])
    async with connected(engine, Agent("reporter", provider, tools=[report])) as (_, http, theirs):
        session = await ask(http, "Report", agent="reporter")
        events = (await http.get(f"/sessions/{session}/events")).json()["data"]
        completed = next(event for event in events if event["type"] == "tool.completed")
        got = await http.get(f"/sessions/{session}/files/{completed['blob']['hash']}")
        assert (got.text, got.headers["content-type"]) == (REPORT, "text/plain; charset=utf-8")
        picture = await http.get(f"/sessions/{session}/files/{hashlib.sha256(PNG).hexdigest()}")
        assert 'filename="plot.png"' in picture.headers["content-disposition"]
        reply = next(
            event["blob"]["hash"] for event in events if event["type"] == "model.completed" and "blob" in event
        )
        assert (await http.get(f"/sessions/{session}/files/{reply}")).text == "x" * 40_000
        forked = await http.post(f"/sessions/{session}/fork", json={"at": 1, "results": {completed["call_id"]: "else"}})
        assert forked.status_code == 201, forked.text
        diff = (await http.get(f"/sessions/{session}/diff", params={"with": forked.json()["id"]})).json()
        result = diff["left"][0]["parts"][0]
        assert result["blob"] == completed["blob"], "a long text is a reference"
        assert "content" not in result
        assert diff["right"][0]["parts"][0]["content"] == "else"
        assert (await theirs.get(f"/sessions/{session}/files/{reply}")).status_code == 404


async def test_artifacts_by_http(engine: Engine) -> None:
    provider = ScriptedProvider(
        [
            call("artifact_create", name="a/b.md", content="one"),
            call("artifact_append", name="a/b.md", content=" two"),
            "done",
        ]
    )
    async with connected(engine, Agent("writer", provider, toolsets=[Artifacts()])) as (_, http, theirs):
        session = await ask(http, "Write", agent="writer")
        listed = (await http.get(f"/sessions/{session}/artifacts")).json()["data"]
        assert listed == [{"name": "a/b.md", "version": 2, "chars": 7}]
        path = f"/sessions/{session}/artifacts/a%2Fb.md"
        last = await http.get(path)
        assert (last.text, last.headers["content-type"]) == ("one two", "text/plain; charset=utf-8")
        assert last.headers["content-disposition"].startswith("attachment")
        assert (await http.get(path, params={"version": 1})).text == "one"
        assert (await http.get(path, headers={"if-none-match": last.headers["etag"]})).status_code == 304
        for query, status in (("version=3", 404), ("version=0", 400), ("version=x", 400), ("version=" + "9" * 40, 400)):
            assert (await http.get(f"{path}?{query}")).status_code == status, query
        assert (await http.get(f"/sessions/{session}/artifacts/%00")).status_code == 404
        assert (await theirs.get(f"/sessions/{session}/artifacts")).status_code == 404
        assert (await theirs.get(path)).status_code == 404


async def test_forks_and_differences_by_http(engine: Engine) -> None:
    async with connected(engine, answering()) as (client, http, theirs):
        session = await ask(http, "one")
        await say(http, session, "two")
        key, body = {"idempotency-key": "f1"}, {"at": 1, "content": "else", "id": "forks a&b"}
        forks = [await http.post(f"/sessions/{session}/fork", json=body, headers=key) for _ in range(2)]
        assert [fork.status_code for fork in forks] == [201, 201], forks[-1].text
        assert (forks[0].json()["id"], forks[0].json()["tenant"]) == ("forks a&b", "acme")
        assert forks[1].headers["idempotency-replayed"] == "true"
        assert forks[0].headers["location"].endswith("/sessions/forks%20a%26b")
        taken = await http.post(f"/sessions/{session}/fork", json=body)
        assert (taken.status_code, taken.json()["error"]) == (409, "RunExistsError")
        waits = client.run("forks a&b", tenant="acme").turn()
        assert (await waits.result()).content == "heard: else"
        diff = (await http.get(f"/sessions/{session}/diff", params={"with": "forks a&b", "limit": 1})).json()
        assert (diff["shared"], diff["iteration"], diff["left_count"], diff["right_count"]) == (2, 1, 2, 2)
        assert [side[0]["parts"][0]["text"] for side in (diff["left"], diff["right"])] == ["two", "else"]
        foreign = await ask(theirs, "secret")
        hidden = await http.get(f"/sessions/{session}/diff", params={"with": foreign})
        missing = await http.get(f"/sessions/{session}/diff", params={"with": "nothing"})
        assert hidden.status_code == missing.status_code == 404
        assert hidden.text.replace(foreign, "nothing") == missing.text
        assert (await theirs.post(f"/sessions/{session}/fork", json={})).status_code == 404
        for bad in (
            *({"at": at} for at in (-1, 1.5, "x", 99, True, 10**30)),
            {"results": {"none": "x"}},
            {"results": {"none": 1}},
            {"id": ""},
            {"model": ""},
            {"override": {"unknown": 1}},
            {"tenant": "other"},
            {"content": "x", "input": {}},
        ):
            refused = await http.post(f"/sessions/{session}/fork", json=bad)
            assert refused.status_code == 400, (bad, refused.text)


async def test_hostile_uploads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pieces(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield bytes(1024 * 1024)

    async with connected(engine, answering()) as (client, http, _other):
        for query, body, status in (
            ("", b"", 400),
            ("?media_type=text/html%0d%0aX:1", b"x", 400),
            ("?media_type=" + "a" * 300, b"x", 400),
            ("?name=" + "a" * 3000, b"x", 400),
            ("?surprise=1", b"x", 400),
            ("?name=a&name=b", b"x", 400),
        ):
            answer = await http.post(f"/files{query}", content=body)
            assert answer.status_code == status, (query, answer.text)
        form = await http.post("/files", files={"file": b"x"})
        assert (form.status_code, form.json()["error"]) == (415, "UnsupportedMediaTypeError")
        app = create_app(client, authenticator=NamedCallers(ADA, VIEWER), options=WebOptions(hosts=["x"]))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x/v1") as inside:
            inside.headers["authorization"] = "Bearer ada"
            large = await inside.post("/files", content=pieces(files.MAX_FILE_BYTES // 1024**2 + 1))
            assert (large.status_code, large.json()["error"]) == (413, "BodyTooLargeError")
            length = {"content-length": str(files.MAX_FILE_BYTES + 1)}
            for headers, status in (
                (length, 413),
                ({"content-length": "-1"}, 400),
                ({"content-length": "9" * 5000}, 400),
            ):
                assert (await inside.post("/files", headers=headers)).status_code == status
            json_type = {"content-type": "application/json"}
            huge = await inside.post("/sessions", content=pieces(33), headers=json_type)
            assert huge.status_code == 413
            monkeypatch.setattr(limits, "HELD_BYTES", 2 * 1024 * 1024)
            full = await inside.post("/files", content=pieces(3))
            assert (full.status_code, full.headers["retry-after"]) == (503, "1")
            assert (await inside.post("/files", content=pieces(2))).status_code == 201, "all of it was released"
            denied = await inside.post("/files", content=b"x", headers={"authorization": "Bearer eve"})
            assert denied.status_code == 403
            assert (
                await inside.post("/files", content=b"x", headers={"authorization": "Bearer no"})
            ).status_code == 401
            monkeypatch.setattr(limits, "CHUNK_SECONDS", 0.05)
            never = asyncio.Event()

            async def stalled() -> AsyncIterator[bytes]:
                yield b"x"
                await never.wait()

            slow = await inside.post("/files", content=stalled())
            assert (slow.status_code, slow.json()["error"]) == (408, "BodyTimeoutError")
        session = await ask(http, "hi")
        for name in ("0" * 64, "x", "..%2F..%2Fetc%2Fpasswd", "%00", "A" * 64, "0" * 5000):
            missing = await http.get(f"/sessions/{session}/files/{name}")
            assert missing.status_code == 404, name
            assert len(missing.content) < 1000


async def test_a_repeated_upload_gets_the_same_answer(engine: Engine) -> None:
    async with connected(engine, answering()) as (_, http, _other):
        key = {"idempotency-key": "u1"}
        first, again = [await http.post("/files", content=PNG, headers=key) for _ in range(2)]
        assert (first.status_code, again.headers.get("idempotency-replayed")) == (201, "true")
        assert first.json() == again.json()
        other = await http.post("/files", content=PNG + b"x", headers=key)
        assert (other.status_code, other.json()["error"]) == (409, "IdempotencyKeyConflict")


async def test_files_that_a_summary_has_replaced_and_those_of_subagents_are_still_there(engine: Engine) -> None:
    @tool
    def plot() -> File:
        return File(PNG + b"2", name="plot.png")

    def reply(request: Any) -> Any:
        return "a summary" if "ummar" in request.messages[-1].text else "word " * 200

    helper = Agent("helper", ScriptedProvider([call("plot"), "plotted"]), tools=[plot])
    boss = Agent("boss", ScriptedProvider([call("call_helper", task="Plot."), "done"]), subagents=[helper])
    keeper = Agent("keeper", ScriptedProvider(reply), compaction=Compaction.summarise(at=300, keep_last=1))
    async with connected(engine, boss, keeper) as (client, http, theirs):
        part = await upload(http, PNG, name="cat.png")
        session = await ask(http, [part], agent="keeper")
        for number in range(3):
            await say(http, session, f"{number} " * 200)
        assert not any(found.blob for found in iter_file_parts(await client.run(session, tenant="acme").transcript()))
        got = await http.get(f"/sessions/{session}/files/{part['blob']['hash']}")
        assert (got.status_code, got.content) == (200, PNG)
        parent = await ask(http, "Go", agent="boss")
        (child,) = await client.run(parent, tenant="acme").children()
        digest = hashlib.sha256(PNG + b"2").hexdigest()
        for session in (parent, quote(child.id, safe=""), quote(child.id.removeprefix("@acme/"), safe="")):
            got = await http.get(f"/sessions/{session}/files/{digest}")
            assert 'filename="plot.png"' in got.headers["content-disposition"], session
            assert (await theirs.get(f"/sessions/{session}/files/{digest}")).status_code == 404


async def test_a_receiver_that_stops_reading_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SEND_SECONDS", 0.05)
    held, sent, never = limits.HeldBytes(), list[Any](), asyncio.Event()
    held.take(200_000)

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:
            await never.wait()

    download = files.Download(bytes(200_000), {}, "image/png", lambda: held.release(200_000))
    await download({"type": "http", "method": "GET"}, None, send)  # type: ignore[arg-type]  # nothing is received
    assert held.count == 0
    assert sent[-1]["more_body"] is True, "the answer was not ended as if it were whole"
    assert len(sent) == 3


async def test_a_file_counts_as_held_until_it_is_sent(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(engine, answering()) as (_, http, _other):
        part = await upload(http, PNG)
        session = await ask(http, [part])
        path = f"/sessions/{session}/files/{part['blob']['hash']}"
        monkeypatch.setattr(limits, "HELD_BYTES", len(PNG))
        for _ in range(3):
            assert (await http.get(path)).content == PNG
        monkeypatch.setattr(limits, "HELD_BYTES", len(PNG) - 1)
        assert (await http.get(path)).status_code == 503
