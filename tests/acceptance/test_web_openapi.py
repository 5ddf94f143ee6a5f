"""The OpenAPI document: valid, complete, and true of the answers of a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from perdure import Agent, tool
from perdure.testing import ScriptedProvider, call
from perdure.web.app import OPERATIONS
from perdure.web.approvals import OPERATIONS as APPROVALS
from perdure.web.lists import OPERATIONS as LISTS
from perdure.web.openapi import build_document, format_path
from tests.support.engine import Engine
from tests.support.web import read_frames, serve

DOCUMENT = build_document(OPERATIONS)


def list_nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from list_nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from list_nodes(value)


def resolve(reference: str) -> Any:
    assert reference.startswith("#/")
    node: Any = DOCUMENT
    for name in reference[2:].split("/"):
        node = node[name.replace("~1", "/").replace("~0", "~")]
    return node


def test_the_document_follows_the_rules_of_openapi() -> None:
    references = {node["$ref"] for node in list_nodes(DOCUMENT) if isinstance(node.get("$ref"), str)}
    assert references
    for reference in references:
        assert resolve(reference) is not None
    described = {
        (method.upper(), path): one for path, item in DOCUMENT["paths"].items() for method, one in item.items()
    }
    assert described.keys() == {(operation.method, format_path(operation.path)) for operation in OPERATIONS}
    ids = [one["operationId"] for one in described.values()]
    assert len(ids) == len(set(ids)) == len(OPERATIONS)
    shapes = {re.sub(r"\{\w+\}", "{}", path) for path in DOCUMENT["paths"]}
    assert len(shapes) == len(DOCUMENT["paths"]), "no two paths differ by the names of parameters alone"
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    for (method, path), one in described.items():
        declared = {parameter["name"] for parameter in one["parameters"] if parameter["in"] == "path"}
        assert declared == set(re.findall(r"\{(\w+)\}", path))
        keys = [(parameter["in"], parameter["name"]) for parameter in one["parameters"]]
        assert len(keys) == len(set(keys))
        assert one["summary"], path
        assert set(one["tags"]) <= tags
        assert "default" in one["responses"]
        assert method != "GET" or "requestBody" not in one
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        Draft202012Validator.check_schema(schema)


def test_what_a_caller_must_know_is_there() -> None:
    events = DOCUMENT["paths"]["/sessions/{id}/events"]
    stream = events["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    assert {"$ref": "#/components/schemas/ApprovalRequested"} in stream["contentSchema"]["oneOf"]
    assert {parameter["name"] for parameter in events["get"]["parameters"]} >= {"after", "children", "Last-Event-ID"}
    assert "Idempotency-Key" in {parameter["name"] for parameter in events["post"]["parameters"]}
    assert DOCUMENT["paths"]["/openapi.json"]["get"]["security"] == []
    upload = DOCUMENT["paths"]["/files"]["post"]
    assert upload["requestBody"]["content"] == {"application/octet-stream": {}}
    assert next(one for one in upload["parameters"] if one["name"] == "media_type")["description"]


def test_the_reference_has_every_operation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
    for operation in OPERATIONS:
        assert f"### {operation.method} /v1{format_path(operation.path)}\n" in page


class Checked(httpx.AsyncBaseTransport):
    """Validates every answer against the document."""

    def __init__(self) -> None:
        self._inner = httpx.AsyncHTTPTransport()
        self.checked: set[str] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        path = request.url.raw_path.decode().removeprefix("/v1").partition("?")[0]
        found = [
            item[request.method.lower()]
            for shape, item in DOCUMENT["paths"].items()
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", shape), path) and request.method.lower() in item
        ]
        assert len(found) == 1, path
        responses = found[0]["responses"]
        declared = responses.get(str(answer.status_code), responses["default"])
        declared = resolve(declared["$ref"]) if "$ref" in declared else declared
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert ({kind, "*/*"} & declared["content"].keys()) if "content" in declared else not kind, (path, kind)
        if "json" in kind:
            await answer.aread()
            check(declared["content"][kind]["schema"], answer.json())
        if answer.status_code < 300:
            self.checked.add(found[0]["operationId"])
        return answer

    async def aclose(self) -> None:
        await self._inner.aclose()


def check(schema: Any, value: Any) -> None:
    validator = Draft202012Validator({"$ref": "#/root", "root": schema, "components": DOCUMENT["components"]})
    errors = [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(value)]
    assert errors == []


@pytest.mark.server
async def test_answers_are_as_the_document_says(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", "127.0.0.1")

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        return "paid"

    provider = ScriptedProvider([call("pay", amount=3), "done", "again"])
    agent = Agent("payer", provider, tools=[pay])
    checked = Checked()
    async with (
        engine.served(agent) as client,
        serve(client) as service,
        service.connect() as plain,
        httpx.AsyncClient(base_url=plain.base_url, headers=plain.headers, transport=checked, timeout=30) as http,
    ):
        document = (await http.get("/openapi.json", headers={"authorization": ""})).json()
        assert document == json.loads(json.dumps(DOCUMENT))
        part = (await http.post("/files", content=b"a text", params={"name": "a.txt"})).json()
        check({"$ref": "#/components/schemas/FileContent"}, part)
        session = (await http.post("/sessions", json={"agent": "payer", "content": ["Pay", part][1:]})).json()["id"]
        headers = {"accept": "text/event-stream"}
        async with plain.stream("GET", f"/sessions/{session}/events", headers=headers) as stream:
            async for _, event in read_frames(stream):
                check({"$ref": "#/components/schemas/EventPage/properties/data/items"}, event)
                if event["type"] == "approval.requested":
                    break
        path = f"/sessions/{session}"
        assert (await http.get(path)).json()["approvals"]
        decision = {"type": "approval", "call_id": event["call_id"], "decision": "approve", "hash": event["hash"]}
        assert (await http.post(f"{path}/events", json=decision)).status_code == 202
        sent = await http.post(f"{path}/events", json={"type": "message", "content": "More"})
        await http.get(f"{path}/turns/{sent.json()['task_id']}", params={"wait": 30})
        await http.get(f"{path}/events")
        await http.get(f"{path}/turns/{sent.json()['task_id']}/events", headers=headers)
        await http.get(f"{path}/files/{part['blob']['hash']}")
        await http.get(f"{path}/artifacts")
        fork = (await http.post(f"{path}/fork", json={})).json()
        await http.get(f"{path}/diff", params={"with": fork["id"]})
        for records in ("/audit", "/usage"):
            assert (await http.get(records)).status_code == 200
        name = f"/schedules/{engine.task_queue}"
        new = {"agent": "payer", "content": "Pay", "every": "1h"}
        await http.post("/schedules", json=new | {"id": engine.task_queue, "paused": True})
        await http.put(name, json=new)
        for request in (http.get(name), http.get("/schedules"), http.post(f"{name}/pause"), http.delete(name)):
            await request
        hook = (await http.post("/webhooks", json={"url": "https://127.0.0.1/hook", "events": ["run.*"]})).json()
        one = f"/webhooks/{hook['id']}"
        changes = (http.patch(one, json={"enabled": False}), http.post(f"{one}/rotate"), http.get(f"{one}/deliveries"))
        for request in (http.get(one), http.get("/webhooks"), *changes, http.delete(one)):
            assert (await request).status_code < 300
        fork_only = {"verb": "cancel", "filter": {"ids": [fork["id"]]}}
        await http.post("/bulk-actions/preview", json=fork_only)
        bulk = f"/bulk-actions/{(await http.post('/bulk-actions', json=fork_only)).json()['id']}"
        bulks = (http.get(bulk), http.get("/bulk-actions"), http.get(f"{bulk}/runs"), http.post(f"{bulk}/stop"))
        for request in bulks:
            assert (await request).status_code < 300
        for request in (http.get("/sessions/nothing"), http.post("/sessions", json={}), http.get(name)):
            assert (await request).status_code >= 400
    never = {"get_artifact", "resume_schedule", "trigger_schedule", "test_webhook", "resend_delivery"}
    never |= {operation.name for operation in (*LISTS, *APPROVALS)}  # test_web_lists.py, test_web_approvals.py
    missing = {operation.name for operation in OPERATIONS} - checked.checked
    assert missing <= never, "each operation is asked here; the rest has an answer of the same type as another"
