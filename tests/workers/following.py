"""Not a worker: follows runs, and may be killed. It writes what it sees, and goes on behind that when started again.

``TEST_RUNS`` is a JSON list of run ids, each followed by itself, ``TEST_TURNS=1`` the present turns of them;
``TEST_SEEN`` the file for what they see: a line per event, ``[place in the list, event]``. Ends when all have ended.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing
from pathlib import Path

from pydantic import TypeAdapter

from perdure import Client
from perdure.types.events import Event

_EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


def written(path: Path) -> dict[int, list[Event]]:
    """What the followers at each place have seen so far."""
    seen: dict[int, list[Event]] = {}
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        if line.endswith(b"\n"):  # the last one may be on its way
            place, event = json.loads(line)
            seen.setdefault(place, []).append(_EVENTS.validate_python(event))
    return seen


async def follow(client: Client, run_id: str, place: int, after: int, file: int) -> None:
    """One follower, to the end."""
    run = client.run(run_id)
    following = run.turn() if os.environ.get("TEST_TURNS") else run
    async with aclosing(following.events(after)) as events:
        async for event in events:
            # The kernel has it whole when this returns: a kill loses none.
            os.write(file, json.dumps([place, event.model_dump(mode="json")]).encode() + b"\n")


async def main() -> None:
    runs, path = json.loads(os.environ["TEST_RUNS"]), Path(os.environ["TEST_SEEN"])
    seen = written(path)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    client = await Client.connect()
    following = [
        follow(client, run_id, place, seen[place][-1].seq if place in seen else 0, file)
        for place, run_id in enumerate(runs)
    ]
    Path(os.environ["TEST_READY"]).touch()
    await asyncio.gather(*following)


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)  # a Temporal client at the interpreter's exit aborts now and then
