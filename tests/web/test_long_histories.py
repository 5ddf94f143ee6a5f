"""Histories of 10,000 messages at the doors that take them: whoever sends one holds up nobody else."""

from __future__ import annotations

import asyncio
import json
import time
from asyncio import events
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perdure import Agent
from perdure.testing import ScriptedProvider
from tests.support.engine import Engine
from tests.support.web import serve

MOST_CPU = 0.15
"""Seconds of CPU between two turns of the loop, on a machine that does much beside: it was 0.7 and more."""


@contextmanager
def measured_callbacks() -> Iterator[list[float]]:
    """The CPU time of each callback of the event loops of this thread."""
    run, times = events.Handle._run, [0.0]

    def measure(self: Any) -> None:
        begin = time.thread_time()
        run(self)
        times.append(time.thread_time() - begin)

    events.Handle._run = measure  # type: ignore[method-assign]
    try:
        yield times
    finally:
        events.Handle._run = run  # type: ignore[method-assign]


def build_chat(count: int) -> list[dict[str, Any]]:
    pairs = ([("user", f"question {number}"), ("assistant", f"answer {number}")] for number in range(count // 2))
    said = [{"role": role, "content": text} for pair in pairs for role, text in pair]
    return [*said[: count - 1], {"role": "user", "content": "the last"}]


def build_request(door: str, count: int) -> tuple[str, dict[str, Any]]:
    chat = build_chat(count)
    match door:
        case "openai":
            return "/openai/v1/chat/completions", {"model": "echo", "messages": chat}
        case "responses":
            return "/openai/v1/responses", {"model": "echo", "input": chat}
        case "agui":
            messages = [{**message, "id": str(index)} for index, message in enumerate(chat)]
            return "/agui/echo", {"threadId": "t", "runId": "r", "messages": messages, "tools": [], "context": [],
                                  "state": {}, "forwardedProps": {}}  # fmt: skip
        case "vercel":
            messages = [
                {"id": str(index), "role": message["role"], "parts": [{"type": "text", "text": message["content"]}]}
                for index, message in enumerate(chat)
            ]
            return "/ui/echo", {"id": "c", "messages": messages, "trigger": "submit-message"}
        case _:
            history = [{"role": message["role"], "content": message["content"]} for message in chat[:-1]]
            return "/v1/sessions", {"agent": "echo", "message": "the last", "history": history}


@pytest.mark.parametrize("door", ["openai", "responses", "agui", "vercel"])
async def test_a_long_history_does_not_hold_the_loop(engine: Engine, door: str) -> None:
    agent = Agent("echo", ScriptedProvider(lambda request: f"{len(request.messages)} messages"))
    async with engine.served(agent) as client, serve(client) as replica, replica.connect() as http:
        for count in (2, 10_000):  # the first loads what is loaded once
            path, body = build_request(door, count)
            content = json.dumps(body).encode()
            with measured_callbacks() as times:
                answer = await http.post(f"{replica.url}{path}", content=content, timeout=120,
                                         headers={"content-type": "application/json"})  # fmt: skip
            assert answer.status_code == 200, answer.text[:500]
        assert asyncio.get_running_loop().is_running()
        assert max(times) < MOST_CPU
        if door in ("openai", "responses"):
            assert "10000 messages" in answer.text, "all of them reach the model"
