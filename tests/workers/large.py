"""An agent with large results and files. The first worker with ``TEST_KILL_UPLOAD`` kills itself when an object of the
tool's result is complete, and its row is not written yet."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from perdure import Agent, File, tool
from perdure.ports.model import ModelRequest
from perdure.ports.store import Blob
from perdure.store.objects import LargeBlobStore
from perdure.testing import ScriptedProvider, call
from tests.support.engine import run_worker
from tests.support.ledger import Ledger
from tests.support.scripts import replied

ledger = Ledger(os.environ["TEST_LEDGER"])


@tool(idempotent=True)
async def report(n: int) -> list[object]:
    """A report of a megabyte, and a file."""
    ledger.add("report", str(n))
    return [f"{n}" * 1_000_000, File(bytes([n]) * 300_000, media_type="image/png")]


if os.environ.get("TEST_KILL_UPLOAD"):
    upload = LargeBlobStore._upload

    async def upload_and_die(store: LargeBlobStore, blob: Blob) -> None:
        await upload(store, blob)
        killed = Path(f"{os.environ['TEST_LEDGER']}.killed")
        if len(blob.body) == 1_000_000 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    LargeBlobStore._upload = upload_and_die  # type: ignore[method-assign]


def reply(request: ModelRequest) -> Any:
    """Two reports, then the end; by what the request has, since a second process goes on."""
    n = replied(request) + 1
    return call("report", n=n) if n < 3 else "Done."


agent = Agent("reporter", ScriptedProvider(reply), tools=[report])

if __name__ == "__main__":
    run_worker([agent])
