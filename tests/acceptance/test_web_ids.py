"""Ids of runs over HTTP: what a caller may name a new run, at every door that begins one, and that the runs of two
tenants never meet."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import ScheduleActionStartWorkflow

from perdure import Agent, Client, tool
from perdure.console import console_routes
from perdure.errors import RunNotFoundError
from perdure.testing import ScriptedProvider, call
from perdure.types.run_ids import build_run_id, get_tenant_prefix
from perdure.web.app import OPERATIONS, WebOptions, create_app
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import ADA, NamedCallers, Service, make_caller, serve

REFUSED = "this id cannot be used"
SECRET = "BETA-SECRET"

Door = Callable[[httpx.AsyncClient, str], Awaitable[httpx.Response]]
"""Begins a run of the name."""


async def create(http: httpx.AsyncClient, name: str) -> httpx.Response:
    return await http.post("/v1/sessions", json={"agent": "lead", "id": name, "content": "hi"})


async def fork(http: httpx.AsyncClient, name: str) -> httpx.Response:
    return await http.post("/v1/sessions/origin/fork", json={"id": name, "content": "hi"})


async def schedule(http: httpx.AsyncClient, name: str) -> httpx.Response:
    body = {"agent": "lead", "id": name, "content": "hi", "cron": "0 7 1 1 *"}
    return await http.post("/v1/schedules", json=body)


async def agui(http: httpx.AsyncClient, name: str) -> httpx.Response:
    message = {"id": "u1", "role": "user", "content": "hi"}
    body = {"threadId": name, "runId": "r1", "state": {}, "messages": [message], "tools": [], "context": []}
    return await http.post("/agui/lead", json={**body, "forwardedProps": {}})


async def vercel(http: httpx.AsyncClient, name: str) -> httpx.Response:
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    return await http.post("/ui/lead", json={"id": name, "trigger": "submit-message", "messages": [message]})


async def openai_chat(http: httpx.AsyncClient, name: str) -> httpx.Response:
    body = {"model": "lead", "messages": [{"role": "user", "content": "hi"}]}
    return await http.post("/openai/v1/chat/completions", json=body, headers={"X-Perdure-Session": name.encode()})  # type: ignore[dict-item]  # bytes


async def openai_responses(http: httpx.AsyncClient, name: str) -> httpx.Response:
    return await http.post("/openai/v1/responses", json={"model": "lead", "input": "hi", "conversation": name})


DOORS: Mapping[str, Door] = {
    "create_session": create,
    "fork_session": fork,
    "create_schedule": schedule,
    "agui": agui,
    "vercel": vercel,
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
}
NOT_DOORS = {
    # what is begun has an id of the engine's own, or nothing is begun
    "upload_file", "post_event", "decide_approvals", "create_webhook", "update_webhook", "rotate_webhook",
    "test_webhook", "resend_delivery", "delete_webhook", "delete_session", "pause_schedule", "resume_schedule",
    "trigger_schedule", "delete_schedule", "replace_schedule", "preview_bulk_action", "create_bulk_action",
    "stop_bulk_action",
}  # fmt: skip


def test_each_operation_that_acts_is_a_door_or_known_to_be_none() -> None:
    acting = {operation.name for operation in OPERATIONS if operation.method != "GET"}
    assert acting - NOT_DOORS - DOORS.keys() == set(), "say of a new operation whether it begins a run"


def team() -> Agent:
    helper = Agent("helper", ScriptedProvider(lambda _: "Found."), description="Finds.")

    @tool
    async def ask_account() -> str:
        """Tells the account."""
        return SECRET

    def lead(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "user" and "delegate" in last.text:
            return call("call_helper", task="Find.")
        return f"heard: {last.text}"

    return Agent("lead", ScriptedProvider(lead), subagents=[helper], tools=[ask_account])


def connect(service: Service, name: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=service.url, headers={"Authorization": f"Bearer {name}"}, timeout=60)


@pytest.fixture
def acme() -> str:
    return f"acme-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def beta() -> str:
    return f"beta & söhne {uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def serve_tenants(client: Client, acme: str, beta: str) -> AsyncIterator[Service]:
    callers = NamedCallers(
        ADA,
        make_caller("sam", "operator", tenants=(acme,)),
        make_caller("bob", "operator", tenants=(beta,)),
        make_caller("both", "operator", tenants=(acme, beta)),
    )
    app = create_app(client, authenticator=callers, options=WebOptions(dev=True), pages=console_routes)
    async with serve(client, app=app) as service:
        yield service


async def end(client: Client, http: httpx.AsyncClient, run_id: str) -> None:
    run = client.run(run_id)
    await run.close()
    await run.wait_for_close()


async def forget(client: Client, run_id: str) -> None:
    """As Temporal does after its retention."""
    request = DeleteWorkflowExecutionRequest(
        namespace=client.temporal.namespace, workflow_execution=WorkflowExecution(workflow_id=run_id)
    )
    await client.temporal.workflow_service.delete_workflow_execution(request)

    async def is_gone() -> bool:
        try:
            await client.run(run_id).describe()
        except RunNotFoundError:
            return True
        return False

    await eventually(is_gone)


async def read_items(http: httpx.AsyncClient, name: str) -> Any:
    answer = await http.get(f"/v1/sessions/{quote(name, safe='')}/items")
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def make_betas(client: Client, http: httpx.AsyncClient, beta: str) -> None:
    """Beta's sessions: one that is open, one that has ended, one that Temporal has forgotten."""
    for name in ("open-7", "closed-7", "forgotten-7"):
        made = await http.post("/v1/sessions", json={"agent": "lead", "id": name, "content": SECRET})
        assert made.status_code == 201, made.text
        await client.run(name, tenant=beta).turn().result()
    for name in ("closed-7", "forgotten-7"):
        await end(client, http, build_run_id(name, beta))
    await forget(client, build_run_id("forgotten-7", beta))


@pytest.mark.fault(
    "Borders",
    "A caller names a new run as another's: a subagent's, a scheduled run's, another tenant's, or "
    "with a slash, a line break or a reserved beginning.",
    "It is refused with one text, at every door.",
)
@pytest.mark.server
async def test_no_door_begins_a_run_whose_id_is_not_the_callers_to_choose(engine: Engine, acme: str, beta: str) -> None:
    async with (
        engine.served(team()) as client,
        serve_tenants(client, acme, beta) as service,
        connect(service, "bob") as bob,
        connect(service, "sam") as sam,
    ):
        await make_betas(client, bob, beta)
        made = await schedule(bob, "nightly")
        assert made.status_code == 201, made.text
        assert (await create(sam, "origin")).status_code == 201
        await client.run("origin", tenant=acme).turn().result()
        due = made.json()["next"][0].replace("+00:00", "Z")
        names = {
            "slash": "a/b",
            "below a run": "origin/2",
            "dot": ".",
            "dots": "..",
            "line break": "x\ny",
            "bidi": "a\u202eb",
            "reserved for tenants": "@x",
            "another tenant's, open": build_run_id("open-7", beta),
            "another tenant's, closed": build_run_id("closed-7", beta),
            "another tenant's, forgotten": build_run_id("forgotten-7", beta),
            "a scheduled run": f"schedule:nightly-{due}",
            "a scheduled run of another": build_run_id(f"schedule:nightly-{due}", beta),
            "Temporal's own": "temporal-sys-scheduler:nightly",
            "a webhook's delivery": "perdure-webhook/w/s/1",
            "too long": "x" * 1000,
        }
        before = [await read_items(bob, name) for name in ("open-7", "closed-7", "forgotten-7")]
        counts = (await bob.get("/v1/sessions")).json()
        for door, begin in DOORS.items():
            for why, name in names.items():
                if door.startswith("openai_chat") and not name.isprintable():
                    continue  # no header has such a name
                answer = await begin(sam, name)
                said = answer.json()
                told = said.get("detail") or said["error"]["message"]
                assert (answer.status_code, told[: len(REFUSED)]) == (409, REFUSED), f"{door}: {why}: {answer.text}"
        assert [await read_items(bob, name) for name in ("open-7", "closed-7", "forgotten-7")] == before
        assert (await bob.get("/v1/sessions")).json() == counts
        assert {row["id"] for row in (await sam.get("/v1/sessions")).json()["data"]} == {"origin"}


@pytest.mark.fault(
    "Borders", "Two tenants name their runs alike.", "Both have their run, and neither learns of the other's."
)
@pytest.mark.server
async def test_two_tenants_may_have_runs_of_one_name_and_neither_learns_of_the_others(
    engine: Engine, acme: str, beta: str
) -> None:
    async with (
        engine.served(team()) as client,
        serve_tenants(client, acme, beta) as service,
        connect(service, "bob") as bob,
        connect(service, "sam") as sam,
    ):
        await make_betas(client, bob, beta)
        assert (await create(sam, "origin")).status_code == 201
        await client.run("origin", tenant=acme).turn().result()
        for number, (door, begin) in enumerate(DOORS.items()):
            if door == "create_schedule":
                assert (await begin(bob, "nightly")).status_code == (await begin(sam, "nightly")).status_code == 201
                continue
            for name in ("open-7", "closed-7", "forgotten-7"):
                if number and door in ("create_session", "fork_session"):
                    name = f"{name}-{door}"
                answer = await begin(sam, name)
                assert answer.status_code in (200, 201), f"{door}: {answer.text}"
                assert SECRET not in answer.text
        for name in ("open-7", "closed-7", "forgotten-7"):
            await client.run(name, tenant=acme).turn().result()
            own, theirs = await read_items(sam, name), await read_items(bob, name)
            assert SECRET in json.dumps(theirs)
            assert "hi" not in json.dumps(theirs)
            assert SECRET not in json.dumps(own)
        # Those who may see both name them with their tenants.
        async with connect(service, "both") as both:
            listed = {row["id"] for row in (await both.get("/v1/sessions", params={"limit": 100})).json()["data"]}
            assert {build_run_id("open-7", acme), build_run_id("open-7", beta)} <= listed
            assert SECRET in json.dumps(await read_items(both, build_run_id("open-7", beta)))


@pytest.mark.server
async def test_what_a_caller_is_told_has_no_prefix_and_can_be_sent_back(engine: Engine, acme: str, beta: str) -> None:
    async with (
        engine.served(team()) as client,
        serve_tenants(client, acme, beta) as service,
        connect(service, "sam") as sam,
    ):
        made = await sam.post("/v1/sessions", json={"agent": "lead", "id": "order-7", "content": "delegate"})
        assert (made.status_code, made.json()["id"]) == (201, "order-7")
        assert made.headers["location"] == "/v1/sessions/order-7"
        await client.run("order-7", tenant=acme).turn().result()
        [child] = (await sam.get("/v1/sessions/order-7/subagents")).json()["data"]
        assert child["id"].startswith("order-7/")
        found = await sam.get(f"/v1/sessions/{quote(child['id'], safe='')}")
        assert (found.status_code, found.json().get("id")) == (200, child["id"]), found.text
        assert (await schedule(sam, "nightly")).json()["id"] == "nightly"
        assert (await sam.post("/v1/schedules/nightly/trigger", json={})).status_code == 200
        for door in ("agui", "vercel", "openai_chat", "openai_responses"):
            assert (await DOORS[door](sam, f"thread-{door}")).status_code == 200

        async def has_run() -> bool:
            return bool((await sam.get("/v1/schedules/nightly")).json()["recent"])

        await eventually(has_run)
        paths = [
            "/v1/sessions", "/v1/sessions?children=true", "/v1/sessions/order-7", "/v1/sessions/order-7/events",
            "/v1/sessions/order-7/items", "/v1/sessions/order-7/turns", "/v1/sessions/order-7/subagents",
            "/v1/schedules", "/v1/schedules/nightly", "/v1/audit", "/v1/audit?subject=order-7", "/v1/usage?group=run",
            "/v1/approvals", "/v1/sessions/nothing", "/v1/sessions/%40beta%2Forder-7",
            "/agui/lead?threadId=thread-agui&runId=r1",
        ]  # fmt: skip
        for path in paths:
            answer = await sam.get(path, headers={"accept": "application/json"})
            assert get_tenant_prefix(acme) not in answer.text, f"{path}: {answer.text}"
        rows = (await sam.get("/v1/audit?subject=order-7")).json()["data"]
        assert {row["subject"] for row in rows} <= {"order-7"}
        forked = await sam.post("/v1/sessions/order-7/fork", json={"id": "order-8"})
        assert (forked.status_code, forked.json()["id"]) == (201, "order-8")
        diff = await sam.get("/v1/sessions/order-7/diff", params={"with": "order-8"})
        assert diff.status_code == 200, diff.text
        page = await sam.get(f"/console/runs/{quote(child['id'], safe='')}")
        assert page.status_code in (200, 303)


@pytest.mark.server
async def test_a_schedule_and_its_runs_name_their_tenant(engine: Engine, acme: str) -> None:
    async with engine.served(team()) as client:
        made = await client.schedule("lead", "hi", id="nightly", cron="0 7 1 1 *", tenant=acme)
        action = (await made.handle.describe()).schedule.action
        assert isinstance(action, ScheduleActionStartWorkflow)
        assert (made.id, action.id) == (f"@{acme}/nightly", f"@{acme}/schedule:nightly")
        await made.delete()
