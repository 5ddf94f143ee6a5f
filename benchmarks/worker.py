"""A contestant's worker process. Prints ``ready``, then for every line of input its CPU seconds; ends with its input.

python -m benchmarks.worker NAME ADDRESS TASK_QUEUE STORE_URL
"""

from __future__ import annotations

import asyncio
import os
import sys

from temporalio.client import Client

from benchmarks.contestants import SERVED
from benchmarks.output import answer_cpu, keep_clean
from perdure._event_loop import run_event_loop


async def main(name: str, address: str, task_queue: str, store_url: str) -> None:
    """Serve until standard input ends."""
    client = await Client.connect(address)
    serve = SERVED[name].serve
    assert serve is not None, "a peer's worker is benchmarks.peers"
    async with serve(client, task_queue, store_url):
        print("ready", flush=True)
        await asyncio.to_thread(answer_cpu)


if __name__ == "__main__":
    keep_clean()
    run_event_loop(main(*sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # a Temporal client at the interpreter's exit aborts now and then (FACTS.md)
