"""The agents of examples/33_judges.py on scripted models: each call is in the ledger, and one judge hangs once."""

from __future__ import annotations

import asyncio
import os

from perdure.ports.model import ModelRequest
from tests.support.committees import Model, judging, put_in_place
from tests.support.engine import run_worker
from tests.support.ledger import Ledger

ledger = Ledger(os.environ.get("TEST_LEDGER", os.devnull))


def counted(name: str, model: Model) -> Model:
    async def asked(request: ModelRequest) -> object:
        first = not ledger.entries(name)
        ledger.add(name)
        if first and name == "notation":
            await asyncio.Event().wait()
        return model(request)

    return asked


if __name__ == "__main__":
    coordinator, models = judging()
    put_in_place({agent: counted(agent.name, model) for agent, model in models.items()})
    run_worker([coordinator])
