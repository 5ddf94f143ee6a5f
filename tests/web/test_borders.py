"""Quotas and borders of HTTP callers: uploads, URLs of files, repeated requests, lists that cost requests elsewhere."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from typing import Any

import httpx
import pytest

from perdure import Agent, Client, Message
from perdure._webhook_wire import WebhookTask
from perdure.client.message_content import check_file_urls
from perdure.client.schedules import list_schedule_ids
from perdure.client.webhook_subscriptions import build_delivery_id, start_delivery
from perdure.errors import InvalidInputError
from perdure.testing import ScriptedProvider
from perdure.types.interface import WEBHOOK_WORKFLOW_TYPE, WORKFLOW_TYPE
from perdure.types.messages import File
from perdure.web.app import WebOptions, create_app
from perdure.web.auth import ROLES, Caller
from perdure.web.limits import WebLimits
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import ADA, NamedCallers, make_caller, serve


def build_agent() -> Agent[Any, Any]:
    return Agent("desk", ScriptedProvider(["Hello."] * 9))


def build_app(client: Client, *callers: Caller, **limits: Any) -> Any:
    options = WebOptions(dev=True, limits=WebLimits(**limits))
    return create_app(client, authenticator=NamedCallers(ADA, *callers), options=options)


async def upload(http: httpx.AsyncClient, body: bytes) -> httpx.Response:
    return await http.post("/files", content=body, headers={"content-type": "text/plain"})


async def test_uploads_have_a_quota_of_bytes_that_all_replicas_count(engine: Engine) -> None:
    callers, limits = (make_caller("sam", "sender"), make_caller("eve", "sender")), {"upload_bytes": 1000}
    async with engine.served(build_agent()) as client:
        async with serve(client, app=build_app(client, *callers, **limits)) as service, service.connect("sam") as http:
            assert (await upload(http, b"a" * 600)).status_code == 201
            assert (await upload(http, b"a" * 600)).status_code == 201, "the same file is held once"
            assert (await upload(http, b"b" * 400)).status_code == 201
        async with serve(client, app=build_app(client, *callers, **limits)) as service:  # after a restart
            async with service.connect("sam") as http:
                refused = await upload(http, b"c")
                assert (refused.status_code, refused.json()["error"]) == (429, "UploadQuotaError")
                assert "2 files with 1,000 bytes" in refused.json()["detail"]
                assert 0 < int(refused.headers["retry-after"]) <= 86_400
                too_large = await upload(http, b"d" * 1001)
                assert (too_large.status_code, too_large.json()["error"]) == (413, "UploadQuotaError")
            async with service.connect("eve") as http:
                assert (await upload(http, b"c")).status_code == 201


async def test_uploads_have_a_quota_of_files(engine: Engine) -> None:
    sam = make_caller("sam", "sender")
    async with engine.served(build_agent()) as client:
        app = build_app(client, sam, upload_files=3)
        async with serve(client, app=app) as service, service.connect("sam") as http:
            answers = [(await upload(http, bytes([65 + n]))).status_code for n in range(5)]
    assert answers == [201, 201, 201, 429, 429]


REFUSED_URLS = [
    "http://example.com/a.png",
    "s3://bucket/a.png",
    "gs://bucket/a.png",
    "https://169.254.169.254/latest/a.png",
    "https://10.0.0.1/a.png",
    "https://[::1]/a.png",
    "https://[::ffff:10.0.0.1]/a.png",
    "https://127.1/a.png",
    "https://2130706433/a.png",
    "https://0x7f000001/a.png",
    "https://0x7f.0.0.1/a.png",
    "https://localhost/a.png",
    "https://db.internal/a.png",
    "https://intranet/a.png",
    "https://ana:secret@example.com/a.png",
    "https://example.com.localhost./a.png",
]


@pytest.mark.parametrize("url", REFUSED_URLS)
async def test_a_sender_may_not_have_a_private_url_fetched(engine: Engine, url: str) -> None:
    async with engine.served(build_agent()) as client, serve(client, make_caller("sam", "sender")) as service:
        file = {"type": "file", "media_type": "image/png", "url": url}
        async with service.connect("sam") as http:
            answer = await http.post("/sessions", json={"agent": "desk", "content": [file]})
            assert (answer.status_code, "https URL of a public host" in answer.text) == (400, True), answer.text
        assert await client.list() == []


async def test_a_sender_may_send_a_public_url_and_a_program_any(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.served(build_agent()) as client, serve(client, make_caller("sam", "sender")) as service:
        async with service.connect("sam") as http:
            file = {"type": "file", "media_type": "image/png", "url": "https://example.com:8443/a.png"}
            assert (await http.post("/sessions", json={"agent": "desk", "content": [file]})).status_code == 201
            file["url"] = "s3://bucket/a.png"
            monkeypatch.setenv("PERDURE_FILE_URLS", "any")
            assert (await http.post("/sessions", json={"agent": "desk", "content": [file]})).status_code == 201
            monkeypatch.delenv("PERDURE_FILE_URLS")
        run = await client.start("desk", ["Look.", File.at("s3://bucket/a.png")])
        await run.result()
        history = [Message.user(["Look.", File.at("s3://bucket/b.png")]), Message.assistant("Seen.")]
        await (await client.start("desk", "Go.", history=history)).result()


async def test_the_history_of_a_caller_has_no_private_urls_either(engine: Engine) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://10.0.0.1/a.png"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, image]},
        {"role": "assistant", "content": "Seen."},
        {"role": "user", "content": "Go."},
    ]
    async with (
        engine.served(build_agent()) as client,
        serve(client, make_caller("sam", "sender")) as service,
        service.connect("sam") as http,
    ):
        http.base_url = service.url
        for sent in (messages, [messages[0]]):
            answer = await http.post("/openai/v1/chat/completions", json={"model": "desk", "messages": sent})
            assert (answer.status_code, "public host" in answer.text) == (400, True), answer.text


@pytest.mark.parametrize("url", ["https://example.com/a", "https://1.1.1.1/a", "https://xn--bcher-kva.example/a", None])
def test_urls_of_public_hosts_are_allowed(url: str | None) -> None:
    check_file_urls([url])


async def test_a_url_that_cannot_be_read_is_refused() -> None:
    for url in ("https://[::1", "https://example.com:99999/", "https://"):
        with pytest.raises(InvalidInputError, match="public host"):
            check_file_urls([url])


async def test_the_answer_to_a_request_is_not_for_a_caller_of_the_same_name_who_may_less(engine: Engine) -> None:
    callers = {"olga": make_caller("olga")}
    authenticator = NamedCallers(ADA)
    authenticator.callers |= callers
    async with engine.served(build_agent()) as client:
        app = create_app(client, authenticator=authenticator, options=WebOptions(dev=True))
        await client.start("desk", mode="session", id="s1")
        async with serve(client, app=app) as service, service.connect("olga", **{"idempotency-key": "k1"}) as http:
            body = {"type": "pause", "reason": "SECRET"}
            assert (await http.post("/sessions/s1/events", json=body)).status_code == 202
            assert (await http.post("/sessions/s1/events", json=body)).headers["idempotency-replayed"] == "true"
            authenticator.callers["olga"] = replace(callers["olga"], auth="token:2", verbs=ROLES["viewer"])
            refused = await http.post("/sessions/s1/events", json=body)
            assert refused.status_code == 403
            assert "idempotency-replayed" not in refused.headers


@pytest.mark.server
async def test_a_list_of_schedules_counts_as_the_requests_that_it_makes(engine: Engine) -> None:
    sam = make_caller("sam", "sender")
    async with engine.served(build_agent()) as client:
        for number in range(40):
            await client.schedule("desk", "Hi.", id=f"s{number:02}", every="1h")

        async def are_listed() -> bool:
            return len(await list_schedule_ids(client.temporal)) >= 40

        await eventually(are_listed)
        app = build_app(client, sam, burst=30, requests_per_second=0.01)
        async with serve(client, app=app) as service, service.connect("sam") as http:
            seen = [(await http.get("/schedules")).status_code for _ in range(4)]
    assert (seen[0], seen[-1]) == (200, 429), "each costs a request, and ten for forty schedules"


@pytest.mark.server
async def test_a_run_that_has_the_id_of_a_delivery_is_not_taken_for_it(engine: Engine) -> None:
    async with engine.served(build_agent()) as client:
        name = build_delivery_id("wh_1", "order-7", 3)
        task = WebhookTask(webhook_id="wh_1", message_id=f"msg_{uuid.uuid4().hex}", type="run.completed")
        squatter = await client.temporal.start_workflow(WORKFLOW_TYPE, {}, id=name, task_queue="nobody-works-here")
        for _ in range(2):
            await start_delivery(client.temporal, "nobody-works-here", name, task)
        other = f"perdure-webhook/{task.message_id}/{hashlib.sha256(name.encode()).hexdigest()}"
        delivery = client.temporal.get_workflow_handle(other)
        assert (await delivery.describe()).workflow_type == WEBHOOK_WORKFLOW_TYPE
        for handle in (squatter, delivery):
            await handle.terminate()
