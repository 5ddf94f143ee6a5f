"""Events of calls that wait for an answer."""

from __future__ import annotations

from typing import Any, Literal

from .event import Event


class QuestionAsked(Event):
    """A call waits for an answer: its tool asks something, or a client is to run it (``kind="callback"``).

    Of a callback, ``tool.started`` stands before it. Of one that somebody has to approve first it is said then.
    """

    type: Literal["question.asked"] = "question.asked"
    call_id: str
    name: str
    kind: Literal["question", "callback"] = "question"
    question: str = ""
    """What the tool asks."""
    arguments: dict[str, Any] | None = None
    """Of a callback: what it is called with."""
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None takes anything."""
    expires_in: float | None = None
    """Seconds until the call ends as an error; None waits for as long as it takes."""


class QuestionAnswered(Event):
    """A tool's question was answered: said as the tool runs again. Of a callback ``tool.completed`` says it."""

    type: Literal["question.answered"] = "question.answered"
    call_id: str
    name: str
    by: str | None = None
    answered_at: str = ""
    """ISO 8601, UTC."""
    value: Any = None
    """Plain JSON."""
    error: str | None = None
    """Why there is no answer."""
