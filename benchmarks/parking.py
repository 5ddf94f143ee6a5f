"""The processes of ``parked.py``: a worker whose cache is much smaller than the number of runs, and approvers.

python -m benchmarks.parking worker ADDRESS TASK_QUEUE STORE_URL LEDGER CACHE
python -m benchmarks.parking approver ADDRESS TASK_QUEUE STORE_URL NAME EDITS

Both print ``ready``. The worker then says for every line of input how many KB of memory it has; it ends with its input.
An approver looks into the inbox at the first line, by Temporal and by the store, and says how many seconds each took;
at the second it decides on all that was there, and says what came of it as one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from temporalio.client import Client as TemporalClient
from temporalio.worker import Worker

from benchmarks.output import Progress, keep_clean
from perdure import Agent, Client, PerdurePlugin, tool
from perdure.client.inbox import PendingCall
from perdure.client.pages import MAX_PAGE
from perdure.errors import ApprovalDecidedError
from perdure.ports import ModelRequest
from perdure.testing import ScriptedProvider, call

AGENT = "desk"
AMOUNT = 5
"""What the model asks for."""
TALK = "talk"
"""A message that is answered at once."""
_AT_ONCE = 10
"""Decisions of one approver that are under way."""


def _reply(request: ModelRequest) -> Any:
    said = request.messages[-1]
    return "Done." if said.role == "tool" or said.text == TALK else call("refund", order=said.text, amount=AMOUNT)


class Book:
    """A file with one line of JSON for each thing that was done."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def append(self, entry: Any) -> None:
        """Written at once."""
        self._file.write(json.dumps(entry) + "\n")


async def worker(address: str, task_queue: str, store_url: str, ledger: str, cache: str) -> None:
    """Serve until standard input ends. Every call of the tool is a line of the ledger."""

    @tool(needs_approval=True)
    async def refund(order: str, amount: float) -> str:
        """Refund an order."""
        book.append([order, amount])
        return f"refunded {amount:g} of {order}"

    book = Book(Path(ledger))
    client = await TemporalClient.connect(address)
    agent = Agent(AGENT, ScriptedProvider(_reply), tools=[refund])
    plugin = PerdurePlugin([agent], store_url=store_url)
    async with Worker(client, task_queue=task_queue, plugins=[plugin], max_cached_workflows=int(cache)):
        print("ready", flush=True)
        await asyncio.to_thread(_say_memory)


def _say_memory() -> None:
    for _ in sys.stdin:
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        print(next(line.split()[1] for line in lines if line.startswith("VmRSS")), flush=True)


async def approver(address: str, task_queue: str, store_url: str, name: str, edits: str) -> None:
    """Approve all that waits; with ``edits`` N every Nth with another amount. By the store, an approver who comes when
    the run has ended hears who decided."""
    client = Client(await TemporalClient.connect(address), store_url=store_url, task_queue=task_queue, actor=name)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    looked = [time.perf_counter()]
    waiting = await client.approvals(agent=AGENT)
    looked.append(time.perf_counter())
    await client.list_waits(agent=AGENT)
    looked.append(time.perf_counter())
    in_store = await _read_pages(client)
    looked.append(time.perf_counter())
    assert {one.run_id for one in waiting} <= in_store, "what waits has a row"
    print(json.dumps([later - earlier for earlier, later in pairwise(looked)]), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    limit = asyncio.Semaphore(_AT_ONCE)
    progress = Progress(f"{name} decides", len(waiting))

    async def decide(one: PendingCall) -> tuple[str, dict[str, Any]]:
        assert one.arguments is not None, "they are short"
        order = one.arguments["order"]
        changed = {**one.arguments, "amount": 1} if int(edits) and int(order) % int(edits) == 0 else None
        async with limit:
            try:
                await one.approve(arguments=changed)
            except ApprovalDecidedError as error:
                return order, {"lost": error.message}
            finally:
                progress.step()
        return order, {"won": (changed or one.arguments)["amount"]}

    decided = dict(await asyncio.gather(*map(decide, waiting)))
    print(json.dumps(decided), flush=True)


async def _read_pages(client: Client) -> set[str]:
    """The runs that wait, by the store's table, a page after the other as a console shows it."""
    page = await client.list_waits(agent=AGENT, limit=MAX_PAGE)
    runs = {wait.run_id for wait in page.waits}
    while page.cursor is not None:
        page = await client.list_waits(agent=AGENT, limit=MAX_PAGE, cursor=page.cursor)
        runs |= {wait.run_id for wait in page.waits}
    return runs


if __name__ == "__main__":
    keep_clean()
    asyncio.run({"worker": worker, "approver": approver}[sys.argv[1]](*sys.argv[2:]))
    sys.stdout.flush()
    os._exit(0)  # a Temporal client at the interpreter's exit aborts now and then (FACTS.md)
