"""Entries of a run's page: attempts are folded, an error stands once, results and times are shown as they are read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from perdure import Agent, tool
from perdure.client.run import Run
from perdure.console.transcript import CallBlock, NoteBlock, Transcript
from perdure.ports.times import timestamp
from perdure.testing import ScriptedProvider, call
from perdure.types.events import ErrorEvent, ModelCompleted, ModelStarted, RunEvent, ToolStarted, TurnEvent
from perdure.worker.engine import record_agents
from tests.console.test_access import wait_for_waits
from tests.support.engine import Engine
from tests.support.pages import console
from tests.support.wait import eventually

BEGIN = datetime(2026, 1, 31, 3, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    return timestamp(BEGIN + timedelta(seconds=seconds))


def fail(seq: int, attempt: int, **fields: Any) -> ErrorEvent:
    return ErrorEvent(seq=seq, at=at(seq), attempt=attempt, error_type="ProviderServerError", error="500", **fields)


def list_notes(transcript: Transcript) -> list[tuple[str, str]]:
    return [(block.title, block.text) for block in transcript.blocks.values() if isinstance(block, NoteBlock)]


def test_attempts_of_one_call_are_one_note() -> None:
    transcript = Transcript()
    transcript.add(ModelStarted(seq=1, at=at(1), iteration=1, model="openai:gpt-5"))
    for attempt in range(1, 72):
        [note] = transcript.add(fail(attempt + 1, attempt, activity="perdure.model", retry_in=30))
    assert list_notes(transcript) == [("71 attempts of the model call failed", "ProviderServerError: 500")]
    assert isinstance(note, NoteBlock)
    assert note.last_at == at(72)
    assert datetime.fromisoformat(note.next_at) == BEGIN + timedelta(seconds=102)
    transcript.add(ModelCompleted(seq=80, at=at(80), iteration=1, model="openai:gpt-5"))
    transcript.add(fail(90, 1, activity="perdure.model"))
    assert [title for title, _ in list_notes(transcript)][1:] == ["The attempt of the model call failed"]


def test_attempts_of_a_tool_are_one_line_of_its_call() -> None:
    transcript = Transcript()
    transcript.add(ToolStarted(seq=1, at=at(1), call_id="c1", name="pay"))
    for attempt in range(1, 4):
        transcript.add(fail(attempt + 1, attempt, activity="tool.pay", call_id="c1"))
    block = transcript.blocks["c-c1"]
    assert isinstance(block, CallBlock)
    assert (block.failed_attempts, block.progress) == ("3 attempts failed: ProviderServerError: 500", [])


def test_an_error_that_ends_a_run_stands_once() -> None:
    error = {"error_type": "ProviderServerError", "error": "500"}
    transcript = Transcript().add_all(
        [
            fail(1, 1, activity="perdure.model", final=True),
            TurnEvent(seq=2, at=at(2), state="failed", **error),
            RunEvent(seq=3, at=at(3), state="failed", **error),
        ]
    )
    assert sum("500" in text for _, text in list_notes(transcript)) == 1
    other = Transcript().add_all([RunEvent(seq=3, at=at(3), state="failed", **error)])
    assert list_notes(other) == [("Run failed", "ProviderServerError: 500")]


@tool(needs_approval=True, summary="Pay {invoice_id}: {amount} {currency}")
def pay(invoice_id: str, amount: float, currency: str = "EUR") -> str:
    """Pay a supplier's invoice from the main account."""
    return "paid"


@tool
def look_up(invoice_id: str) -> dict[str, Any]:
    """Look an invoice up."""
    return {"vendor": "Nordwind", "open": True}


async def test_a_call_is_named_described_and_named_again_when_it_is_changed(engine: Engine) -> None:
    script = ScriptedProvider(
        [call("look_up", invoice_id="INV-1"), call("pay", invoice_id="INV-1", amount=120.5), "Paid."]
    )
    agent = Agent("payer", script, tools=[pay, look_up])
    async with engine.served(agent) as client, console(client) as opened:
        await record_agents(await client.store(create=True), [agent])
        run = await client.start("payer", "Pay it", mode="session")
        await wait_for_waits(client, 1)
        [wait] = (await run.status()).approvals
        browser = opened.browse()
        page = await browser.open(f"/inbox/{run.id}/{wait.call_id}")
        text = page.squeeze()
        assert "Pay INV-1: 120.50 EUR ?" in text
        assert "Pay a supplier's invoice from the main account." in text
        assert "Approve: Pay INV-1: 120.50 EUR" in text
        [form] = [form for form in page.forms if ("decision", "review") in form.fields and len(form.fields) > 4]
        page = await browser.send(form, **{"arg.amount": "100"})
        assert "Pay INV-1: 100 EUR ?" in page.squeeze(), "with the new amount"
        await browser.send(page.find_form(decision="change"), ("decision", "change"))
        await run.turn().result()
        text = (await browser.open(f"/runs/{run.id}")).squeeze()
        assert "Pay INV-1: 100 EUR" in text
        assert "vendor Nordwind open true" in text, "a result that is an object is a table"
        assert '{"vendor"' not in text


async def has_failed(run: Run[Any]) -> bool:
    return (await run.status()).state == "failed"


async def test_a_failed_run_says_when_why_and_what_can_be_done(engine: Engine) -> None:
    def refuse(request: Any) -> Any:
        raise ValueError("the key is wrong")

    async with engine.served(Agent("broken", ScriptedProvider(refuse))) as client, console(client) as opened:
        run = await client.start("broken", "Go")
        await eventually(lambda: has_failed(run))
        browser = opened.browse()
        page = await browser.open(f"/runs/{run.id}")
        text = page.squeeze()
        for word in ("Started", "Ended", "Took", "failed"):
            assert word in text
        assert page.find_form(action="resume").method == "post"
        facts = text.partition("Where the time went")[0]
        assert facts.index("the key is wrong") >= 0
        assert "perdure.model" not in text
