"""Translates perdure's events into those of AG-UI 1.0. Without I/O: an event in, the frames that it becomes out.

Apart from the routes because it is the part that knows the protocol's order: everything that is opened is closed, ids
are not used twice, and what a client holds at the end is what the transcript says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ag_ui.core import PROTOCOL_VERSION
from pydantic import BaseModel

from ..client.decisions import RunWait
from ..types.events import (
    ConversationCompacted,
    Event,
    MessageInjected,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    RunEvent,
    ToolCompleted,
    ToolProgress,
    ToolStarted,
    TurnEvent,
)
from ..types.messages import NAME_CHARS, Usage
from .argument_text import dump_arguments, find_rest
from .turns import Replies, Reply, describe_answer, dump_event, is_answer_call, shorten_id

Frame = dict[str, Any]

_ID_SEPARATOR = "|"
_THINKING = "/thinking"
_ENDED_RUN = ("completed", "failed", "cancelled", "terminated", "timed_out")


class AguiTranslator:
    """The stream of one AG-UI run: ``start``, ``feed`` for each event, ``finish``.

    ``rebuild`` takes the events before the stream, so that a stream may begin anywhere in a turn: it then restates the
    conversation. ``merge`` joins that with what the client holds. ``messages`` is what it then holds.
    """

    def __init__(
        self, thread_id: str, run_id: str, *, version: str | None = None, frontend_tools: Sequence[str] = ()
    ) -> None:
        self.thread_id, self.run_id = thread_id, run_id
        self.messages: list[Frame] = []
        self._by_id: dict[str, Frame] = {}
        self._is_v1 = version is not None
        self._frontend_tools = frozenset(frontend_tools)
        self._frames: list[Frame] = []
        self._sent_id: str | None = None
        self._reset()

    def _reset(self) -> None:
        self._replies = Replies()
        self._open: dict[str, tuple[Frame, Frame]] = {}
        """What is open: the frame that ends it, and the one that begins it again, by kind and id."""
        self._steps: dict[str, str] = {}
        self._subagents: dict[str, tuple[str, str]] = {}
        """Of each subagent's run: the run and the call that started it."""
        self._names: dict[str, str] = {}
        self._active: list[str] = []
        self._ended: set[str] = set()
        self._calls: dict[str, tuple[str, str]] = {}
        """Calls without a result: their run and name, by AG-UI's id."""
        self._usage: dict[str, Usage] = {}
        self._last_text = ""
        self._end: TurnEvent | RunEvent | None = None

    # --- the stream

    def rebuild(self, history: Sequence[Event], task_id: str) -> None:
        """Take the events before the stream, which is one of turn ``task_id``: those of the conversation, or of the
        turn alone."""
        self._set_messages([])
        self._reset()
        for event in history:
            if isinstance(event, TurnEvent) and not event.path and event.state == "started":
                self._end = None
            self.feed(event)
        if self._end is not None and self._end.task_id != task_id:
            self._end = None
        self._usage.clear()

    def merge(self, held: Sequence[Frame], results: Sequence[Frame], *, is_whole: bool = False) -> bool:
        """Join the messages that the client holds with those that were rebuilt, in the client's order and under its
        ids: a client leaves what a snapshot names where it is, and appends the rest. ``results`` are the tool messages
        that it has just sent. False, and nothing is done, if the turn was rebuilt alone and the client does not have
        the message that began it."""
        begin = 0
        if not is_whole:
            first = next((message["id"] for message in self.messages if message["role"] == "user"), None)
            begin = next((index for index, message in enumerate(held) if message["id"] == first), -1)
            if begin < 0:
                return False
        own_ids = {message["toolCallId"]: message["id"] for message in held if message["role"] == "tool"}
        for message in self.messages:
            if message["role"] == "tool":
                message["id"] = own_ids.get(message["toolCallId"], message["id"])
        rebuilt = {message["id"]: message for message in self.messages}
        sent = {result["toolCallId"] for result in results}
        last = max((index for index, message in enumerate(held) if message["id"] in rebuilt), default=-1)
        merged = list(held[:begin])
        for index, message in enumerate(held[begin:], begin):
            # What has just been sent is not recorded yet, and the reasoning of a reply that counts is not stored.
            is_new = (message["role"] == "user" and index > last) or message.get("toolCallId") in sent
            is_thought = message["role"] == "reasoning" and message["id"].removesuffix(_THINKING) in self._by_id
            if message["id"] in rebuilt or is_new or is_thought:
                merged.append(rebuilt.pop(message["id"], message))
        self._set_messages([*merged, *rebuilt.values()])
        self._note_sent(held)
        for call_id in sent:
            self._calls.pop(call_id, None)
        return True

    def start(self, messages: Sequence[Frame] | None = None) -> list[Frame]:
        """Return the first frames. ``messages`` are those that the client has at the start of a turn: without them the
        conversation is restated, and what was being written continues."""
        self._frames = []
        version = {"protocolVersion": PROTOCOL_VERSION} if self._is_v1 else {}
        self._emit("RUN_STARTED", threadId=self.thread_id, runId=self.run_id, **version)
        if messages is not None:
            self._set_messages([*messages, *self.messages])
            self._note_sent(messages)
            return self._take()
        self._emit("MESSAGES_SNAPSHOT", messages=self.messages)
        for context_id in self._active:
            self._emit("SUBAGENT_STARTED", **self._describe_subagent(context_id))
        for owner, step in self._steps.items():
            self._emit("STEP_STARTED", owner, stepName=step)
        for _, begin in self._open.values():
            self._frames.append(begin)
        return self._take()

    def feed(self, event: Event, results: Mapping[str, str] | None = None) -> list[Frame]:
        """Return the frames of ``event``. ``results`` are those of calls that have no event of their own, by call id:
        see ``lacks_results``."""
        self._frames = []
        if event.context_id in self._ended:
            return []
        if event.path:
            self._announce(event)
        match event:
            case ModelStarted():
                self._close_calls(event.context_id, results or {})
                self._begin_step(event)
            case ModelDelta():
                self._write(event)
            case ModelCompleted():
                self._complete(event)
            case ModelRetracted():
                self._retract(event)
            case ToolStarted():
                if event.child_context_id:
                    self._subagents[event.child_context_id] = (event.context_id, event.call_id)
            case ToolProgress():
                call_id = self._call_id(event.context_id, event.call_id)
                content = {"toolCallId": call_id, "name": event.name, "message": event.message, "data": event.data}
                fields = {"messageId": f"{call_id}/progress", "activityType": "perdure.progress", "content": content}
                self._emit("ACTIVITY_SNAPSHOT", event.context_id, **fields)
            case ToolCompleted():
                self._answer_call(event.context_id, event.call_id, event.content, event.name)
                for child, started_by in self._subagents.items():
                    if started_by == (event.context_id, event.call_id) and child in self._active:
                        self._end_subagent(child, error=event.content if event.is_error else None)
            case MessageInjected():
                self._inject(event)
            case TurnEvent() | RunEvent():
                self._note_state(event, results or {})
            case _:
                if isinstance(event, ConversationCompacted):
                    self._count(event.model, event.usage)
                self._emit("CUSTOM", event.context_id, name=f"perdure.{event.type}", value=dump_event(event))
        return self._take()

    def lacks_results(self, event: Event) -> bool:
        """Whether ``event`` follows calls of its run whose results have no event: ``feed`` then takes them."""
        return isinstance(event, ModelStarted | TurnEvent) and any(
            run == event.context_id for run, _ in self._calls.values()
        )

    def warn(self, name: str, value: Any) -> list[Frame]:
        """Return a frame for something that the request got wrong, and that does not end the run."""
        self._frames = []
        self._emit("CUSTOM", name=f"perdure.{name}", value=value)
        return self._take()

    def finish(self, waits: Sequence[RunWait] = ()) -> list[Frame]:
        """Return the last frames: the turn has ended, or only the calls of ``waits`` are left."""
        self._frames = []
        self._close_open()
        for owner, step in list(self._steps.items()):
            self._emit("STEP_FINISHED", owner, stepName=step)
        self._steps.clear()
        for context_id in reversed(self._active):
            ids = [wait.id for wait in waits if wait.run_id == context_id]
            outcome = {"type": "suspended"} | ({"interruptIds": ids} if ids else {})
            self._emit("SUBAGENT_FINISHED", subagentRunId=context_id, outcome=outcome)
        self._active.clear()
        usage: Frame = {"usage": self._list_usage()} if self._is_v1 and self._usage else {}
        end = self._end
        if not waits and end is not None and end.state not in ("completed", "cancelled"):
            code = {"code": end.error_type} if end.error_type else {}
            self._emit("RUN_ERROR", message=end.error or f"the turn has {end.state}", **code, **usage)
            return self._take()
        outcome = self._build_outcome(waits)
        named: Frame = {"outcome": outcome} if self._is_v1 or outcome["type"] == "interrupt" else {}
        self._emit("RUN_FINISHED", threadId=self.thread_id, runId=self.run_id, **named, **usage)
        return self._take()

    # --- its parts

    def _build_outcome(self, waits: Sequence[RunWait]) -> Frame:
        asked = [wait for wait in waits if not self._is_frontend(wait)]
        if asked:
            return {"type": "interrupt", "interrupts": [self._build_interrupt(wait) for wait in asked]}
        if waits:
            pending = [self._call_id(wait.run_id, wait.call.call_id) for wait in waits]
            return {"type": "success", "pendingToolCallIds": pending}
        end = self._end
        if end is not None and (end.state == "cancelled" or getattr(end, "finish_reason", None) == "interrupted"):
            return {"type": "cancelled"}
        return {"type": "success"}

    def _is_frontend(self, wait: RunWait) -> bool:
        return wait.call.kind == "callback" and wait.call.tool in self._frontend_tools

    def _build_interrupt(self, wait: RunWait) -> Frame:
        call = wait.call
        interrupt: Frame = {
            "id": wait.id,
            "reason": "input_required" if call.kind == "question" else "tool_call",
            "message": call.question or f"Approve {call.tool}?",
            "toolCallId": self._call_id(wait.run_id, call.call_id),
            "metadata": {
                "tool": call.tool, "arguments": call.arguments, "hash": call.hash, "separate": call.separate
            },
        }  # fmt: skip
        if call.kind == "approval":
            interrupt["responseSchema"] = APPROVAL_SCHEMA
        else:
            interrupt |= {"responseSchema": call.form} if call.form else {}
            interrupt |= {"message": f"Run {call.tool} and send its result."} if call.kind == "callback" else {}
        interrupt |= {"expiresAt": call.expires} if call.expires else {}
        interrupt |= {"subagentRunId": wait.run_id} if wait.run_id != self.thread_id else {}
        return interrupt

    def _emit(self, type: str, context_id: str | None = None, **fields: Any) -> Frame:
        owner = {"subagentRunId": context_id} if context_id and context_id != self.thread_id else {}
        frame = {"type": type, **fields, **owner}
        self._frames.append(frame)
        return frame

    def _take(self) -> list[Frame]:
        frames, self._frames = self._frames, []
        return frames

    def _call_id(self, context_id: str, call_id: str) -> str:
        """Return AG-UI's id of a call: a subagent's is unique in its own run only."""
        return call_id if context_id == self.thread_id else f"{context_id}/{call_id}"

    def _begin(self, kind: str, id: str, context_id: str, begin: Frame, end: Frame) -> None:
        """Emit ``begin`` unless it is open, and remember ``end``."""
        if f"{kind} {id}" not in self._open:
            begun = self._emit(begin.pop("type"), context_id, **begin)
            owner = {key: value for key, value in begun.items() if key == "subagentRunId"}
            self._open[f"{kind} {id}"] = ({**end, **owner}, begun)

    def _end_of(self, kind: str, id: str) -> None:
        ends = self._open.pop(f"{kind} {id}", None)
        if ends is not None:
            self._frames.append(ends[0])

    def _close_open(self, context_id: str | None = None) -> None:
        for key in reversed(list(self._open)):
            end, _ = self._open[key]
            if context_id is None or end.get("subagentRunId", self.thread_id) == context_id:
                self._frames.append(end)
                del self._open[key]

    def _message(self, id: str, role: str, context_id: str, **fields: Any) -> Frame:
        """Return the message ``id`` of the conversation, which may be new."""
        if (known := self._by_id.get(id)) is not None:
            return known
        owner = {} if context_id == self.thread_id else {"subagentRunId": context_id}
        message = self._by_id[id] = {"id": id, "role": role, **fields, **owner}
        self.messages.append(message)
        return message

    def _set_messages(self, messages: list[Frame]) -> None:
        self.messages = messages
        self._by_id = {message["id"]: message for message in messages}

    # --- replies

    def _begin_step(self, event: ModelStarted) -> None:
        self._close_open(event.context_id)
        self._end_step(event.context_id)
        self._steps[event.context_id] = f"iteration {event.iteration}"
        self._emit("STEP_STARTED", event.context_id, stepName=self._steps[event.context_id])

    def _end_step(self, context_id: str) -> None:
        if step := self._steps.pop(context_id, None):
            self._emit("STEP_FINISHED", context_id, stepName=step)

    def _write(self, event: ModelDelta) -> None:
        reply = self._replies.open(event)
        added = reply.extend(event)
        if event.kind == "thinking":
            self._think(reply, event.context_id, added)
        elif event.kind == "text":
            self._end_thinking(reply)
            self._say(reply, event.context_id, added)
        else:
            call = reply.calls[event.index]
            if call.id and call.name and not is_answer_call(call.name):
                self._end_thinking(reply)
                self._call(reply, event.context_id, call.id, call.name, added)

    def _say(self, reply: Reply, context_id: str, added: str) -> None:
        if added:
            message = self._message(reply.id, "assistant", context_id)
            message["content"] = message.get("content", "") + added
            begin = {"type": "TEXT_MESSAGE_START", "messageId": reply.id, "role": "assistant"}
            self._begin("text", reply.id, context_id, begin, {"type": "TEXT_MESSAGE_END", "messageId": reply.id})
            self._emit("TEXT_MESSAGE_CONTENT", context_id, messageId=reply.id, delta=added)

    def _think(self, reply: Reply, context_id: str, added: str) -> None:
        if not added:
            return
        thought_id = f"{reply.id}{_THINKING}"
        message = self._message(thought_id, "reasoning", context_id, content="")
        message["content"] += added
        span = {"type": "REASONING_START", "messageId": thought_id}
        self._begin("span", thought_id, context_id, span, {"type": "REASONING_END", "messageId": thought_id})
        begin = {"type": "REASONING_MESSAGE_START", "messageId": thought_id, "role": "reasoning"}
        self._begin(
            "thinking", thought_id, context_id, begin, {"type": "REASONING_MESSAGE_END", "messageId": thought_id}
        )
        self._emit("REASONING_MESSAGE_CONTENT", context_id, messageId=thought_id, delta=added)

    def _end_thinking(self, reply: Reply) -> None:
        for kind in ("thinking", "span"):
            self._end_of(kind, f"{reply.id}{_THINKING}")

    def _call(self, reply: Reply, context_id: str, call_id: str, name: str, added: str) -> None:
        wire_id = self._call_id(context_id, call_id)
        calls = self._message(reply.id, "assistant", context_id).setdefault("toolCalls", [])
        known = next((call for call in calls if call["id"] == wire_id), None)
        if known is None:
            known = {"id": wire_id, "type": "function", "function": {"name": name, "arguments": ""}}
            calls.append(known)
        known["function"]["arguments"] += added
        begin = {"type": "TOOL_CALL_START", "toolCallId": wire_id, "toolCallName": name, "parentMessageId": reply.id}
        self._begin("call", wire_id, context_id, begin, {"type": "TOOL_CALL_END", "toolCallId": wire_id})
        if added:
            self._emit("TOOL_CALL_ARGS", context_id, toolCallId=wire_id, delta=added)
        self._calls[wire_id] = (context_id, name)

    def _complete(self, event: ModelCompleted) -> None:
        """Emit what is still missing of a reply, made from its whole text, and close it."""
        reply = self._replies.open(event)
        context_id, is_wrong = event.context_id, False
        self._end_thinking(reply)
        if event.blob is None:
            if event.text.startswith(reply.text):
                self._say(reply, context_id, event.text[len(reply.text) :])
            else:
                is_wrong = True
        written = {call.id: call.arguments for call in reply.calls.values() if not is_answer_call(call.name)}
        calls = [call for call in event.calls if not is_answer_call(call.name)]
        for call in calls:
            rest = find_rest(written.get(call.id, ""), call.arguments)
            if rest is None:
                is_wrong = True
            else:
                self._call(reply, context_id, call.id, call.name, rest)
        is_wrong = is_wrong or bool(written.keys() - {call.id for call in calls})
        self._close_open(context_id)
        if is_wrong:
            self._correct(reply, event)
        self._replies.close(event)
        self._end_step(context_id)
        self._count(event.model, event.usage)
        if not event.path:
            self._last_text = event.text

    def _correct(self, reply: Reply, event: ModelCompleted) -> None:
        """Restate the conversation where what was written is not what the reply is."""
        message = self._message(reply.id, "assistant", event.context_id)
        for call in message.get("toolCalls", []):
            self._calls.pop(call["id"], None)
        fields: Frame = {"content": event.text} if event.text else {}
        calls = [call for call in event.calls if not is_answer_call(call.name)]
        for call in calls:
            self._calls[self._call_id(event.context_id, call.id)] = (event.context_id, call.name)
        if calls:
            fields["toolCalls"] = [
                {
                    "id": self._call_id(event.context_id, call.id),
                    "type": "function",
                    "function": {"name": call.name, "arguments": dump_arguments(call.arguments)},
                }
                for call in calls
            ]
        message.pop("content", None)
        message.pop("toolCalls", None)
        message.update(fields)
        self._emit("MESSAGES_SNAPSHOT", messages=self.messages)

    def _retract(self, event: ModelRetracted) -> None:
        """End what was written of a reply that does not count, and restate the conversation without it."""
        self._close_open(event.context_id)
        self._end_step(event.context_id)
        reply = self._replies.close(event)
        ids = () if reply is None else (reply.id, f"{reply.id}{_THINKING}")
        dropped = [self._by_id[name] for name in ids if name in self._by_id]
        for message in dropped:
            for call in message.get("toolCalls", []):
                self._calls.pop(call["id"], None)
            self.messages.remove(message)
            del self._by_id[message["id"]]
        if dropped:
            self._emit("MESSAGES_SNAPSHOT", messages=self.messages)

    # --- calls, messages, subagents

    def _answer_call(self, context_id: str, call_id: str, content: str, name: str) -> None:
        wire_id = self._call_id(context_id, call_id)
        is_known = self._calls.pop(wire_id, None) is not None
        is_new = f"{wire_id}/result" not in self._by_id
        if not is_known or not is_new:
            return
        self._message(f"{wire_id}/result", "tool", context_id, content=content, toolCallId=wire_id)
        if name not in self._frontend_tools:  # its result is the client's own
            self._emit(
                "TOOL_CALL_RESULT", context_id, messageId=f"{wire_id}/result", toolCallId=wire_id, content=content
            )

    def _close_calls(self, context_id: str, results: Mapping[str, str]) -> None:
        """Answer calls whose results have no event: of unknown tools, of denied calls."""
        for wire_id, (owner, name) in list(self._calls.items()):
            if owner == context_id:
                call_id = wire_id if owner == self.thread_id else wire_id[len(owner) + 1 :]
                self._answer_call(context_id, call_id, results.get(call_id, ""), name)

    def _note_sent(self, messages: Sequence[Frame]) -> None:
        """Remember the message that the request has sent: the client has it."""
        if messages and messages[-1]["role"] == "user":
            self._sent_id = build_message_id(self.run_id, messages[-1]["id"])

    def _inject(self, event: MessageInjected) -> None:
        if event.path:
            return
        if event.id is not None and event.id == self._sent_id:
            return
        message_id = _read_client_id(event.id or f"{event.context_id}/{event.seq}")
        if message_id in self._by_id:
            return
        self._message(message_id, "user", event.context_id, content=event.content)
        self._emit("TEXT_MESSAGE_START", messageId=message_id, role="user")
        self._emit("TEXT_MESSAGE_CONTENT", messageId=message_id, delta=event.content)
        self._emit("TEXT_MESSAGE_END", messageId=message_id)

    def _announce(self, event: Event) -> None:
        if event.context_id not in self._active:
            if event.context_id not in self._subagents:
                self._subagents[event.context_id] = (event.context_id.rpartition("/")[0], event.path[-1].call_id)
            self._names[event.context_id] = event.path[-1].agent
            self._active.append(event.context_id)
            self._emit("SUBAGENT_STARTED", **self._describe_subagent(event.context_id))

    def _describe_subagent(self, context_id: str) -> Frame:
        parent, call_id = self._subagents[context_id]
        fields: Frame = {"subagentRunId": context_id, "name": self._names[context_id]}
        fields |= {"parentSubagentRunId": parent} if parent in self._active else {}
        return fields | {"parentToolCallId": self._call_id(parent, call_id)}

    def _end_subagent(self, context_id: str, *, error: str | None = None) -> None:
        for child in [child for child in self._active if self._subagents[child][0] == context_id]:
            self._end_subagent(child)
        self._close_calls(context_id, {})
        self._close_open(context_id)
        self._end_step(context_id)
        self._active.remove(context_id)
        self._ended.add(context_id)
        if error is None:
            self._emit("SUBAGENT_FINISHED", subagentRunId=context_id)
        else:
            self._emit("SUBAGENT_ERROR", subagentRunId=context_id, message=error)

    def _note_state(self, event: TurnEvent | RunEvent, results: Mapping[str, str]) -> None:
        is_end = event.state in _ENDED_RUN
        if event.path:
            if is_end and isinstance(event, RunEvent):
                self._end_subagent(event.context_id, error=event.error)
            return
        if is_end:
            self._close_calls(event.context_id, results)
            self._end = event if self._end is None or isinstance(event, TurnEvent) else self._end
            if isinstance(event, TurnEvent) and (answer := describe_answer(event, self._last_text)):
                reply = Reply(f"{event.context_id}/{event.seq}/answer", 0)
                self._say(reply, event.context_id, answer)
                self._last_text = answer
                self._close_open(event.context_id)
        elif event.state in ("held_up", "recovered", "paused", "resumed"):
            self._emit("CUSTOM", name=f"perdure.{event.state}", value=dump_event(event))

    # --- usage

    def _count(self, model: str, usage: Usage) -> None:
        if model and usage != Usage():
            self._usage[model] = self._usage.get(model, Usage()) + usage

    def _list_usage(self) -> list[Frame]:
        listed = []
        for model, usage in self._usage.items():
            counts = {
                "reasoningTokens": usage.reasoning_tokens,
                "cachedInputTokens": usage.cached_tokens,
                "cacheWriteInputTokens": usage.cache_write_tokens,
            }
            total = {
                "inputTokens": usage.input_tokens,
                "outputTokens": usage.output_tokens,
                "totalTokens": usage.input_tokens + usage.output_tokens,
            }
            listed.append({"model": model, **total, **{name: count for name, count in counts.items() if count}})
        return listed


def build_message_id(run_id: str, client_id: str) -> str:
    """Return the id under which a message is sent: the same for the same run and message. It ends with the client's
    own id, so that a reader of the events finds it."""
    sent_id = f"{run_id}{_ID_SEPARATOR}{client_id}"
    if len(sent_id) > NAME_CHARS:
        sent_id = f"{hashlib.sha256(run_id.encode(errors='replace')).hexdigest()}{_ID_SEPARATOR}{client_id}"
    return shorten_id(sent_id)


def _read_client_id(message_id: str) -> str:
    return message_id.rpartition(_ID_SEPARATOR)[2] or message_id


def dump_message(message: BaseModel) -> Frame:
    """Return a client's message as JSON: optional fields are left out, not null."""
    return message.model_dump(mode="json", by_alias=True, exclude_none=True)


APPROVAL_SCHEMA: Frame = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean", "description": "Whether the call is made."},
        "editedArgs": {"type": "object", "description": "Arguments in place of the model's."},
        "reason": {"type": "string", "description": "For the model, if the call is denied."},
    },
    "required": ["approved"],
}
"""JSON Schema of the payload that decides an approval."""
