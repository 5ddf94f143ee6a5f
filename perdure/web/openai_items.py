"""Translates perdure's events into the frames and items of a response. Without I/O: an event in, its frames out.

The number of a frame is that of its event, and a place below it that is the same for every reader: a client continues
from any frame on any replica. The place of a piece of text is where it ends in its reply, so that the rest can be made
from the whole text when the pieces are deleted.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..client.decisions import RunWait
from ..types.events import (
    ApprovalRequested,
    ConversationCompacted,
    Event,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    QuestionAsked,
    RunEvent,
    Span,
    ToolCompleted,
    ToolStarted,
    TurnEvent,
)
from ..types.interface import TurnStatus
from ..types.messages import Usage
from .argument_text import dump_arguments
from .openai_requests import QUESTION_TOOL, encode_wait_id, parse_time
from .turns import Replies, describe_answer

PLACE_BITS = 22
_TEXT_PLACE = 8
"""Place of the first character of a reply's text, in the frames of its pieces."""
_END_PLACE = 1 << (PLACE_BITS - 1)
"""Place of the first frame behind the last event."""
_LAST_PLACE = (1 << PLACE_BITS) - 1
_MAX_TEXT_PLACE = _END_PLACE - 1
_ENDED_RUN = ("completed", "failed", "cancelled", "terminated", "timed_out")
_INCOMPLETE = {
    "length": "max_output_tokens", "limit": "max_output_tokens", "content_filter": "content_filter",
    "refusal": "content_filter",
}  # fmt: skip
Frame = dict[str, Any]
Item = dict[str, Any]


def hash_id(prefix: str, *parts: str) -> str:
    """Return an id that is the same for the same parts."""
    return prefix + hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]


def encode_frame_number(seq: int, place: int) -> int:
    """Return the ``sequence_number`` of a frame of an event."""
    return (seq << PLACE_BITS) + place


class ResponseTranslator:
    """The frames of one response: ``start``, ``feed`` for each event, ``finish``; ``describe`` is the response as it is
    then. ``has_texts``: see :func:`.openai_sessions.shows_texts`."""

    def __init__(self, id: str, session: str, agent: str, after: int, *, has_texts: bool = True) -> None:
        self.id, self._session, self._agent, self._after = id, session, agent, after
        self.fields: dict[str, Any] = {}
        """Fields of the response that the request gives."""
        self.last_number = encode_frame_number(after, 0)
        self.end: TurnEvent | RunEvent | None = None
        self._has_texts = has_texts
        self._skipped = -1
        """The number of the last frame that the client has."""
        self._is_filled = True
        """Whether the event of that frame is there, or made: it may be a piece of text that is deleted."""
        self._seq = after
        self._replies = Replies()
        self._message: Item | None = None
        self._text = ""
        self._output: list[Item] = []
        """All items, also those that were taken back."""
        self._frames: list[Frame] = []
        self._arguments: dict[tuple[str, str], Mapping[str, Any] | None] = {}
        self._callbacks: set[tuple[str, str]] = set()
        self._shown: set[str] = set()
        self._last_text = ""
        self._usage = Usage()
        self._status = "in_progress"
        self._created_at = 0
        self._ended_at = 0
        self._error: Item | None = None

    # --- the stream

    def skip_until(self, number: int | None) -> None:
        """Leave out the frames up to ``number``, which the client has."""
        if number is not None:
            self._skipped, self._is_filled = number, False

    def start(self) -> list[Frame]:
        """Return the first frames."""
        self._frames = []
        self._seq = self._after
        for place, kind in enumerate(("response.created", "response.in_progress")):
            self._emit(place, kind, response=self.describe())
        return self._frames

    def feed(self, event: Event) -> list[Frame]:
        """Return the frames of ``event``."""
        self._frames = []
        self._created_at = self._created_at or parse_time(event.at)
        if isinstance(event, ModelCompleted | ConversationCompacted):
            self._usage += event.usage
        if isinstance(event, ModelCompleted | ModelRetracted) and not event.path:
            self._fill_text(event)
        self._seq = event.seq
        self._is_filled = self._is_filled or event.seq == self._skipped >> PLACE_BITS
        match event:
            case ApprovalRequested():
                self._request_approval(event)
            case QuestionAsked():
                self._ask(event)
            case ModelCompleted():
                self._remember_arguments(event)
                if not event.path:
                    self._complete(event)
            case ToolStarted():
                self._arguments.setdefault((event.context_id, event.call_id), event.arguments)
            case _ if event.path:
                pass
            case ModelStarted():
                self._replies.open(event)
            case ModelDelta() if event.kind == "text" and self._has_texts:
                self._write(event)
            case ModelRetracted():
                self._retract(event)
            case ToolCompleted():
                self._add_call(event)
            case TurnEvent() | RunEvent() if event.state in _ENDED_RUN:
                self._note_end(event)
            case _:
                pass
        return self._frames

    def finish(self, waits: Sequence[RunWait] = ()) -> list[Frame]:
        """Return the last frames: the turn has ended, or only the calls of ``waits`` are left, of which those that were
        asked for before the response are restated."""
        self._frames = []
        for index, wait in enumerate(waits):
            self._restate(wait, _END_PLACE + 4 * index)
        self._status = "completed" if waits else self._find_status()
        kind = self._status if self._status in ("completed", "failed", "incomplete") else "incomplete"
        self._emit(_LAST_PLACE, f"response.{kind}", response=self.describe())
        return self._frames

    def lacks_arguments(self, event: ApprovalRequested | QuestionAsked) -> bool:
        """Whether the arguments of a call are too long for ``event``, and not known: see ``add_arguments``."""
        is_question = isinstance(event, QuestionAsked) and event.kind == "question"
        known = self._arguments.get((event.context_id, event.call_id))
        return event.arguments is None and known is None and not is_question

    def add_arguments(self, run_id: str, arguments: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the arguments of a run's calls, where they are too long for their events."""
        for call_id, value in arguments.items():
            self._arguments[run_id, call_id] = value

    def note_status(self, status: TurnStatus) -> None:
        """Take the end of a turn that has no event of it."""
        if status.state in ("failed", "cancelled"):
            fields = {"error_type": status.error_type, "error": status.error}
            self.end = TurnEvent(state=status.state, **fields)  # type: ignore[arg-type]  # as checked

    def describe(self) -> dict[str, Any]:
        """Return the response as it is."""
        state = self._status
        reason = _INCOMPLETE.get(str(getattr(self.end, "finish_reason", None)))
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at or int(time.time()),
            "completed_at": (self._ended_at or None) if state == "completed" else None,
            "status": state,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": reason} if state == "incomplete" and reason else None,
            "instructions": None,
            "max_output_tokens": None,
            "max_tool_calls": None,
            "model": self._agent,
            "output": self._list_output(),
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "conversation": {"id": self._session},
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": True,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "safety_identifier": None,
            "prompt_cache_key": None,
            "truncation": "disabled",
            "usage": build_response_usage(self._usage) if state != "in_progress" else None,
            "user": None,
            "metadata": {},
            **self.fields,
        }

    def _list_output(self) -> list[Item]:
        """List the items that count, with the text of the one that is being written."""
        output = [item for item in self._output if item.get("status") != "incomplete"]
        return [item | {"content": [_build_text(self._text)]} if item is self._message else item for item in output]

    # --- its parts

    def _emit(self, place: int, kind: str, **fields: Any) -> None:
        number = encode_frame_number(self._seq, place)
        if number > self._skipped:
            self.last_number = number
            self._frames.append({"type": kind, "sequence_number": number, **fields})

    def _emit_item(self, place: int, item: Item, *, is_done: bool = False) -> None:
        kind = "done" if is_done else "added"
        self._emit(place, f"response.output_item.{kind}", output_index=self._find_index(item), item=dict(item))

    def _find_index(self, item: Item) -> int:
        return next(index for index, other in enumerate(self._output) if other is item)

    def _find_status(self) -> str:
        end = self.end
        if end is None:
            return "incomplete"
        self._ended_at = parse_time(end.at) or int(time.time())
        reason = getattr(end, "finish_reason", None)
        if end.state == "cancelled" or reason == "interrupted":
            return "cancelled"
        if end.state != "completed":
            message = f"{end.error_type}: {end.error}" if end.error_type else (end.error or f"it has {end.state}")
            self._error = {"code": "server_error", "message": message[:2000]}
            return "failed"
        return "incomplete" if reason in _INCOMPLETE else "completed"

    # --- text

    def _fill_text(self, event: ModelCompleted | ModelRetracted) -> None:
        """Make the piece of text that the client has, and whose event is deleted, so that the rest continues it."""
        seq, place = self._skipped >> PLACE_BITS, self._skipped & _LAST_PLACE
        spans = event.replaces if isinstance(event, ModelCompleted) else event.retracts
        if self._is_filled or not _is_within(seq, spans) or not self._has_texts:
            return
        size = max(0, place - _TEXT_PLACE)
        text = event.text[:size] if isinstance(event, ModelCompleted) else " " * size
        self._is_filled, self._seq = True, seq
        reply = self._replies.find(event.context_id)
        iteration = event.iteration if reply is None else reply.iteration  # a lost worker's retraction names none
        self._open_message()
        self._write(ModelDelta(context_id=event.context_id, task_id=event.task_id, iteration=iteration, text=text))

    def _write(self, event: ModelDelta) -> None:
        reply = self._replies.open(event)
        added = reply.extend(event)
        if added:
            self._open_message()
            self._text = reply.text
            self._emit_text(min(_TEXT_PLACE + len(reply.text), _MAX_TEXT_PLACE), added)

    def _open_message(self, place: int = 0) -> None:
        if self._message is None:
            item_id = hash_id("msg_", self.id, str(len(self._output)))
            message: Item = {"type": "message", "id": item_id, "status": "in_progress", "role": "assistant"}
            message["content"] = []
            self._message, self._text = message, ""
            self._output.append(message)
            self._emit_item(place, message)
            where = {"item_id": item_id, "output_index": self._find_index(message), "content_index": 0}
            self._emit(place + 1, "response.content_part.added", **where, part=_build_text(""))

    def _emit_text(self, place: int, added: str) -> None:
        assert self._message is not None, "opened before"
        fields = {"item_id": self._message["id"], "output_index": self._find_index(self._message), "content_index": 0}
        self._emit(place, "response.output_text.delta", **fields, delta=added, logprobs=[])

    def _close_message(self, text: str, status: str, place: int = 0) -> None:
        message, self._message, self._text = self._message, None, ""
        assert message is not None, "opened before"
        where = {"item_id": message["id"], "output_index": self._find_index(message), "content_index": 0}
        self._emit(place + 3, "response.output_text.done", **where, text=text, logprobs=[])
        self._emit(place + 4, "response.content_part.done", **where, part=_build_text(text))
        message |= {"status": status, "content": [_build_text(text)] if status == "completed" else []}
        self._emit_item(place + 5, message, is_done=True)

    def _say(self, text: str, place: int = 0) -> None:
        """Emit what is missing of a whole text, and close its message."""
        self._open_message(place)
        if text.startswith(self._text) and len(text) > len(self._text):
            self._emit_text(place + 2, text[len(self._text) :])
        self._close_message(text, "completed", place)

    def _complete(self, event: ModelCompleted) -> None:
        reply = self._replies.open(event)
        text = event.text if event.blob is None else reply.text
        if self._has_texts and (text or self._message is not None):
            self._say(text)
        self._replies.close(event)
        self._last_text = text

    def _retract(self, event: ModelRetracted) -> None:
        """Take a message back. It is there for every reader if pieces of the reply, of whatever kind, were written."""
        self._replies.close(event)
        if self._message is None and event.retracts and self._has_texts:
            self._open_message()
        if self._message is not None:
            self._close_message("", "incomplete")

    def _note_end(self, event: TurnEvent | RunEvent) -> None:
        self.end = event if self.end is None or isinstance(event, TurnEvent) else self.end
        if self._message is not None:
            self._close_message("", "incomplete")
        last = self._last_text if self._has_texts else ""
        if isinstance(event, TurnEvent) and (answer := describe_answer(event, last)):
            self._last_text = answer
            self._say(answer, place=6)

    # --- calls

    def _remember_arguments(self, event: ModelCompleted) -> None:
        for call in event.calls:
            if call.arguments is not None:
                self._arguments[event.context_id, call.id] = call.arguments

    def _dump_arguments(self, run_id: str, call_id: str, arguments: Mapping[str, Any] | None) -> str:
        return dump_arguments(arguments if arguments is not None else self._arguments.get((run_id, call_id)))

    def _name_agent(self, event: Event) -> str:
        return event.path[-1].agent if event.path else self._agent

    def _request_approval(self, event: ApprovalRequested) -> None:
        wait_id = encode_wait_id("mcpr_", event.context_id, event.call_id, event.hash)
        arguments = self._dump_arguments(event.context_id, event.call_id, event.arguments)
        self._add_approval(0, wait_id, self._name_agent(event), event.name, arguments)

    def _add_approval(self, place: int, id: str, agent: str, name: str, arguments: str) -> None:
        item = {"type": "mcp_approval_request", "id": id, "server_label": agent, "name": name, "arguments": arguments}
        self._add_item(item)
        self._emit_item(place, item)
        self._emit_item(place + 1, item, is_done=True)

    def _ask(self, event: QuestionAsked) -> None:
        wait_id = encode_wait_id("call_", event.context_id, event.call_id, event.hash)
        if event.kind == "callback":
            self._callbacks.add((event.context_id, event.call_id))
            name, arguments = event.name, self._dump_arguments(event.context_id, event.call_id, event.arguments)
        else:
            name, arguments = QUESTION_TOOL, dump_arguments({"question": event.question, "form": event.form})
        self._add_function_call(0, wait_id, name, arguments)

    def _add_function_call(self, place: int, id: str, name: str, arguments: str) -> None:
        item: Item = {
            "type": "function_call", "id": hash_id("fc_", id), "call_id": id, "name": name, "arguments": "",
            "status": "in_progress",
        }  # fmt: skip
        self._add_item(item, id)
        self._emit_item(place, item)
        where = {"item_id": item["id"], "output_index": self._find_index(item)}
        self._emit(place + 1, "response.function_call_arguments.delta", **where, delta=arguments)
        self._emit(place + 2, "response.function_call_arguments.done", **where, name=name, arguments=arguments)
        item |= {"arguments": arguments, "status": "completed"}
        self._emit_item(place + 3, item, is_done=True)

    def _add_item(self, item: Item, shown: str | None = None) -> None:
        self._output.append(item)
        self._shown.add(shown or item["id"])

    def _restate(self, wait: RunWait, place: int) -> None:
        call = wait.call
        is_approval = call.kind == "approval"
        wait_id = encode_wait_id("mcpr_" if is_approval else "call_", wait.run_id, call.call_id, call.hash)
        if wait_id in self._shown:
            return
        arguments = self._dump_arguments(wait.run_id, call.call_id, call.arguments)
        if is_approval:
            self._add_approval(place, wait_id, self._agent, call.tool, arguments)
        elif call.kind == "callback":
            self._add_function_call(place, wait_id, call.tool, arguments)
        else:
            question = dump_arguments({"question": call.question, "form": call.form})
            self._add_function_call(place, wait_id, QUESTION_TOOL, question)

    def _add_call(self, event: ToolCompleted) -> None:
        """Add a call that the agent's own tools have answered."""
        key = (event.context_id, event.call_id)
        if event.answered_by is not None or key in self._callbacks:
            return
        item: Item = {
            "type": "mcp_call", "id": hash_id("mcp_", *key), "server_label": self._agent, "name": event.name,
            "arguments": "", "output": None, "error": None, "approval_request_id": None, "status": "in_progress",
        }  # fmt: skip
        self._output.append(item)
        self._emit_item(0, item)
        where = {"item_id": item["id"], "output_index": self._find_index(item)}
        self._emit(1, "response.mcp_call.in_progress", **where)
        item["arguments"] = self._dump_arguments(*key, None)
        self._emit(2, "response.mcp_call_arguments.done", **where, arguments=item["arguments"])
        state = "failed" if event.is_error else "completed"
        self._emit(3, f"response.mcp_call.{state}", **where)
        item["status"] = state
        if event.is_error:
            item["error"] = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": event.content}]}
        elif event.blob is None:  # a long one is the session's: GET /v1/sessions/{id}/items
            item["output"] = event.content
        self._emit_item(4, item, is_done=True)


def _is_within(seq: int, spans: Sequence[Span]) -> bool:
    return any(first <= seq <= last for first, last in spans)


def _build_text(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def build_response_usage(usage: Usage) -> dict[str, Any]:
    """Build the counts of tokens of a response."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }  # fmt: skip
