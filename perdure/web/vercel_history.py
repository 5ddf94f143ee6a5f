"""The messages of a chat for ``useChat``, as a page that is opened again shows them first.

    GET {prefix}/{agent}/{chatId}/messages    the newest messages as UIMessage[], oldest first

The answer of a turn that is open is left out: the stream of that turn replays it from the start, and the client would
have it twice. So the last message is the user's exactly when there is something to resume.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from starlette import responses

from ..client.pages import gather_bounded
from ..client.turn import Turn
from ..errors import RunNotFoundError
from ..loop.finish import REMINDER_ID
from ..loop.transcript import SUMMARY_ID
from ..ports.store import Store
from ..types.events import MessageInjected
from ..types.interface import Response
from ..types.messages import BlobRef, FilePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from .operations import Call
from .turns import (
    EventTexts,
    encode_json,
    find_present_turn,
    find_turn_start,
    is_answer_call,
    open_session,
    read_latest_seq,
)

MAX_HISTORY = 400
"""Messages of the transcript that a page is given: the newest ones."""

_HAS_ANSWER_CALL = "hasAnswerCall"
"""Key of a message whose answer is in a call, until that is added."""

UIMessage = dict[str, Any]


async def list_chat_messages(call: Call) -> responses.Response:
    """List the messages of a chat; none for a chat that has no message yet."""
    chat_id = call.caller.read_id(call.params["chat"])
    try:
        await open_session(call, chat_id, "read", "vercel")
        turn = await find_present_turn(call.client, chat_id)
    except RunNotFoundError:
        return responses.Response("[]", media_type="application/json")
    run, store, name = call.client.run(chat_id), await call.client.store(), chat_id
    head, present = await run.read_head(store), list[UIMessage]()
    if (await turn.status()).state == "running":
        present = await _read_present(turn)
        rows = await store.list_turns(chat_id, limit=2)
        if (before := next((row.head for row in rows if row.task_id != turn.task_id), None)) is not None:
            head, name = before, f"{chat_id}\n"  # beside the pages of the whole, which are kept by name
    pages = call.web.transcripts
    messages, total = await pages.read(store, name, head, after=-1, limit=MAX_HISTORY, full=True)
    if total > MAX_HISTORY:
        after = total - 1 - MAX_HISTORY
        messages, _ = await pages.read(store, name, head, after=after, limit=MAX_HISTORY, full=True)
    chat = build_chat_messages(messages)
    await _add_answers(store, chat_id, chat)
    cut = next((index for index, message in enumerate(chat) if _is_among(message, present)), len(chat))
    return responses.Response(encode_json(call.caller.show_ids([*chat[:cut], *present])), media_type="application/json")


async def _add_answers(store: Store, chat_id: str, chat: Sequence[UIMessage]) -> None:
    """Add the answers that no text of a reply has, those of ``output=`` and ``finish="tool"``, as the stream of a turn
    does. They are in the row of the turn, whose id is that of the user's message."""

    async def add(message: UIMessage) -> None:
        row = await store.get_turn(chat_id, message["id"].removesuffix("/reply"))
        if row is not None and row.result is not None:
            response = Response.model_validate_json(row.result)
            part = TextPart(text=response.content, blob=response.blob)
            message["parts"] += [_build_content_part(part)] if response.content or response.blob else []

    await gather_bounded(add, [message for message in chat if message.pop(_HAS_ANSWER_CALL, False)])


async def _read_present(turn: Turn[Any]) -> list[UIMessage]:
    """Read the messages of an open turn."""
    run, texts = turn.run, EventTexts(turn.run.client)
    until = await read_latest_seq(run.client, run.id)
    begin = await find_turn_start(run.client, turn, until) or 0
    present: list[UIMessage] = []
    async with aclosing(run.events(begin, wait=False)) as events:
        async for event in events:
            if event.seq > until:
                break
            if isinstance(event, MessageInjected) and not event.path:
                loaded = await texts.load(event)
                assert isinstance(loaded, MessageInjected)
                present.append(_build_injected(loaded))
    return present


def _is_among(message: UIMessage, present: Sequence[UIMessage]) -> bool:
    """Whether a message of the transcript is one of an open first turn: by its id, or without one by its content."""
    return any(
        one["id"] == message["id"] or (one["id"].startswith("e") and one["parts"] == message["parts"])
        for one in present
        if message["role"] == "user"
    )


def build_chat_messages(messages: Sequence[Message]) -> list[UIMessage]:
    """Build the messages of a chat from a transcript. All replies to a message of the user are one message of the
    assistant, as in the stream of a turn; what the engine tells the model is left out."""
    results = {part.call_id: part for message in messages for part in message.tool_results}
    chat: list[UIMessage] = []
    for index, message in enumerate(messages):
        if message.role == "user" and not is_own_message(message):
            parts = [_build_content_part(part) for part in message.parts if isinstance(part, TextPart | FilePart)]
            chat.append({"id": message.id or f"m{index}", "role": "user", "parts": parts})
        elif message.role == "assistant":
            if not chat or chat[-1]["role"] != "assistant":
                of = chat[-1]["id"] if chat else f"m{index}"
                chat.append({"id": f"{of}/reply", "role": "assistant", "parts": []})
            chat[-1]["parts"] += [{"type": "step-start"}, *_build_reply_parts(message, results)]
            if any(is_answer_call(part.name) for part in message.tool_calls):
                chat[-1][_HAS_ANSWER_CALL] = True
    return chat


def is_own_message(message: Message) -> bool:
    """Whether the engine has written the message for the model: a summary, or a reminder to finish."""
    return message.id == SUMMARY_ID or (message.id == REMINDER_ID and message.by is None)


def _build_reply_parts(message: Message, results: dict[str, ToolResultPart]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, TextPart | FilePart):
            parts.append(_build_content_part(part))
        elif isinstance(part, ThinkingPart) and part.text:
            parts.append({"type": "reasoning", "text": part.text, "state": "done"})
        elif isinstance(part, ToolCallPart) and not is_answer_call(part.name):
            parts.append(_build_tool_part(part, results.get(part.id)))
    return parts


def _build_content_part(part: TextPart | FilePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return _build_blob_part(part.blob) if part.blob else {"type": "text", "text": part.text, "state": "done"}
    if part.url is not None:
        return {"type": "file", "url": part.url, "mediaType": part.media_type}
    return {"type": "data-file", "data": {"name": part.name, "mediaType": part.media_type}}


def _build_blob_part(blob: BlobRef) -> dict[str, Any]:
    """Build the part of a text that is too large for a message: `/v1/sessions/{id}/items` has its address."""
    return {"type": "data-blob", "data": {"hash": blob.hash, "size": blob.size}}


def _build_tool_part(call: ToolCallPart, result: ToolResultPart | None) -> dict[str, Any]:
    part = {"type": "dynamic-tool", "toolName": call.name, "toolCallId": call.id, "input": call.arguments or {}}
    if result is None:
        return part | {"state": "input-available"}
    if result.is_error:
        text = result.content or (f"a text of {result.blob.size:,} bytes" if result.blob else "")
        return part | {"state": "output-error", "errorText": text}
    if result.blob is not None:
        return part | {"state": "output-available", "output": _build_blob_part(result.blob)["data"]}
    return part | {"state": "output-available", "output": read_tool_output(result.content)}


def read_tool_output(content: str) -> Any:
    """Return a tool's result as a value, or as text where it is not JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def _build_injected(event: MessageInjected) -> UIMessage:
    parts = [{"type": "text", "text": event.content, "state": "done"}] if event.content else []
    parts += [_build_blob_part(event.blob)] if event.blob else []
    parts += [_build_content_part(file) for file in event.files]
    return {"id": event.id or f"e{event.seq}", "role": "user", "parts": parts}
