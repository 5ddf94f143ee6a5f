"""Agents whose step policy asks other agents, and what came of it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from perdure import Agent, tool
from perdure.hooks import Hook
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call, finish
from perdure.types.interface import Response
from tests.support.checks import users
from tests.support.engine import Engine


class Score(BaseModel):
    score: int


class Question(BaseModel):
    text: str
    most: int = 10


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


def judge(*scores: int, **options: Any) -> Agent:
    provider = ScriptedProvider([finish(score=one) for one in scores])
    return Agent("judge", provider, **{"output": Score, "instructions": "Judge.", **options})


def echo(name: str = "echo", **options: Any) -> Agent:
    """Says what it was asked last."""
    return Agent(name, ScriptedProvider(lambda r: f"{name}: {users(r.messages)[-1]}"), **options)


def boss(*hooks: Hook, replies: Any = None, **options: Any) -> Agent:
    provider = ScriptedProvider(replies or [call("search", query="x"), "Done."])
    return Agent("boss", provider, **{"tools": [search], "hooks": hooks, "instructions": "Work.", **options})


async def answer(engine: Engine, *agents: Agent, **options: Any) -> Response:
    async with engine.served(*agents) as client:
        return await (await client.start(agents[0], "Go.", **options)).result()


def said(response: Response) -> list[str]:
    """What the policy has said to the model."""
    return [message.text for message in response.messages if message.by == "step"]


def requests(agent: Agent) -> list[ModelRequest]:
    (model,) = agent.chain
    assert isinstance(model.own, ScriptedProvider)
    return model.own.requests
