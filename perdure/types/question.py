"""Questions as they travel: what a tool asks of a person, or hands over to a client, and what somebody answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from .elsewhere import Around
from .messages import CALL_ID_CHARS, BlobRef, Data
from .plain import Json

QUESTION_CHARS = 4000
"""Of what a tool asks."""
FORM_BYTES = 16 * 1024
"""Of the JSON Schema of an answer."""
ANSWER_BYTES = 64 * 1024
"""Of an answer to a tool's question, as JSON: every later run of the call is given it."""
ANSWERS_BYTES = 256 * 1024
"""Of all answers that one call was given."""
QUESTIONS = 100
"""That one call may ask."""
ERROR_CHARS = 2000
"""Of what somebody says who does not answer."""


class Question(Data):
    """What a tool asks (``ctx.ask``)."""

    text: str
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None takes anything."""
    expires: float | None = None
    """Seconds; None waits for as long as it takes."""


class Answer(Data):
    """What somebody has answered a tool."""

    value: Any = None
    """Plain JSON."""
    error: str | None = None
    """Why there is no answer."""
    by: str | None = None
    at: str = ""
    """ISO 8601, UTC."""


class AsCallback(Data):
    """The call is handed to a client, which answers it."""

    kind: Literal["callback"] = "callback"
    form: dict[str, Any] | None = None
    """JSON Schema of the result; None takes anything."""
    expires: float | None = None
    """Seconds, from when nothing stands between the call and its answer any more."""
    on_expiry: str | None = None
    """What the model is told then."""
    around: Around = Around()


class CallAnswer(Data):
    """The argument of the update ``answer_call``: one of ``value``, ``error`` and ``blob``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_id: str = Field(min_length=1, max_length=CALL_ID_CHARS)
    value: Json = None
    """Plain JSON; null is an answer too."""
    error: str | None = Field(default=None, max_length=ERROR_CHARS)
    """Why there is no answer."""
    blob: BlobRef | None = None
    """Where a long text is that perdure's client has put into the store ``store_id``."""
    store_id: str | None = Field(default=None, max_length=100)
    by: str | None = Field(default=None, max_length=200)
    """Who answers, as the sender says."""
    hash: str | None = Field(default=None, max_length=100)
    """The ``hash`` of what was looked at, as ``status`` has it: refused if the call asks something else now. Without
    one, what the call asks first is answered: so whoever repeats himself does not answer the next question."""

    @model_validator(mode="before")
    @classmethod
    def _one(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping):
            given = ["value" in raw, raw.get("error") is not None, raw.get("blob") is not None]
            if sum(given) != 1:
                raise PydanticCustomError("one_answer", "an answer has either a value or an error")
        return raw
