"""Kinds of runs that act on a user's behalf, whose histories are stored."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from perdure import Run
from perdure.encryption import KEYS_VARIABLE
from perdure.testing import call
from perdure.tools.context import RunFacts
from tests.replay.scenarios import scenario
from tests.replay.sessions import closed, said, talker
from tests.support.engine import Engine

KEYS = {KEYS_VARIABLE: "recorded:" + base64.b64encode(b"recorded" * 4).decode()}


def resolve(ref: str, run: RunFacts) -> Mapping[str, str]:
    return {"user": ref}


@scenario
async def acting_for_somebody(engine: Engine) -> Run:
    """Who started it; then whom a message names; then whom another refers to."""
    replies: Any = [[call("add", a=1, b=1), call("double", n=1)], "One.", "Two.", [call("add", a=1, b=2)], "Three."]
    with patch.dict(os.environ, KEYS):
        async with engine.served(talker(replies), resolve_auth=resolve) as client:
            run = await client.start("recorded", "1", mode="session", auth_context={"user": "ana"})
            await run.turn().result()
            turn = await run.send("2", auth_context={"user": "ben"})
            await turn.result()
            await said(client, run.id, "3", auth_ref="cleo")
            return await closed(run)
