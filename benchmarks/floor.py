"""The floors: the least that a durable agent can do on Temporal, without keeping anything of the conversation."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from openai import AsyncOpenAI, AsyncStream, DefaultAioHttpClient
from temporalio import activity, workflow
from temporalio.common import RetryPolicy

# perdure's own (perdure/workflows/activity_options.py), written out: a floor stands for a program without perdure.
OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=30),
    "heartbeat_timeout": timedelta(seconds=6),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
    "cancellation_type": workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}

ACTIVITIES_VARIABLE = "BENCH_ACTIVITIES"
ACTIVITIES = int(os.environ.get(ACTIVITIES_VARIABLE, "100"))
"""Activities at once, for every worker; fewer where it is measured how workers add up."""
WORKER_SETTINGS: dict[str, Any] = {
    "max_concurrent_activities": ACTIVITIES,
    # The rest as PerdurePlugin sets it.
    "max_heartbeat_throttle_interval": timedelta(milliseconds=500),
    "default_heartbeat_throttle_interval": timedelta(milliseconds=500),
    "sticky_queue_schedule_to_start_timeout": timedelta(seconds=2),
    "graceful_shutdown_timeout": timedelta(milliseconds=1),
}
"""Of every worker that is not perdure's."""


@workflow.defn(sandboxed=False)
class Floor2:
    """Two activities an iteration."""

    @workflow.run
    async def run(self, task: dict[str, Any]) -> str:
        """``{"iterations", "size", "kill"}``; ``kill`` goes to the model with the call in the middle."""
        for done in range(task["iterations"]):
            asked = await workflow.execute_activity("model", build_order(task, done), **OPTIONS)
            await workflow.execute_activity("work", asked, **OPTIONS)
        return str(await workflow.execute_activity("model", "until 0 size 0", **OPTIONS))


@workflow.defn(sandboxed=False)
class Floor1:
    """One activity an iteration."""

    @workflow.run
    async def run(self, task: dict[str, Any]) -> str:
        """As above."""
        for done in range(task["iterations"]):
            await workflow.execute_activity("model_and_work", build_order(task, done), **OPTIONS)
        return str(await workflow.execute_activity("model", "until 0 size 0", **OPTIONS))


@workflow.defn(sandboxed=False)
class FloorLong:
    """Two activities an iteration, of which one posts a whole conversation."""

    @workflow.run
    async def run(self, task: dict[str, Any]) -> None:
        """``{"first", "last", "size"}``: lengths of the conversation."""
        for said in range(task["first"], task["last"]):
            asked = await workflow.execute_activity("post", [said, task["last"], task["size"]], **OPTIONS)
            await workflow.execute_activity("work", asked, **OPTIONS)


@workflow.defn(sandboxed=False)
class FloorReply:
    """A reply that comes in pieces."""

    @workflow.run
    async def run(self, order: str) -> str:
        """``order``: for the model."""
        return str(await workflow.execute_activity("reply", order, **OPTIONS))


def build_order(task: dict[str, Any], done: int) -> str:
    """What the model is asked in that iteration."""
    order = f"until 1 size {task['size']}"
    return f"{order} kill {task['kill']} at 0" if task.get("kill") and done == 1 else order


class Activities:
    """The activities of the floors. They heartbeat while they wait, as perdure's do."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._client = AsyncOpenAI(max_retries=0)
        self._long_client = AsyncOpenAI(max_retries=0, http_client=DefaultAioHttpClient())
        self._body, self._ends = b"", [0]

    @activity.defn
    async def model(self, order: str) -> str:
        """A tiny request; the arguments of the tool call, or the text."""
        with _heartbeats():
            reply = await self._client.chat.completions.create(
                model=self._model, messages=[{"role": "user", "content": order}]
            )
            message = reply.choices[0].message
            for call in message.tool_calls or ():
                if call.type == "function":
                    return call.function.arguments
            return message.content or ""

    @activity.defn
    async def post(self, order: list[int]) -> str:
        """The bytes that perdure posts, by the client that it has, and the reply streamed; they are prepared once."""
        said, last, size = order
        if len(self._ends) < last + 1:
            self._prepare(last, size)
        with _heartbeats():
            stream = await self._long_client.post(
                "/chat/completions",
                cast_to=object,
                content=self._body[: self._ends[said]] + b"]}",
                options={"security": {"bearer_auth": True}},
                stream=True,
                stream_cls=AsyncStream[object],
            )
            async for _ in stream:
                pass
        return json.dumps({"size": size})

    def _prepare(self, last: int, size: int) -> None:
        head = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}, "tools": [TOOL]}
        order = {"role": "user", "content": f"until {last + 1} size {size}"}
        body = bytearray(_encode({**head, "messages": [order]})[:-2])
        self._ends = [len(body)]
        for number in range(last):
            function = {"name": "work", "arguments": _encode({"size": size}).decode()}
            call = {"id": f"call_{number}", "type": "function", "function": function}
            body += b"," + _encode({"role": "assistant", "content": None, "tool_calls": [call]})
            body += b"," + _encode({"role": "tool", "tool_call_id": f"call_{number}", "content": "x" * size})
            self._ends.append(len(body))
        self._body = bytes(body)

    @activity.defn
    async def reply(self, order: str) -> str:
        """A streamed reply, read to its end; nobody is told of its pieces."""
        with _heartbeats():
            stream = await self._client.chat.completions.create(
                model=self._model, messages=[{"role": "user", "content": order}], stream=True
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            return "".join(pieces)

    @activity.defn
    async def work(self, arguments: str) -> str:
        """The tool."""
        with _heartbeats():
            return work(arguments)

    @activity.defn
    async def model_and_work(self, order: str) -> str:
        """Both."""
        return work(await self.model(order))


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "work",
        "description": "Do some work.",
        "parameters": {
            "properties": {"size": {"type": "integer", "description": "How many bytes to return."}},
            "required": ["size"],
            "type": "object",
        },
    },
}
"""The tool as perdure's request has it."""


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def work(arguments: str) -> str:
    """``size`` bytes of text, as perdure's tool gives it."""
    return "x" * int(json.loads(arguments)["size"])


@contextmanager
def _heartbeats() -> Iterator[None]:
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def beat() -> None:
        activity.heartbeat()
        later()

    def later() -> None:
        nonlocal timer
        timer = loop.call_later(2.0, beat)

    later()
    try:
        yield
    finally:
        timer.cancel()
