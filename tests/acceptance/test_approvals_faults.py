"""Calls wait for a person while workers and the server are killed, the run continues as new, and deploys happen."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import Run
from perdure.client.inbox import list_pending_calls_of_run
from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from perdure.errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError
from perdure.types.approvals import WaitingCall
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine, side_by_side
from tests.support.wait import eventually

pytestmark = pytest.mark.server


async def waits(run: Run, count: int) -> tuple[WaitingCall, ...]:
    found: list[tuple[WaitingCall, ...]] = []

    async def there() -> bool:
        status = await run.status()
        found.append(status.approvals)
        return status.doing == "approval" and len(status.approvals) == count

    await eventually(there, deadline=60, what=f"{count} calls that wait")
    return found[-1]


async def assert_inbox_lists(run: Run, pending: list[str]) -> None:
    """The store's inbox has these calls, as the run shows them."""
    shown = {one.call_id: one.hash for one in (await run.status()).approvals}
    rows = [row for row in await (await run.client.store()).list_waits() if row.context_id == run.id]
    assert {row.call_id: row.hash for row in rows} == shown
    assert sorted(shown) == sorted(pending)


def told(engine: Engine, to: str) -> list[int]:
    """Numbers of the reminders, as the hook was told of them."""
    keys = [str(entry["key"]).split() for entry in engine.ledger.entries("told")]
    return [int(number) for word, number in keys if word == to]


@pytest.mark.slow
async def test_worker_and_server_die_while_calls_wait_and_then_somebody_decides(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    before = await ensure_server(home)
    first, second = Engine(before.address, tmp_path), Engine(before.address, tmp_path)
    second.task_queue = first.task_queue
    try:
        worker = await first.process("approving")
        run = await (await first.client()).start("paying", "ana bea cleo", id="payday")
        asked = await waits(run, 3)
        await run.approve(asked[0].call_id, by="ana")
        await eventually(lambda: first.ledger.counts("pay")["ana"] == 1, deadline=60)
        await eventually(lambda: 2 in told(first, "bea"), deadline=60, what="two reminders")
        await worker.kill()
        os.kill(before.pid, signal.SIGKILL)
        counted = told(first, "bea")
        rows = await (await first.client()).store()
        assert [row.call_id for row in await rows.list_waits()] == [one.call_id for one in asked[1:]]

        second.address = (await ensure_server(home)).address
        await second.process("approving")
        run = (await second.client()).run("payday")
        assert [one.since for one in await waits(run, 2)] == [one.since for one in asked[1:]]
        await eventually(lambda: len(told(second, "bea")) > len(counted), deadline=60, what="a reminder more")
        await assert_inbox_lists(run, [one.call_id for one in asked[1:]])
        again = await run.approve(asked[0].call_id, by="ana")
        assert (again.state, again.by) == ("approved", "ana"), "who decided before gets the decision back"
        with pytest.raises(ApprovalDecidedError, match="approved by ana"):
            await run.approve(asked[0].call_id, by="bea")
        await run.approve(asked[1].call_id, by="bea", arguments={"to": "bea", "amount": 2})
        await run.deny(asked[2].call_id, by="bea")
        assert (await run.result()).content == "Done."
        await assert_inbox_lists(run, [])
        transcript = await run.transcript()
        assert_closed(transcript)
        assert [text.splitlines()[-1] for text in results(transcript)] == [
            "paid 5 to ana",
            "paid 2 to bea",
            "Denied by bea",
        ]
        assert second.ledger.counts("pay") == {"ana": 1, "bea": 1}
        numbers = told(second, "bea")
        twice = len(numbers) - len(set(numbers))
        assert twice <= 1, "only one that was under way when its worker died"
        assert sorted(set(numbers)) == list(range(len(set(numbers))))
    finally:
        await first.close()
        await second.close()
        await stop_server(home)


@pytest.mark.slow
async def test_workers_are_killed_and_deployed_while_calls_wait(engine: Engine) -> None:
    deploys = {
        "a deploy without the tool": partial(
            _deployed, code="gone", always=False, said=r"pay.*(gone|no tool|not found|unknown|does not exist)"
        ),
        "a deploy with a rule that denies": partial(_deployed, code="deny", always=False, said=DENIED),
        "a deploy with a rule that denies, approved for ever": partial(
            _deployed, code="deny", always=True, said=DENIED
        ),
        "a deploy with a rule that asks, behind the call's begin": _deployed_behind_the_begin,
    }
    scenarios = {
        "a decision without an answer": _decided_without_an_answer,
        "decisions at once": _decided_at_once,
        "the time is over while no worker serves": _expired_unserved,
    }
    await side_by_side(engine, {**scenarios, **deploys})


DENIED = "Denied: a rule of agent paying does not allow this call of pay"


async def _decided_without_an_answer(engine: Engine) -> None:
    """While no worker serves the run, two decisions have no answer, and are given up; sent again, each counts once."""
    worker = await engine.process("approving")
    client = await engine.client()
    run = await client.start("paying", "ana bea")
    await waits(run, 2)
    first, second = await list_pending_calls_of_run(run)
    await worker.kill()
    for _ in range(2):
        tries = [asyncio.ensure_future(first.approve(by="ana")), asyncio.ensure_future(second.deny(by="ana"))]
        await asyncio.wait(tries, timeout=1)
        for one in tries:
            one.cancel()
            with suppress(asyncio.CancelledError):
                await one
    await engine.process("approving")
    approved, denied = await asyncio.gather(first.approve(by="ana"), second.deny(by="ana"))
    assert (approved.state, denied.state) == ("approved", "denied")
    assert await first.approve(by="ana") == approved
    await run.result()
    assert results(await run.transcript()) == ["paid 5 to ana", "Denied by ana"]
    assert engine.ledger.counts("pay") == {"ana": 1}
    # The two are decided at once: in either order.
    assert sorted((one.by, one.state) for one in (await _decided(run))) == [("ana", "approved"), ("ana", "denied")]


async def _decided(run: Run) -> Any:
    """What the run itself says, also when it has ended."""
    raw = await run.handle.query("status")
    return [type("Decided", (), one) for one in raw["decided"]]


async def _decided_at_once(engine: Engine) -> None:
    """The run continues as new between decisions that come all at once."""
    await engine.process("approving")
    run = await (await engine.client()).start("paying", " ".join(f"w{n}" for n in range(12)), max_history_events=11)
    asked = await waits(run, 12)
    before = (await run.describe()).run_id

    at_once = asyncio.Semaphore(9)  # Temporal takes ten of a run, and lets others try again for ten seconds

    async def decide(one: WaitingCall, by: str) -> str:
        async with at_once:
            try:
                return (await run.approve(one.call_id, by=by)).by or ""
            except ApprovalDecidedError as error:
                return str(error).partition("approved by ")[2].partition(" at ")[0] or str(error)

    said = await asyncio.gather(*(decide(one, by) for one in asked[:8] for by in ("ana", "bea", "ana")))
    for place in range(0, len(said), 3):
        (winner,) = set(said[place : place + 3])
        assert winner in ("ana", "bea"), "all three hear of the same one"

    async def continued() -> bool:
        return (await run.describe()).run_id != before

    await eventually(continued, deadline=40, what="a new execution")
    with pytest.raises(InvalidInputError, match="no call 'nobody' waits"):
        await run.approve("nobody", by="ana")
    refused = await run.approve(asked[8].call_id, by="ana", arguments={"to": "w8", "amount": "much"})
    assert refused.changed
    unknown = await run.approve(asked[9].call_id, by="ana", arguments={"whom": "w9"})
    assert unknown.changed
    await run.deny(asked[10].call_id, by="ana", comment="no")
    assert (await run.approve(asked[0].call_id, by=said[0])).by == said[0]
    await run.approve(asked[11].call_id, by="bea")
    await run.result()
    transcript = await run.transcript()
    assert_closed(transcript)
    texts = results(transcript)
    assert texts[:8] == [f"paid 5 to w{n}" for n in range(8)]
    assert all("the arguments of pay are not valid" in text for text in texts[8:10])
    assert texts[10:] == ["Denied by ana: no", "paid 5 to w11"]
    assert engine.ledger.counts("pay") == {f"w{n}": 1 for n in (*range(8), 11)}


async def _expired_unserved(engine: Engine) -> None:
    """Who comes when the time is over hears it, also where no worker was there to end it."""
    # Time enough to see that it waits, and to kill the worker before it has heard that the time is over.
    worker = await engine.process("approving", TEST_EXPIRES="6")
    run = await (await engine.client()).start("paying", "ana")
    (asked,) = await waits(run, 1)
    await worker.kill()
    late = asyncio.get_running_loop().time() + 6.5
    await eventually(lambda: asyncio.get_running_loop().time() > late, deadline=20, what="the end of its time")
    await engine.process("approving", TEST_EXPIRES="6")
    with pytest.raises(ApprovalExpiredError):
        await run.approve(asked.call_id, by="ana")
    await run.result()
    assert results(await run.transcript())[0].startswith("Expired: the call of ")
    assert engine.ledger.counts("pay") == {}


async def _deployed(engine: Engine, *, code: str, always: bool, said: str) -> None:
    """A deploy counts for a call that is approved behind it."""
    worker = await engine.process("approving")
    run = await (await engine.client()).start("paying", "ana")
    (asked,) = await waits(run, 1)
    await worker.kill()
    await engine.process("approving", TEST_CODE=code)
    await run.approve(asked.call_id, by="ana", always=always)
    await run.result()
    (text,) = results(await run.transcript())
    assert re.search(said, text), text
    assert engine.ledger.counts("pay") == {}


async def _deployed_behind_the_begin(engine: Engine) -> None:
    """It may run again, and would; but a person has to be asked now."""
    worker = await engine.process("approving", TEST_CODE="free")
    run = await (await engine.client()).start("paying", "ana")
    await eventually(lambda: engine.ledger.counts("pay")["ana"] == 1, deadline=40, what="a call that has begun")
    await worker.kill()
    await engine.process("approving", TEST_CODE="ask")
    assert (await run.result()).content == "Done."
    transcript = await run.transcript()
    assert_closed(transcript)
    assert results(transcript)[0].startswith("pay needs a person's approval since it was called; it was not run")
    assert engine.ledger.counts("pay") == {"ana": 1}
