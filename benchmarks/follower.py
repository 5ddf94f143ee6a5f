"""Follows runs, and says how old every piece of their text was when it came. A process of its own, as a web server is.

python -m benchmarks.follower ADDRESS STORE_URL TASK_QUEUE

For every line of input, a JSON list ``[runs, message]``, it starts so many runs at once with that message (``say 100
every 20``, see ``mock_model.py``), follows each to its end and prints the ages in milliseconds as a JSON list.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import aclosing
from itertools import chain

from temporalio.client import Client as TemporalClient

from benchmarks.output import keep_clean
from perdure import Client
from perdure.types.events import ModelCompleted, ModelDelta


async def ages(client: Client, message: str) -> list[float]:
    """Of the pieces of one reply. One that no delta brought before the reply was whole has its age then."""
    run = await client.start("bench", message)
    seen: dict[str, float] = {}
    async with aclosing(run.events()) as events:
        async for event in events:
            now = time.monotonic_ns()
            if isinstance(event, ModelDelta | ModelCompleted):
                for piece in event.text.split():
                    seen.setdefault(piece, round((now - int(piece)) / 1e6, 2))
    return list(seen.values())


async def main(address: str, store_url: str, task_queue: str) -> None:
    """Serve until standard input ends."""
    client = Client(await TemporalClient.connect(address), store_url=store_url, task_queue=task_queue)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        runs, message = json.loads(line)
        of = await asyncio.gather(*(ages(client, message) for _ in range(runs)))
        print(json.dumps(list(chain.from_iterable(of))), flush=True)


if __name__ == "__main__":
    keep_clean()
    asyncio.run(main(*sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # a Temporal client at the interpreter's exit aborts now and then (FACTS.md)
