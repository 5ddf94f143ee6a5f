"""Workers and task queues by httpx: as they are, and while Temporal is silent."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.converter import encode_search_attributes
from temporalio.service import ServiceClient

from perdure import Agent, Client, Run, Worker, tool
from perdure.client.queues import Backlog, QueueStatus, QueueWorker
from perdure.console.workers import find_faults
from perdure.testing import ScriptedProvider, call
from tests.console.test_agents import says
from tests.console.test_hostile import check_page
from tests.support.engine import Engine
from tests.support.pages import Html, console
from tests.support.wait import eventually
from tests.support.web import make_caller


async def test_queues_with_workers(engine: Engine) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client, console(client) as opened:
        await client.start("a", None, mode="session", id="open-1")
        browser = opened.browse()
        page = await browser.open("/workers")
        check_page(page, browser.response.text)
        assert says(page, "Nothing needs attention")
        assert says(page, f"{engine.task_queue} 1 worker")
        assert says(page, "Open runs 1")
        page = await browser.open("/workers?queue=%22%3E%3Cscript%3E")
        check_page(page, browser.response.text)
        assert "All queues" in page.text
        for name in ("", "%20", "x" * 3_000):
            await browser.open(f"/workers?queue={name}&check=all")
            assert browser.response.status_code == 200


async def test_who_may_see_workers(engine: Engine) -> None:
    limited = [
        make_caller("acme", "admin", tenants=("acme",)),
        make_caller("guest", "viewer", sessions=("s",)),
        make_caller("one", "viewer", agents=("a",)),
    ]
    async with (
        engine.served(Agent("a", ScriptedProvider(["hi"]))) as client,
        console(client, *limited, make_caller("eve", "viewer")) as opened,
    ):
        for name, status in (("acme", 403), ("guest", 403), ("one", 403), ("eve", 200)):
            browser = opened.browse(name)
            page = await browser.open("/workers")
            assert browser.response.status_code == status
            assert ("runs of every tenant" in page.text) == (status == 403)
            assert ("Workers" in page.text) == (status == 200), "the bar names the pages that may be seen"


@asynccontextmanager
async def silent_temporal(kind: str) -> AsyncIterator[str]:
    """An address where nothing answers: a port without a listener, or one that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if kind == "refuses":
            listener.close()
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("kind", "said"), [("refuses", "Temporal cannot be reached"), ("hangs", "Temporal did not answer within")]
)
async def test_a_silent_temporal_is_a_line_of_the_page(engine: Engine, kind: str, said: str) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client, silent_temporal(kind) as address:
        await client.store(create=True)
        temporal = await TemporalClient.connect(address, lazy=True)
        silent = Client(temporal, store_url=engine.store_url, task_queue="somewhere")
        try:
            async with console(silent) as opened:
                browser = opened.browse()
                for path in ("/workers", *(("/workers?check=all&queue=q",) if kind == "refuses" else ())):
                    page = await browser.open(path)
                    assert browser.response.status_code == 200
                    assert said in page.text
                    assert "Nothing needs attention" not in page.text
                for path in ("/agents", "/agents/a"):
                    page = await browser.open(path)
                    assert browser.response.status_code == 200
                if kind == "refuses":
                    page = await browser.open("/schedules")
                    assert browser.response.status_code == 503
                    assert says(page, "Temporal, which keeps the schedules, cannot be reached.")
                    assert address not in page.text
        finally:
            await silent.close()


NOW = datetime.now(UTC) + timedelta(hours=1)  # later than any moment of these tests
LIVE = QueueWorker("w1", "", NOW, NOW)
VERSIONED = QueueWorker("w2", "shop.v1", NOW, NOW)
GONE = QueueWorker("w3", "", NOW - timedelta(hours=2), NOW - timedelta(hours=2))
IDLE = Backlog(0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("fields", "need", "tone", "part"),
    [
        ({"workers": (LIVE,)}, "calls wait", "", ""),
        ({"workers": (GONE,), "open_runs": 3}, None, "bad", "No worker polls it's: 3 open runs stand still."),
        ({"workers": ()}, "calls wait", "warn", "No worker polls it's: calls wait."),
        ({"workers": ()}, None, "", ""),
        ({"silence": "Temporal cannot be reached"}, "calls wait", "", ""),
        ({"workers": (LIVE,), "current": "shop.v2"}, None, "bad", "to workers of version shop.v2"),
        ({"workers": (VERSIONED,)}, None, "bad", "to workers without a version"),
        ({"workers": (VERSIONED,), "current": "shop.v1"}, None, "", ""),
        ({"workers": (VERSIONED,), "current": "shop.v1", "ramping": "shop.v2"}, None, "", ""),
        (
            {"workers": (VERSIONED,), "current": "shop.v1", "ramping": "shop.v2", "ramp_percentage": 5.0},
            None,
            "bad",
            "to workers of version shop.v2",
        ),
        ({"workers": (QueueWorker("w", "", NOW, None),)}, None, "warn", "polled for activities"),
        ({"workers": (QueueWorker("w", "", None, NOW),)}, "calls wait", "", ""),
        ({"workers": (LIVE,), "activity_backlog": Backlog(40, 90.0, 1.0, 0.5)}, None, "warn", "the oldest for 1 min"),
        ({"workers": (VERSIONED,), "workflow_backlog": Backlog(4, 60.0, 1.0, 0.5)}, None, "bad", "of version shop.v1"),
        ({"workers": (LIVE,), "workflow_backlog": Backlog(4, 1.0, 1.0, 0.5)}, None, "", ""),
    ],
)
def test_what_an_operator_is_told(fields: dict[str, Any], need: str | None, tone: str, part: str) -> None:
    faults = list(find_faults(QueueStatus("it's", **fields), need))
    assert [fault.tone for fault in faults] == ([tone] if tone else [])
    for fault in faults:
        assert part in fault.text
        assert "it's" not in fault.command, "a name is quoted for the shell"


# ---
# Runs that Temporal flags: the dev server does not.


class FlaggingService(ServiceClient):
    """Hands requests on to the engine's service. Each execution in a list of flagged ones has the flag."""

    def __init__(self, inner: ServiceClient, problem: str) -> None:
        super().__init__(inner.config)
        self._inner, self._problem = inner, problem

    @property
    def worker_service_client(self) -> Any:
        return self._inner.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        self._inner.update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        self._inner.update_api_key(api_key)

    async def _rpc_call(self, rpc: str, req: Any, *arguments: Any, **options: Any) -> Any:
        answer = await self._inner._rpc_call(rpc, req, *arguments, **options)
        if rpc == "list_workflow_executions" and "TemporalReportedProblems" in req.query:
            key = SearchAttributeKey.for_keyword_list("TemporalReportedProblems")
            flag = TypedSearchAttributes([SearchAttributePair(key, [f"category={self._problem}"])])
            for execution in answer.executions:
                encode_search_attributes(flag, execution.search_attributes)
        return answer


@pytest.mark.parametrize(("problem", "is_shown"), [("WorkflowTaskTimedOut", True), ("WorkflowTaskFailed", False)])
async def test_runs_that_temporal_flags(engine: Engine, problem: str, is_shown: bool) -> None:
    """One whose tasks time out is shown as flagged; a failure that its last events do not have is over."""
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client:
        await client.start("a", None, mode="session", id="slow-1")
        temporal = TemporalClient(FlaggingService(client.temporal.service_client, problem))
        flagging = Client(temporal, store_url=engine.store_url, task_queue=engine.task_queue)
        try:
            async with console(flagging) as opened:
                page = await opened.browse().open("/workers")
                assert says(page, "its workflow task times out") == is_shown
                assert says(page, "1 run cannot go on") == is_shown
                assert says(page, "the runs that Temporal flags")
        finally:
            await flagging.close()


# ---
# On a real server.


@tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay a person."""
    return f"paid {to}"


@pytest.mark.server
async def test_a_run_whose_workflow_task_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_agent() -> Agent[Any, Any]:
        return Agent("payer", ScriptedProvider(lambda _: call("pay", to="bob")), tools=[pay])

    async def asks(run: Run[Any]) -> bool:
        return bool((await run.status()).approvals)

    with monkeypatch.context() as other_code:
        other_code.setattr("perdure.workflows.host.Host.upsert_memo", lambda *_: None)
        async with engine.served(build_agent()) as client:
            run = await client.start("payer", "Go.")
            await eventually(lambda: asks(run))
    async with engine.served(build_agent()) as client, console(client) as opened:
        run = client.run(run.id)
        await run.handle.signal("probe")
        browser = opened.browse()

        async def names_run() -> Html | None:
            page = await browser.open(f"/workers?queue={engine.task_queue}")
            return page if f"/console/runs/{run.id}" in {given.get("href") for _, given in page.tags} else None

        page = await eventually(names_run)
        assert says(page, "1 run cannot go on")
        assert says(page, "TMPRL1100")
        assert says(page, f"temporal workflow reset --workflow-id {run.id} --event-id ")
        assert says(page, f"payer {engine.task_queue}")
        check_page(page, browser.response.text)
        await run.terminate()


@pytest.mark.server
async def test_versions_and_backlog_as_temporal_tells_them(engine: Engine) -> None:
    agent, name = Agent("plain", ScriptedProvider(["hi"])), engine.task_queue.replace("-", "")
    client = await engine.client()
    run = await client.start("plain", "Go")
    async with console(client) as opened:
        browser = opened.browse()
        page = await browser.open(f"/workers?queue={engine.task_queue}")
        assert says(page, f"No worker polls {engine.task_queue}: 1 open run stands still.")
        assert says(page, f"perdure worker FILE --task-queue {engine.task_queue}")
        async with Worker(client, [agent], deployment=f"{name}.v1"):

            async def shows(path: str, *parts: str) -> bool:
                shown = await browser.open(path)
                return all(says(shown, part) for part in parts)

            queue = f"/workers?queue={engine.task_queue}"
            unrouted = f"to workers without a version, and those that poll are of version {name}.v1"
            command = f"set-current-version --deployment-name {name} --build-id v1"
            await eventually(lambda: shows(queue, unrouted, command, "Workflow tasks waiting 1 the oldest"))
            await eventually(lambda: shows("/workers", "v1 inactive"))
            await run.terminate()
