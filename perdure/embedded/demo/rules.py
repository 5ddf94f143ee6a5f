"""The model itself: a conversation in, the next reply out. It keeps nothing; all it knows is in the conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .answer import compose
from .findings import Findings
from .plan import next_calls
from .question import Question, understand
from .toolkit import Toolkit, use_of
from .wire import Ask, Conversation, Say, Turn

_ONE_CALL = re.compile(r"\bone (?:tool|call|tool call) at a time\b", re.IGNORECASE)
"""An instruction of the system prompt that the model follows."""


def reply(conversation: Conversation) -> Say:
    """What the model says next."""
    turns = conversation.turns
    since = _turn_start(turns)
    questions, brief = _questions(turns, since)
    findings = _findings(turns)
    used = sum(len(turn.calls) for turn in turns[since:])
    tools = Toolkit(conversation.tools)
    calls = next_calls(questions, findings, tools, used) if tools else []
    if calls and _ONE_CALL.search(conversation.system):
        calls = calls[:1]
    if calls:
        return Say(_lead(calls, questions, turns, since), calls)
    if not questions:
        text = "Ask me something about the files in this folder."
    else:
        text = compose(questions, findings, brief=brief)
    return Say(f"<finish>{text}</finish>" if "<finish>" in conversation.system else text)


def _turn_start(turns: Sequence[Turn]) -> int:
    """Index of the first message after the last answer: what is open begins there."""
    for index in range(len(turns) - 1, -1, -1):
        if turns[index].role == "assistant" and not turns[index].calls:
            if all(turn.role == "user" and understand(turn.text).instruction for turn in turns[index + 1 :]):
                return _turn_start(turns[:index])  # "shorter, please": the question before is asked again
            return index + 1
    return 0


def _questions(turns: Sequence[Turn], since: int) -> tuple[list[Question], bool]:
    """The open questions, and whether any message asks for a short answer."""
    asked = [understand(turn.text) for turn in turns[since:] if turn.role == "user" and turn.text.strip()]
    return [question for question in asked if not question.instruction], any(question.brief for question in asked)


def _findings(turns: Sequence[Turn]) -> Findings:
    findings = Findings()
    calls: dict[str, Ask] = {}
    for turn in turns:
        calls.update((call.id, call) for call in turn.calls)
        call = calls.get(turn.call_id)
        if turn.role == "tool" and call is not None and (use := use_of(call.name)):
            findings.add(use, call.arguments, turn.text)
    return findings


def _lead(calls: Sequence[Ask], questions: Sequence[Question], turns: Sequence[Turn], since: int) -> str:
    """A sentence on what comes next, as models say before they call tools."""
    uses = {use_of(call.name) for call in calls}
    named = [str(next(iter(call.arguments.values()), "")) for call in calls]
    match next(iter(sorted(use for use in uses if use))):
        case "list":
            text = "I look at which files there are."
        case "search":
            text = f"I search for {' and '.join(f'“{name}”' for name in named)}."
        case "read":
            text = f"I read {' and '.join(f'`{name}`' for name in named)}."
        case _:
            text = f"I count the lines of {' and '.join(f'`{name}`' for name in named)}."
    interrupted = any(turn.role == "assistant" for turn in turns[since:]) and _just_asked(turns)
    return f"There is a further request: “{' '.join(questions[-1].text.split())[:80]}”. {text}" if interrupted else text


def _just_asked(turns: Sequence[Turn]) -> bool:
    """Whether a question has arrived since the model last spoke."""
    for turn in reversed(turns):
        if turn.role == "assistant":
            return False
        if turn.role == "user":
            return not understand(turn.text).instruction
    return False
