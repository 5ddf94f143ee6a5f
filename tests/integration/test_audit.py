"""The audit trail in process: every request that steers a run leaves a row before it acts."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime

import pytest

from perdure import Agent, Run, tool
from perdure.client.audit import audit_caller
from perdure.client.client import Client
from perdure.errors import ApprovalDecidedError, InvalidInputError, PerdureError, StoreError
from perdure.ports.audit import AuditRow
from perdure.testing import call, scripted
from perdure.testing.store import MemoryStore
from tests.support.wait import eventually


@tool(needs_approval=True)
def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


support = Agent("support", "openai:gpt-5", tools=[refund])
WAITING = [call("refund", amount=3), call("refund", amount=4)]


async def read_audit(client: Client, subject: str = "order-7") -> list[tuple[str, str | None, str | None]]:
    """Verb, call and refusal's class, the oldest first."""
    rows = await (await client.store()).list_audit(subject=subject)
    return [(row.verb, row.call_id, row.refused and row.refused.partition(":")[0]) for row in reversed(rows)]


async def has_waits(client: Client) -> bool:
    return await (await client.store()).count_waits() == 2


async def test_who_decided_what_and_how_it_was_refused() -> None:
    async with scripted(support, [WAITING, "Done."]) as kit:
        client = kit.client
        run = await client.start(support, "Go.", id="order-7")
        await eventually(lambda: has_waits(client))
        with pytest.raises(InvalidInputError):
            await run.approve(by="ana")  # which of the two?
        await run.deny("call_1", by="ana", comment="too much")
        with pytest.raises(ApprovalDecidedError):
            await run.approve("call_1", by="bo")
        [second] = (await run.status()).approvals
        await run.approve("call_2", hash=second.hash, arguments={"amount": 1}, by="ana")
        assert (await run.result()).content == "Done."
        assert await read_audit(client) == [
            ("start", None, None),
            ("approve", None, "InvalidInputError"),
            ("deny", "call_1", None),
            ("approve", "call_1", "ApprovalDecidedError"),
            ("approve", "call_2", None),
        ]
        rows = await (await client.store()).list_audit(subject="order-7")
        assert [row.by for row in rows] == ["ana", "bo", "ana", "ana", client.actor]
        assert {row.auth for row in rows[:-1]} == {"given"}
        assert all(row.origin.endswith(f"/{os.getpid()}") for row in rows)
        assert "too much" not in str(rows), "contents are in the run's events"


async def test_every_request_that_steers_has_its_row() -> None:
    async with scripted(support, [WAITING, "Forked."]) as kit:
        client = kit.client
        run = await client.start(support, "Go.", id="order-7", mode="session")
        await eventually(lambda: has_waits(client))
        await run.pause(reason="audit")
        await run.resume()
        await run.inject("Look.", id="m1")
        await run.send("And this.", message_id="m2")
        with pytest.raises(InvalidInputError):
            await run.revoke("refund")
        await run.close()
        fork = await run.fork("Other.", id="fork")
        await fork.close()
        await fork.result()
        await run.interrupt()
        await run.terminate("enough")
        with pytest.raises(PerdureError):
            await run.cancel()
        verbs = ["start", "pause", "resume", "inject", "send", "revoke", "close", "fork", "interrupt", "terminate"]
        audited = await read_audit(client)
        assert [verb for verb, _, _ in audited] == [*verbs, "cancel"]
        assert [verb for verb, _, refused in audited if refused] == ["revoke", "cancel"]


async def test_a_client_of_the_systems_user_says_so_and_a_service_says_who_called() -> None:
    async with scripted(support, [WAITING, "Done."]) as kit:
        client = kit.client
        run = await client.start(support, "Go.", id="order-7")
        await eventually(lambda: has_waits(client))
        os_user = client.actor
        await run.deny("call_1")
        with audit_caller("token:t-1", "10.0.0.7"):
            await run.deny("call_2", by="ana")
        await run.result()
        service, own, started = await (await client.store()).list_audit()
        assert (started.verb, started.detail, started.agent) == ("start", "agent support", "support")
        assert (own.by, own.auth) == (os_user, "os-user")
        assert (service.by, service.auth, service.origin) == ("ana", "token:t-1", "10.0.0.7")
        assert own.at <= service.at <= datetime.now(UTC).isoformat(timespec="microseconds")


async def test_a_request_is_recorded_before_it_is_sent() -> None:
    """The process dies between the two."""

    class Dies(BaseException):
        pass

    class DyingStore(MemoryStore):
        async def record_audit(self, row: AuditRow) -> None:
            await super().record_audit(row)
            if row.verb == "deny":
                raise Dies

    async with scripted(support, [WAITING], store=DyingStore()) as kit:
        client = kit.client
        run = await client.start(support, "Go.", id="order-7")
        await eventually(lambda: has_waits(client))
        with pytest.raises(Dies):
            await run.deny("call_1")
        assert await read_audit(client) == [("start", None, None), ("deny", "call_1", None)]
        assert len((await run.status()).approvals) == 2


async def test_a_store_that_fails_stops_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class NoAudit(MemoryStore):
        async def record_audit(self, row: AuditRow) -> None:
            raise StoreError("the disk is full")

    async with scripted(support, [WAITING], store=NoAudit()) as kit:
        client = kit.client
        run = await client.start(support, "Go.", id="order-7")
        await eventually(lambda: has_waits(client))
        await run.deny("call_1")
        assert len((await run.status()).approvals) == 1
        assert "deny of order-7 is not in the store" in caplog.text


async def test_a_store_that_does_not_answer_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    class Silent(MemoryStore):
        async def record_audit(self, row: AuditRow) -> None:
            asked.append(row.verb)
            await asyncio.Event().wait()

    monkeypatch.setattr("perdure.client.audit._STORE_SECONDS", 0.0)
    async with scripted(support, [WAITING, "Done."], store=Silent()) as kit:
        client = kit.client
        run = await client.start(support, "Go.", id="order-7")
        await eventually(lambda: _waits_for(run, 2))
        await run.deny("call_1")
        await run.deny("call_2")
        assert (await run.result()).content == "Done."
        assert len(asked) <= 1
        assert caplog.text.count("is not in the store") >= 2


async def _waits_for(run: Run, count: int) -> bool:
    return len((await run.status()).approvals) == count
