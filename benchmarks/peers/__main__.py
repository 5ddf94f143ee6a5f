"""A peer's worker process, in the peers' environment. It says and answers what ``benchmarks.worker`` does.

python -m benchmarks.peers NAME ADDRESS TASK_QUEUE
"""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import import_module

import uvloop
from temporalio.client import Client
from temporalio.worker import Worker

from benchmarks.floor import WORKER_SETTINGS
from benchmarks.output import answer_cpu, keep_clean


async def main(name: str, address: str, task_queue: str) -> None:
    """Serve until standard input ends."""
    peer = import_module(f"benchmarks.peers.{name.replace('-', '_')}")
    # How often an activity heartbeats follows from the framework's own timeout.
    settings = {name: value for name, value in WORKER_SETTINGS.items() if "heartbeat" not in name}
    client = await Client.connect(address, plugins=[peer.build_plugin()])
    async with Worker(client, task_queue=task_queue, workflows=[peer.Workflow], activities=peer.ACTIVITIES, **settings):
        print("ready", flush=True)
        await asyncio.to_thread(answer_cpu)


if __name__ == "__main__":
    keep_clean()
    # The loop that ``perdure._event_loop`` gives to the others.
    factory = None if os.environ.get("PERDURE_EVENT_LOOP") == "asyncio" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main(*sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # a Temporal client at the interpreter's exit aborts now and then (FACTS.md)
