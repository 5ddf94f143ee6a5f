"""Finish protocols: how a reply is told from the answer, and what a model is told about it."""

from __future__ import annotations

import re
from typing import Any, assert_never

from ..types.interface import FINISH_TOOL, FinishProtocol, Response, plain_output
from ..types.limits import LimitUse
from ..types.messages import FinishReason, Message, Usage
from ..types.state import Answer, RunState
from ..types.wire import Finish

# ---
# What the outside sees of a state.


def response(state: RunState) -> Response:
    """The answer of the turn, with what it took."""
    turn = state.turn
    answer = turn.answer if turn else None
    usage, cost_usd = used(state)
    return Response(
        content=answer.content if answer else "",
        blob=answer.blob if answer else None,
        output=_output(state, answer),
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


def used(state: RunState) -> tuple[Usage, float | None]:
    """Tokens of the turn, and US dollars: None where no price is known."""
    turn, cost = state.turn, state.cost_usd
    if turn is None:
        return state.usage, cost
    before = turn.cost_before
    return state.usage - turn.usage_before, cost if cost is None or before is None else cost - before


def _output(state: RunState, answer: Answer | None) -> Any:
    if answer is None or answer.blob is not None:
        return None
    return output_of(answer.content, typed=answer.typed, called=answer.called, protocol=state.limits.protocol)


def output_of(content: str, *, typed: bool, called: bool, protocol: FinishProtocol) -> Any:
    """The output of an answer. Under ``finish="tool"`` a text that was not given by the tool is none."""
    if typed:
        return plain_output(content)
    return content if called or protocol != "tool" else None


REMINDER_ID = "perdure:reminder"
"""Message id of everything that the engine itself says to the model as a user message."""

TAG_PROMPT = (
    "You work in a loop: you may call tools as often as you need, and you see their results before you go on."
    " When you have the answer, give it inside <finish> and </finish>; only what stands there is returned. "
    "As long as you write no <finish> tag, the loop goes on."
)
"""Default system prompt of ``finish="tag"``."""

NO_ANSWER: frozenset[FinishReason] = frozenset(["refusal", "content_filter", "veto"])
"""How a reply ends that says why there is no answer: it stands in the answer's place, whatever it has to be like."""

_TAG = re.compile(r"<finish>((?:(?!<finish>).)*?)</finish>", re.DOTALL)
"""From the nearest opening tag: models like to name the tag before they use it."""


def classify(protocol: FinishProtocol, reply: Message, reason: FinishReason) -> Finish | None:
    """The answer in ``reply``, or None when the loop goes on.

    A reply that calls tools is never the answer: what it asks for is done first. A refusal is the answer, and
    so is a veto; ``finish_reason`` says what it is.
    """
    if reply.tool_calls:
        return None
    text = reply.text
    if reason in NO_ANSWER:
        return Finish(content=text)
    match protocol:
        case "text":
            return Finish(content=text) if text.strip() else None
        case "tag":
            return _tagged(text, reason)
        case "tool":
            return None  # what is the answer, only the agent's output type can say
        case _:
            assert_never(protocol)


def _tagged(text: str, reason: FinishReason) -> Finish | None:
    """The last ``<finish>`` element; an unclosed one counts only if the model stopped by itself."""
    if closed := _TAG.findall(text):
        return Finish(content=closed[-1].strip(), called=True)
    _, opened, rest = text.rpartition("<finish>")
    return Finish(content=rest.strip(), called=True) if opened and reason == "stop" else None


def forced(protocol: FinishProtocol, text: str) -> Finish:
    """The answer of a reply that had to be one: the tag's content if it is there, else all of it."""
    found = _tagged(text, "stop") if protocol == "tag" else None
    return found or Finish(content=text)


def reminder(protocol: FinishProtocol) -> str:
    """What the model is told after a reply with neither answer nor tool calls."""
    match protocol:
        case "text":
            return "Your last reply was empty. Call a tool, or write the answer."
        case "tag":
            return (
                "Your last reply had no tool call and no <finish> tag. "
                "Go on, or give the answer inside <finish></finish>."
            )
        case "tool":
            return f"Your last reply had no tool call. Go on, or call {FINISH_TOOL} with the answer."
        case _:
            assert_never(protocol)


def force(protocol: FinishProtocol, limit: LimitUse) -> str:
    """What the model is told when a limit is used up."""
    where = {"text": "", "tag": " inside <finish></finish>", "tool": f" by calling {FINISH_TOOL}"}[protocol]
    tools = "other tools" if protocol == "tool" else "tools"
    used = f"You have used all {limit.allowed:g} steps of this task"
    if limit.name != "max_iterations":
        used = f"This task is at a limit: {limit}"
    return f"{used}. Give your final answer now{where}, from what you know so far. You cannot call {tools} any more."
