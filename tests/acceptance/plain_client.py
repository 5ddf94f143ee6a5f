"""A program that has ``temporalio`` and no perdure: starts a run, steers it, reads it. Run as a process by a test.

Usage: plain_client.py ADDRESS TASK_QUEUE ID
"""

import asyncio
import json
import os
import sys


class NoPerdure:
    """Makes ``import perdure`` fail, as it does where it is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in ("perdure", "pydantic"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


async def main(address: str, task_queue: str, id: str) -> None:
    from temporalio.client import Client

    client = await Client.connect(address)
    start = {"agent": "echo", "message": "first", "context": {"user": "ana"}}
    handle = await client.start_workflow("AgentWorkflow", start, id=id, task_queue=task_queue)
    await handle.signal("inject_user_message", "second")
    await handle.signal("inject_user_message", {"content": "third", "id": "3"})
    await handle.signal("inject_user_message", {"content": "third", "id": "3"})
    running = await handle.query("status")
    await handle.signal("inject_user_message", "that is all")
    result = await handle.result()
    ended = await handle.query("status")
    print(json.dumps({"running": running, "result": result, "ended": ended}))


if __name__ == "__main__":
    sys.meta_path.insert(0, NoPerdure())  # type: ignore[arg-type]
    try:
        import perdure  # noqa: F401
    except ModuleNotFoundError:
        asyncio.run(main(*sys.argv[1:]))
        sys.stdout.flush()
        os._exit(0)  # the SDK now and then dies on the interpreter's way out
    else:
        sys.exit("perdure could be imported")
