"""The response of a turn, and finish protocols: how the answer is found in a reply, and the texts that ask for it."""

from __future__ import annotations

import re
from typing import Any, assert_never

from ..types.interface import FINISH_TOOL, FinishProtocol, Response, parse_output
from ..types.limits import LimitUse
from ..types.messages import FinishReason, Message, ToolCallPart, Usage
from ..types.state import RunState, TurnAnswer
from ..types.wire import FinalAnswer

# ---
# The response of a turn.


def build_response(state: RunState) -> Response:
    """Build the response of the present turn: its answer, usage and cost."""
    turn = state.turn
    answer = turn.answer if turn else None
    usage, cost_usd = compute_turn_usage(state)
    return Response(
        content=answer.content if answer else "",
        blob=answer.blob if answer else None,
        output=_build_answer_output(state, answer),
        typed=answer.typed if answer else False,
        iterations=turn.iteration if turn else 0,
        usage=usage,
        calls=turn.iteration - turn.unasked if turn else 0,
        cost_usd=cost_usd,
        finish_reason=answer.finish_reason if answer else "other",
        finish_called=answer.called if answer else False,
        context_id=state.context_id,
        task_id=turn.task_id if turn else "",
        head=state.head,
        store_id=state.store_id,
        unanswered=tuple(turn.unanswered) if turn else (),
    )


def compute_turn_usage(state: RunState) -> tuple[Usage, float | None]:
    """Return the usage of the turn in tokens, and its cost in US dollars: None if no price is known."""
    turn, cost = state.turn, state.cost_usd
    if turn is None:
        return state.usage, cost
    before = turn.cost_before
    return state.usage - turn.usage_before, cost if cost is None or before is None else cost - before


def _build_answer_output(state: RunState, answer: TurnAnswer | None) -> Any:
    if answer is None or answer.blob is not None:
        return None
    return build_output(answer.content, typed=answer.typed, called=answer.called, protocol=state.limits.protocol)


def build_output(content: str, *, typed: bool, called: bool, protocol: FinishProtocol) -> Any:
    """Build the output of an answer; None under ``finish="tool"`` for a text that did not come from the tool."""
    if typed:
        return parse_output(content)
    return content if called or protocol != "tool" else None


REMINDER_ID = "perdure:reminder"
"""Message id of every user message that the engine itself sends to the model."""

TAG_PROMPT = (
    "You work in a loop: you may call tools as often as you need, and you see their results before you go on."
    " When you have the answer, give it inside <finish> and </finish>; only what stands there is returned. "
    "As long as you write no <finish> tag, the loop goes on."
)
"""Default system prompt of ``finish="tag"``."""

NO_ANSWER_REASONS: frozenset[FinishReason] = frozenset(["refusal", "content_filter", "veto"])
"""Finish reasons of replies without an answer: the reply's text is used as the answer, whatever form was required."""

_FINISH_TAG = re.compile(r"<finish>((?:(?!<finish>).)*?)</finish>", re.DOTALL)
"""Matches from the nearest opening tag: models often mention the tag before they use it."""


def extract_answer(protocol: FinishProtocol, reply: Message, reason: FinishReason) -> FinalAnswer | None:
    """Extract the answer from ``reply``; None if the loop goes on.

    A reply that calls tools is never the answer: its calls run first. A refusal, a filtered reply or a veto is the
    answer; ``finish_reason`` says which it is.
    """
    if reply.tool_calls:
        return None
    text = reply.text
    if reason in NO_ANSWER_REASONS:
        return FinalAnswer(content=text)
    match protocol:
        case "text":
            return FinalAnswer(content=text) if text.strip() else None
        case "tag":
            return _extract_tagged_answer(text, reason)
        case "tool":
            return None  # the agent's output type decides what is the answer
        case _:
            assert_never(protocol)


def _extract_tagged_answer(text: str, reason: FinishReason) -> FinalAnswer | None:
    """Extract the last ``<finish>`` element; an unclosed one counts only if the model stopped by itself."""
    if closed_elements := _FINISH_TAG.findall(text):
        return FinalAnswer(content=closed_elements[-1].strip(), called=True)
    _, tag, content = text.rpartition("<finish>")
    return FinalAnswer(content=content.strip(), called=True) if tag and reason == "stop" else None


def extract_partial_answer(protocol: FinishProtocol, text: str) -> str | None:
    """Extract the answer so far from the beginning ``text`` of a reply; None as long as it has none."""
    match protocol:
        case "text":
            return text or None
        case "tag":
            _, tag, content = text.rpartition("<finish>")
            answer = content.partition("</finish>")[0]
            bracket = answer.rfind("<")
            if bracket >= 0 and "</finish>".startswith(answer[bracket:]):  # the closing tag may be coming
                answer = answer[:bracket]
            return answer.strip() or None if tag else None
        case "tool":
            return None
        case _:
            assert_never(protocol)


def extract_forced_answer(protocol: FinishProtocol, text: str) -> FinalAnswer:
    """Extract the answer from a reply that had to be one: the content of the tag, else the whole text."""
    answer = _extract_tagged_answer(text, "stop") if protocol == "tag" else None
    return answer or FinalAnswer(content=text)


_REMINDERS: dict[FinishProtocol, str] = {
    "text": "Your last reply was empty. Call a tool, or write the answer.",
    "tag": "Your last reply had no tool call and no <finish> tag. Go on, or give the answer inside <finish></finish>.",
    "tool": f"Your last reply had no tool call. Go on, or call {FINISH_TOOL} with the answer.",
}


def build_reminder_text(protocol: FinishProtocol) -> str:
    """Build the message to the model after a reply with neither answer nor tool calls."""
    return _REMINDERS[protocol]


MAX_CUT_REPLIES = 2
"""How often in a row a model is told that the output limit cut its reply; after one more the turn fails."""


def list_cut_calls(reply: Message) -> list[ToolCallPart]:
    """List the calls of ``reply`` that the output limit cut."""
    if reply.finish_reason != "length":
        return []
    return [part for part in reply.tool_calls if part.malformed is not None]


def build_cut_call_text(part: ToolCallPart) -> str:
    """Build the result of a call that the output limit cut."""
    return (
        f"OutputLimitError: the output limit cut your reply within this call of {part.name}, which was not run: "
        f"{len(part.malformed or '')} characters of its arguments came. Write less, or in parts: several calls, one "
        "reply each."
    )


def build_cut_reply_text() -> str:
    """Build the message to the model after a reply that was cut before it had an answer or a call."""
    return (
        "The output limit cut your last reply before it had an answer or a tool call. Write less, or in parts: do the "
        "next step only, and think briefly."
    )


def build_cut_failure_text(agent: str, reply: Message, count: int) -> str:
    """Build the message of the ``OutputLimitError`` after ``count`` cut replies in a row."""
    calls = [f"the call of {part.name} after {len(part.malformed or '')} characters" for part in list_cut_calls(reply)]
    last = f": the last one within {', '.join(calls)} of its arguments" if calls else " before they had an answer"
    return (
        f"the output limit cut {count} replies of agent {agent!r} in a row{last}. The model was asked to write less. "
        "Raise the setting max_tokens, or let the tool take its input in parts."
    )


def build_force_finish_text(protocol: FinishProtocol, limit: LimitUse) -> str:
    """Build the message to the model that a limit is used up and it must answer now."""
    where = {"text": "", "tag": " inside <finish></finish>", "tool": f" by calling {FINISH_TOOL}"}[protocol]
    tools = "other tools" if protocol == "tool" else "tools"
    used = f"You have used all {limit.allowed:g} steps of this task"
    if limit.name != "max_iterations":
        used = f"This task is at a limit: {limit}"
    return f"{used}. Give your final answer now{where}, from what you know so far. You cannot call {tools} any more."
