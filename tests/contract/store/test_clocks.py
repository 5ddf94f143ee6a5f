"""Leases of a store on machines whose clocks are ten minutes apart. An SQLite file has one machine."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack

import pytest

from tests.contract.store.test_events_processes import python
from tests.support.postgres import Databases

pytestmark = pytest.mark.postgres

MACHINE = """
import asyncio, sys
from perdure.ports.outbox import WriteOptions
from perdure.ports.store import EventBatch, NewEvent
from perdure.ports.times import format_utc_now
from perdure.store import open_store
import perdure.store.postgres
from perdure.types.events import LimitReached
from tests.support.clock import shift_clock

async def main(url, name, seconds):
    shift_clock(float(seconds))
    store = open_store(url)
    await store.open()
    store.write_options = WriteOptions(outbox={"w": ["limit"]})
    print("ready", flush=True)
    for line in sys.stdin:
        match line.strip():
            case "clock":
                print(format_utc_now(), flush=True)
            case "append":
                print(await store.append(EventBatch("c", [NewEvent(LimitReached())])), flush=True)
            case "take":
                print(len(await store.take_outbox(name, target="w", lease_seconds=60)), flush=True)
            case "claim":
                claim = await store.claim_idempotency("key", "hash", name, lease_seconds=60, keep_seconds=120)
                print(claim.state, flush=True)
            case "expire":
                print(await store.delete_expired_idempotency(), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def ask(machine: subprocess.Popen[str], command: str) -> str:
    assert machine.stdin is not None
    assert machine.stdout is not None
    machine.stdin.write(f"{command}\n")
    machine.stdin.flush()
    return machine.stdout.readline().strip()


@pytest.mark.parametrize(("first", "second"), [(-300, 300), (300, -300)])
def test_a_lease_holds_whatever_the_clocks_of_the_machines_say(
    postgres_databases: Databases, first: int, second: int
) -> None:
    url = postgres_databases.make()
    with ExitStack() as stack:
        a, b = (
            stack.enter_context(python(MACHINE, url, name, seconds)) for name, seconds in (("a", first), ("b", second))
        )
        slow, fast = sorted([ask(a, "clock"), ask(b, "clock")])
        assert slow[:15] != fast[:15], "their clocks are ten minutes apart"
        assert ask(a, "append") == "True"
        assert (ask(a, "take"), ask(b, "take")) == ("1", "0"), "an event is delivered once"
        assert (ask(a, "claim"), ask(b, "claim")) == ("new", "running"), "a request acts once"
        assert ask(b, "expire") == "0", "its answer is still kept"
