"""Kinds of runs that act on a user's behalf, whose histories are stored."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from perdure import Agent, Limits, Run
from perdure._encryption import KEYS_VARIABLE
from perdure.client.audit import audit_caller
from perdure.context.auth import RunFacts
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import CallerOverride
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


@scenario
async def for_callers(engine: Engine) -> Run:
    """Of a service: what they ask for, two senders, a subagent that works for the second, and a new execution."""
    with patch.dict(os.environ, KEYS):
        helper = Agent("helper", ScriptedProvider(lambda _: "Helped."), description="Helps.")
        replies: Any = ["One.", [call("call_helper", task="Help.")], "Two.", "Three."]
        limits = Limits(tokens=10_000)
        agent = Agent(
            "recorded", ScriptedProvider(replies), subagents=[helper], caller_overrides=["limits"], limits=limits
        )
        async with engine.served(agent) as client:
            options: Any = {"mode": "session", "tenant": "acme", "user": "ana", "max_history_events": 30}
            run = await client.start("recorded", "1", by="ana", **options)
            await run.turn().result()
            asked = CallerOverride.model_validate({"limits": {"tokens": 5_000, "turn": {"tokens": 1_000}}})
            await (await run.send("2", by="ben", override=asked)).result()
            with audit_caller("token:1", "127.0.0.1"):
                turn = await run.send("3", by="cleo")
            await turn.result()
            return await closed(run)
