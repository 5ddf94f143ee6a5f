"""An agent whose provider refuses the key until a file is there, on a worker that may kill itself in a bulk action."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from perdure import Agent
from perdure.errors import AuthenticationError
from perdure.ports.test_seams import Point
from perdure.testing import ScriptedProvider, kill_at
from tests.support.engine import run_worker

if point := os.environ.get("TEST_KILL_POINT"):
    kill_at(cast(Point, point), once=f"{os.environ['TEST_LEDGER']}.killed")


def reply(_: Any) -> str:
    if not Path(os.environ["TEST_DOOR"]).exists():
        raise AuthenticationError("401: the key is wrong")
    return "done"


run_worker([Agent(os.environ["TEST_AGENT"], ScriptedProvider(reply))])
