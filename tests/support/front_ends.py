"""Clients of front ends, written by others, in Node: ``@ag-ui/client``, and ``ai`` in two versions.

A test gives a client one operation after the other, as lines of JSON; the programs are in ``front_ends/``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from perdure.types.messages import Message, ThinkingPart, ToolCallPart, ToolResultPart
from tests.support import npm

FOLDER = Path(__file__).with_name("front_ends")
_LINE_BYTES = 64 * 1024 * 1024


class FrontEnd:
    """A client in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {0: asyncio.get_running_loop().create_future()}
        self._reading = asyncio.create_task(self._read())

    async def ask(self, op: str, **given: Any) -> Any:
        """Carry out an operation, and return its answer. Raises ``AssertionError`` with what the client threw."""
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "op": op, **given}).encode() + b"\n")
        answer = await self._answers[number]
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def begin(self, op: str, **given: Any) -> asyncio.Task[Any]:
        """Start an operation."""
        return asyncio.create_task(self.ask(op, **given))

    async def ready(self) -> FrontEnd:
        """Until it has loaded its packages."""
        await self._answers[0]
        return self

    async def close(self) -> None:
        """End the process."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            self._answers[answer.pop("id")].set_result(answer)
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_result({"error": "the client's process has ended"})


@asynccontextmanager
async def front_end(program: str, folder: Path) -> AsyncIterator[FrontEnd]:
    """Run ``program``, from a copy in ``folder``, for the length of the block."""
    programs = folder / "front-ends"
    if not programs.exists():
        await asyncio.to_thread(install, programs)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "node", program, cwd=programs, stdin=pipe, stdout=pipe, limit=_LINE_BYTES
    )
    client = FrontEnd(process)
    try:
        yield await client.ready()
    finally:
        await client.close()


def install(into: Path) -> Path:
    """The programs in a place of their own, with their packages."""
    return npm.copy(FOLDER, npm.packages(FOLDER, "AG-UI and the Vercel AI SDK against their own clients"), into)


# ---
# The transcript, as each client is to have it.

Turns = list[dict[str, Any]]


def list_agui_messages(transcript: Sequence[Message]) -> Turns:
    """What an AG-UI client is to hold of a run: without ids, which are perdure's."""
    messages: Turns = []
    for message in transcript:
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResultPart):
                    messages.append({"role": "tool", "content": part.content, "toolCallId": part.call_id})
            continue
        if thinking := "".join(part.text for part in message.parts if isinstance(part, ThinkingPart)):
            messages.append({"role": "reasoning", "content": thinking})
        fields: dict[str, Any] = {"role": message.role} | ({"content": message.text} if message.text else {})
        if calls := [_read_call(part) for part in message.parts if isinstance(part, ToolCallPart)]:
            fields["toolCalls"] = calls
        messages.append(fields)
    return _sort_results(messages)


def _read_call(part: ToolCallPart) -> dict[str, Any]:
    return {"id": part.id, "name": part.name, "arguments": part.arguments}


def read_agui_messages(messages: Sequence[dict[str, Any]], owner: str | None = None) -> Turns:
    """What it does hold, of the run itself or of the subagent ``owner``, in the same shape."""
    held: Turns = []
    for message in messages:
        if message.get("subagentRunId") != owner or message["role"] == "activity":
            continue
        fields = {name: message[name] for name in ("role", "content", "toolCallId") if message.get(name)}
        if calls := message.get("toolCalls"):
            functions = [(call["id"], call["function"]) for call in calls]
            fields["toolCalls"] = [
                {"id": call_id, "name": function["name"], "arguments": json.loads(function["arguments"])}
                for call_id, function in functions
            ]
        held.append(fields)
    assert len({message["id"] for message in messages}) == len(messages), "an id occurs twice"
    return _sort_results(held)


def _sort_results(messages: Turns) -> Turns:
    """Calls end in any order; the transcript has their results in the order of the calls."""
    ordered: Turns = []
    for _, group in itertools.groupby(messages, lambda message: message["role"] == "tool"):
        ordered += sorted(group, key=lambda message: str(message.get("toolCallId", "")))
    return ordered


def list_chat_messages(transcript: Sequence[Message]) -> Turns:
    """What ``useChat`` is to show: the user's messages, and one of the assistant for all replies of a turn."""
    chat: Turns = []
    results = {part.call_id: part for m in transcript for part in m.parts if isinstance(part, ToolResultPart)}
    for message in transcript:
        if message.role == "user":
            chat.append({"role": "user", "parts": [{"text": message.text}]})
            continue
        if message.role != "assistant":
            continue
        if chat[-1]["role"] != "assistant":
            chat.append({"role": "assistant", "parts": []})
        parts = chat[-1]["parts"]
        if thinking := "".join(part.text for part in message.parts if isinstance(part, ThinkingPart)):
            parts.append({"reasoning": thinking})
        if message.text:
            parts.append({"text": message.text})
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                result = results.get(part.id)
                told = {"call": part.id, "name": part.name, "input": part.arguments}
                parts.append(told | ({} if result is None else {"output": result.content}))
    return chat


def read_chat_messages(messages: Sequence[dict[str, Any]]) -> Turns:
    """What it does show, in the same shape. Of parts only texts, reasoning and calls."""
    assert len({message["id"] for message in messages}) == len(messages), "an id occurs twice"
    return [{"role": m["role"], "parts": [p for part in m["parts"] if (p := _read_part(part))]} for m in messages]


def _read_part(part: dict[str, Any]) -> dict[str, Any] | None:
    if part["type"] in ("text", "reasoning"):
        assert part.get("state", "done") == "done", part
        return {part["type"]: part["text"]}
    if part["type"] != "dynamic-tool":
        return None
    told = {"call": part["toolCallId"], "name": part["toolName"], "input": part["input"]}
    output = part.get("errorText", part.get("output"))
    if output is not None:
        told["output"] = output if isinstance(output, str) else json.dumps(output)
    return told
