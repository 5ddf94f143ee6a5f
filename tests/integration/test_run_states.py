"""One word for the state of a run, wherever it is asked for: lists, status, HTTP, the console."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from perdure import Agent, Client, tool
from perdure.errors import BadRequestError, ProviderServerError
from perdure.store.sqlite import SqliteStore
from perdure.testing import ScriptedProvider, call
from perdure.types.run_states import RunState
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.pages import Html, console
from tests.support.scripts import Gate
from tests.support.wait import eventually


@tool(needs_approval=True)
def refund() -> str:
    """Refund."""
    return "refunded"


def fail(error: Exception) -> ScriptedProvider:
    def raise_it(_: Any) -> Any:
        raise error

    return ScriptedProvider(raise_it)


async def bring_into_each_state(client: Client, gate: Gate, folder: Path, name: str) -> dict[str, str]:
    """Start a run for each state, and return their ids by state."""

    async def hold(_: Any) -> str:
        await gate()
        return "Done."

    ids = {state: f"{name}-{state}" for state in get_args(RunState)}
    modes = {"idle": "session"}
    agents = {
        "held_up": "ill", "waiting": "payer", "failed": "refused", "running": "busy", "paused": "talker",
        "cancelled": "busy", "terminated": "busy",
    }  # fmt: skip
    for state, run_id in ids.items():
        if state in ("timed_out", "other_store"):
            continue
        mode: Any = modes.get(state, "session" if state == "paused" else "run")
        await client.start(agents.get(state, "talker"), "Go.", id=run_id, mode=mode)
    timeout = timedelta(seconds=1)
    await client.temporal.start_workflow(
        "AgentWorkflow", {"agent": "busy", "message": "Go."}, id=ids["timed_out"], task_queue=client.task_queue,
        execution_timeout=timeout,
    )  # fmt: skip
    elsewhere = f"sqlite:///{folder}/other.db"
    store = SqliteStore(elsewhere)
    await store.open()
    await store.close()
    other = Client(client.temporal, store_url=elsewhere, task_queue=f"{client.task_queue}-nobody")
    await other.start("talker", "Go.", id=ids["other_store"])
    await other.close()
    await client.run(ids["idle"]).turn().result()
    await client.run(ids["paused"]).turn().result()
    await client.run(ids["paused"]).pause()
    await client.run(ids["completed"]).result()
    await eventually(lambda: gate.entered >= 3)
    await client.run(ids["cancelled"]).cancel()
    await client.run(ids["terminated"]).terminate()
    return ids


@pytest.mark.server
async def test_everywhere_a_run_has_the_same_state(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cli, gate = Commands(engine, monkeypatch), Gate()

    async def hold(_: Any) -> str:
        await gate()
        return "Done."

    agents = [
        Agent("talker", ScriptedProvider(lambda _: "Hello.")),
        Agent("busy", ScriptedProvider(hold)),
        Agent("ill", fail(ProviderServerError("it is down", status=500))),
        Agent("payer", ScriptedProvider(lambda _: call("refund")), tools=[refund]),
        Agent("refused", fail(BadRequestError("no", status=400))),
    ]
    name = engine.task_queue
    async with engine.served(*agents) as client, console(client) as opened:
        ids = await bring_into_each_state(client, gate, tmp_path, name)
        expected = {run_id: state for state, run_id in ids.items()}
        query = f"WorkflowId STARTS_WITH '{name}'"

        async def read_list() -> dict[str, str]:
            return {run.id: run.status for run in await client.list(query=query, limit=100)}

        async def are_there() -> bool:
            return await read_list() == expected

        await eventually(are_there, deadline=90, what="a run in each state")
        listed = json.loads((await cli("list", "--query", query, "-o", "json")).out)
        assert {row["id"]: row["status"] for row in listed} == expected
        text = (await cli("list", "--query", query)).out
        for run_id, state in expected.items():
            [row] = [line for line in text.splitlines() if re.match(rf"{run_id} ", line)]
            assert f"  {state.replace('_', ' ')}  " in f"{row}  "
        for run_id, state in expected.items():
            assert (await client.run(run_id).status()).state == state
            shown = (await cli("show", run_id)).out.splitlines()[0]
            assert f"{run_id}  {state.replace('_', ' ')}  " in shown
        async with opened.service.connect() as http:
            found: dict[str, str] = {}
            cursor: str | None = None
            while True:
                page = (
                    await http.get("/sessions", params={"limit": 200} | ({"cursor": cursor} if cursor else {}))
                ).json()
                found |= {row["id"]: row["status"] for row in page["data"] if row["id"] in expected}
                if (cursor := page.get("cursor")) is None:
                    break
            assert found == expected
            for run_id, state in expected.items():
                assert (await http.get(f"/sessions/{run_id}")).json()["state"] == state
            for state in ("held_up", "waiting", "paused", "failed", "timed_out"):
                answer = await http.get("/sessions", params={"status": state, "limit": 200})
                rows = [row for row in answer.json()["data"] if row["id"] in expected]
                assert [row["id"] for row in rows] == [ids[state]]
        browser = opened.browse()
        await browser.open("/runs")
        cells = dict(re.findall(r'name="item" value="(.*?)".*?</td><td>(.*?)</td>', browser.response.text, re.DOTALL))
        for run_id, state in expected.items():
            words = state.replace("_", " ")
            if run_id in cells:  # a page has 50 rows, of all runs of the server
                assert Html(cells[run_id]).squeeze().startswith(words)
            await browser.open(f"/runs/{run_id}")
            assert f'<span class="state {state}">{words}</span>' in browser.response.text
        gate.open()
