"""Judges a stream by the rules of AG-UI 1.0's specification, and holds what a client holds at its end."""

from __future__ import annotations

from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

_EVENT: TypeAdapter[Any] = TypeAdapter(Event)
_OPENERS = {
    "TEXT_MESSAGE_START": ("text", "messageId"),
    "REASONING_START": ("span", "messageId"),
    "REASONING_MESSAGE_START": ("thinking", "messageId"),
    "TOOL_CALL_START": ("call", "toolCallId"),
    "STEP_STARTED": ("step", "stepName"),
}
_ENDS = {
    "TEXT_MESSAGE_END": ("text", "messageId"),
    "REASONING_END": ("span", "messageId"),
    "REASONING_MESSAGE_END": ("thinking", "messageId"),
    "TOOL_CALL_END": ("call", "toolCallId"),
    "STEP_FINISHED": ("step", "stepName"),
}
_CONTENTS = {
    "TEXT_MESSAGE_CONTENT": ("text", "messageId"),
    "REASONING_MESSAGE_CONTENT": ("thinking", "messageId"),
    "TOOL_CALL_ARGS": ("call", "toolCallId"),
}


class StrictClient:
    """Takes the frames of one run; an ``AssertionError`` is a violation."""

    def __init__(self, messages: list[dict[str, Any]] | None = None) -> None:
        self.messages = {message["id"]: dict(message) for message in messages or []}
        self.state = "new"
        self.end: dict[str, Any] = {}
        self._open: dict[tuple[str, str, str | None], str | None] = {}
        self._active: set[str] = set()
        self._ended: set[str] = set()
        self.unanswered: list[str] = []
        self.frames: list[dict[str, Any]] = []

    def take(self, frame: dict[str, Any]) -> None:
        """Take one frame."""
        _EVENT.validate_python(frame)
        kind, owner = frame["type"], frame.get("subagentRunId")
        assert "subagentRunId" not in frame or owner, "an owner is never null"
        if self.state == "new":
            assert kind in ("RUN_STARTED", "RUN_ERROR"), kind
            self.state = "active" if kind == "RUN_STARTED" else "closed"
            return
        assert self.state == "active", f"{kind} after the end"
        if owner is not None and not kind.startswith("SUBAGENT"):
            assert owner in self._active, f"{kind} of {owner}, which is not announced"
        if kind in _OPENERS:
            name, field = _OPENERS[kind]
            key = (name, frame[field], owner if name == "step" else None)
            assert key not in self._open, f"{key} is open"
            self._open[key] = owner
            self._open_message(frame)
        elif kind in _ENDS or kind in _CONTENTS:
            name, field = (_ENDS | _CONTENTS)[kind]
            key = (name, frame[field], owner if name == "step" else None)
            assert key in self._open, f"{kind}: {key} is not open"
            assert owner in (None, self._open[key])
            if kind in _ENDS:
                del self._open[key]
            else:
                self._extend(frame)
        elif kind == "MESSAGES_SNAPSHOT":
            self.messages = {message["id"]: _copy(message) for message in frame["messages"]}
            assert len(self.messages) == len(frame["messages"]), "an id occurs twice"
            answered = {message.get("toolCallId") for message in self.messages.values()}
            calls = [call["id"] for message in self.messages.values() for call in message.get("toolCalls", [])]
            self.unanswered = [call for call in calls if call not in answered]
        elif kind == "TOOL_CALL_RESULT":
            assert frame["messageId"] not in self.messages
            self.messages[frame["messageId"]] = {"role": "tool", "content": frame["content"]} | {
                "toolCallId": frame["toolCallId"]
            }
            self.unanswered.remove(frame["toolCallId"])
        else:
            self._take_lifecycle(kind, frame)

    def _take_lifecycle(self, kind: str, frame: dict[str, Any]) -> None:
        owner = frame.get("subagentRunId")
        if kind == "SUBAGENT_STARTED":
            assert owner not in self._active | self._ended
            assert frame.get("parentSubagentRunId") in (None, *self._active)
            self._active.add(owner or "")
        elif kind in ("SUBAGENT_FINISHED", "SUBAGENT_ERROR"):
            self._active.remove(owner or "")
            self._ended.add(owner or "")
        elif kind == "RUN_FINISHED":
            assert not self._open, f"still open: {list(self._open)}"
            assert not self._active
            self.state, self.end = "closed", frame
        elif kind == "RUN_ERROR":
            self.state, self.end = "closed", frame

    def _open_message(self, frame: dict[str, Any]) -> None:
        if frame["type"] in ("TEXT_MESSAGE_START", "REASONING_MESSAGE_START"):
            fresh = {"id": frame["messageId"], "role": frame["role"]}
            self.messages.setdefault(frame["messageId"], fresh)
        elif frame["type"] == "TOOL_CALL_START":
            parent = self.messages.setdefault(frame["parentMessageId"], {"role": "assistant"})
            calls = parent.setdefault("toolCalls", [])
            if not any(call["id"] == frame["toolCallId"] for call in calls):
                calls.append({"id": frame["toolCallId"], "function": {"name": frame["toolCallName"], "arguments": ""}})
                self.unanswered.append(frame["toolCallId"])

    def _extend(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "TOOL_CALL_ARGS":
            calls = [call for message in self.messages.values() for call in message.get("toolCalls", [])]
            call = next(call for call in calls if call["id"] == frame["toolCallId"])
            call["function"]["arguments"] += frame["delta"]
        else:
            message = self.messages[frame["messageId"]]
            message["content"] = (message.get("content") or "") + frame["delta"]

    def texts(self) -> list[str]:
        """The text of each of the assistant's messages."""
        said = [m.get("content") or "" for m in self.messages.values() if m["role"] == "assistant"]
        return [text for text in said if text]


def _copy(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "function": dict(call["function"])} for call in message.get("toolCalls", [])]
    return {**message} | ({"toolCalls": calls} if calls else {})
