"""The HTTP API under requests that schemathesis makes from its document, valid ones and others, in several roles."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from perdure import Agent, Client, tool
from perdure.testing import ScriptedProvider, call
from perdure.web import sse
from perdure.web.app import OPERATIONS, WebOptions, create_app
from perdure.web.auth import Caller
from perdure.web.limits import WebLimits
from tests.support.engine import Engine
from tests.support.left_out import leave_out
from tests.support.namespaces import indexed_namespace
from tests.support.wait import eventually
from tests.support.web import ADA, NamedCallers, Service, make_caller, serve

PROGRAM = Path(sys.prefix) / "fuzz/bin/schemathesis"
"""Where ``make test-all`` installs requirements/fuzz.txt."""
HOOKS = Path(__file__).parents[1] / "support"
SECRETS = {name: f"planted-{name}-{uuid.uuid4().hex}" for name in ("environment", "context", "auth", "zoo")}
CALLERS = (
    *(make_caller(role, role, tenants=("acme",)) for role in ("viewer", "sender", "approver", "operator", "admin")),
    make_caller("everywhere", "admin"),
)
SECONDS = {"everywhere": 35, "admin": 10, "operator": 8, "sender": 6, "approver": 6, "viewer": 5, "": 5}
WITHOUT = ("not_a_server_error", "positive_data_acceptance", "use_after_free", "ensure_resource_availability")
"""Checks that do not fit: 503 has one of its own; not all that a document allows makes sense; ids are those that there
are (tests/support/fuzz_hooks.py)."""
LONG = "long " * 20_000
"""The text of a file of each session."""


@tool
def fetch() -> str:
    """Fetch."""
    return LONG


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def build_agents() -> list[Agent]:
    def pay_once(request: Any) -> Any:
        called = [part.name for message in request.messages for part in message.tool_calls]
        return call("fetch") if not called else call("pay", amount=3) if "pay" not in called else "Done."

    payer = Agent("payer", ScriptedProvider(pay_once), tools=[fetch, pay], context=dict[str, str])
    return [payer, Agent("echo", ScriptedProvider(lambda _: "Hi."))]


class OwnNamespace(Engine):
    """An engine whose schedules and runs are no other test's."""

    def __init__(self, temporal: TemporalClient, folder: Path) -> None:
        super().__init__("", folder)
        self._temporal = temporal


async def plant(client: Client) -> dict[str, Any]:
    """Sessions of two tenants, a schedule and a webhook; returns ids by the names of parameters and fields."""
    runs = []
    for name, tenant in (("one", "acme"), ("two", "acme"), ("other", "zoo")):
        secret = {"card": SECRETS["context"], "zoo": SECRETS["zoo"] if tenant == "zoo" else ""}
        run = await client.start(
            "payer", f"Pay. {secret['zoo']}", id=name, mode="session", tenant=tenant, context=secret,
            auth_context={"token": SECRETS["auth"]},
        )  # fmt: skip
        await eventually(lambda run=run: _is_waiting(run))
        runs.append(run)
    await client.schedule("payer", SECRETS["zoo"], id="nightly-zoo", every="24h", paused=True, tenant="zoo")
    await client.schedule("payer", "Pay.", id="nightly", every="24h", paused=True, tenant="acme")
    hooks = [
        await client.webhooks.create("https://127.0.0.1:9/hook", events=["run.*"], tenant=tenant)
        for tenant in ("acme", "zoo")
    ]
    SECRETS["hook"] = str(hooks[0].secret)
    calls = [one.call_id for run in runs for one in (await run.status()).approvals]
    hashes = [one.hash for run in runs for one in (await run.status()).approvals]
    tasks = [(await run.turn().status()).task_id for run in runs]
    texts = [hashlib.sha256(LONG.encode()).hexdigest()]
    ids = {"id": [run.id for run in runs], "task_id": tasks, "name": ["payer", "echo"], "hash": texts}
    ids |= {"schedule": ["nightly", "nightly-zoo"], "webhook": [hook.id for hook in hooks]}
    ended = await client.start("echo", "Hi.", id="ended", tenant="acme")
    await ended.result()
    ids["id"].append(ended.id)
    body = {
        "agent": ["payer", "echo"],
        "call_id": calls,
        "hash": hashes,
        "session": ids["id"],
        "run_id": ids["id"],
        "every": ["1h"],
    }
    body |= {"url": ["https://127.0.0.1:9/other"], "tenant": ["acme"], "content": ["Pay."]}
    seldom = ["input", "override", "auth_ref", "client_tools", "at", "results", "model", "idle_timeout", "cron"]
    seldom += ["timezone", "context", "arguments", "value", "error", "limits", "user", "events"]
    return {"ids": ids, "body": body, "query": {"wait": "0.05", "with": "two"}, "seldom": seldom}


async def _is_waiting(run: Any) -> bool:
    return bool((await run.status()).approvals)


async def fuzz(service: Service, caller: Caller | None, facts: dict[str, Any], folder: Path) -> str:
    """Run schemathesis as ``caller``, and return what it has found: "" for nothing."""
    name = caller.name if caller is not None else ""
    hidden = {**SECRETS, "folder": str(folder), "zoo": SECRETS["zoo"]}
    if caller is not None and caller.tenants is None:
        del hidden["zoo"]
    path = folder / f"facts-{name}.json"
    path.write_text(json.dumps({**facts, "secrets": list(hidden.values()), "is_anonymous": caller is None}))
    command = [
        *("run", f"{service.url}/v1/openapi.json", "--checks", "all", "--exclude-checks", ",".join(WITHOUT)),
        *("--max-time", str(SECONDS[name]), "--generation-database", "none", "--no-color", "--no-shrink"),
        *("--suppress-health-check", "all", "--request-timeout", "60", "--max-response-time", "50"),
        "--continue-on-failure",
        *("--warnings", "off", "--output-sanitize", "false"),
    ]
    if caller is not None:
        command += ["-H", f"Authorization: Bearer {name}"]
    environment = {**os.environ, "FUZZ_FACTS": str(path), "SCHEMATHESIS_HOOKS": "fuzz_hooks", "PYTHONPATH": str(HOOKS)}
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate())[0].decode()
    print(f"== as {name or 'nobody'}:", output[-3000:] if process.returncode == 0 else "")
    return "" if process.returncode == 0 else f"== as {name or 'nobody'}\n{output}"


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(400)
async def test_no_request_of_the_documents_kind_breaks_the_service(
    temporal_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not PROGRAM.exists():
        leave_out("the HTTP API by schemathesis", "make test-all installs it", required_by="PERDURE_REQUIRE_FUZZ")
    monkeypatch.setenv("FUZZ_SECRET", SECRETS["environment"])
    monkeypatch.setenv("OPENAI_API_KEY", f"sk-{SECRETS['environment']}")
    key = base64.b64encode(SECRETS["environment"][-32:].encode()).decode()
    SECRETS["key"] = key
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", f"k1:{key}")
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", "127.0.0.1")
    monkeypatch.setattr(sse, "STREAM_SECONDS", 0.1)
    namespace = f"fuzz-{uuid.uuid4().hex[:8]}"
    await indexed_namespace(temporal_address, namespace)
    engine = OwnNamespace(await TemporalClient.connect(temporal_address, namespace=namespace), tmp_path)
    limits = WebLimits(requests_per_second=1e6, burst=10**6, failures_per_minute=1e6, failure_burst=10**6)
    async with engine.served(*build_agents(), webhooks=False) as client:
        facts = await plant(client)
        app = create_app(client, authenticator=NamedCallers(ADA, *CALLERS), options=WebOptions(dev=True, limits=limits))
        async with serve(client, app=app) as service:
            found = [await fuzz(service, caller, facts, tmp_path) for caller in (*reversed(CALLERS), None)]
    await engine.close()
    assert not any(found), "\n".join(found)
    answers = {tuple(line.split()) for line in (tmp_path / "facts-everywhere.answers").read_text().splitlines()}
    answered = {name for name, status in answers if status.startswith("2")}
    missing = {
        operation.name for operation in OPERATIONS
    } - answered  # a few in time, on two cores that do nothing else
    print("have not succeeded once:", *sorted(missing))
    assert len(answered) >= 10, f"too few operations have succeeded once: {answered}"
    unexpected = [record for record in caplog.records if record.levelname == "ERROR"]
    assert not unexpected, unexpected
