"""``ctx.ask``: what a tool asks of a person, and what it was answered.

A tool cannot hold a worker's slot for a month. So the question ends its run: the call waits, and when somebody has
answered, the tool is run again from its start, and ``ask`` returns what was answered.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from perdure.errors import QuestionDeclinedError
from perdure.tools.form import adapter_of, form_of
from perdure.tools.schema import explained
from perdure.types.duration import seconds
from perdure.types.messages import clean
from perdure.types.question import QUESTION_CHARS, Answer, Question


class Asking(BaseException):  # it is no error, and no handler of errors is to catch it
    """Leaves the tool, past every ``except Exception``. The call is run again when the question was answered."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"asks: {question.text}")
        self.question = question


class Questions:
    """Of one run of a call: the answers that there are, and what is asked beyond them. Safe from every thread."""

    def __init__(self, answers: Iterable[Any] = ()) -> None:
        """``answers`` in order: each an ``Answer``, or its value."""
        self._answers = [
            one if isinstance(one, Answer) else Answer(value=to_jsonable_python(one, by_alias=True)) for one in answers
        ]
        self._next = 0
        self._lock = threading.Lock()
        self.open: Question | None = None
        """What was asked and has no answer. Kept here too: a tool may swallow whatever leaves it."""

    def ask(self, text: str, schema: Any, expires: float | str | timedelta | None) -> Any:
        """The next answer that fits ``schema``. Raises ``Asking`` where there is none, ``QuestionDeclinedError`` where
        somebody would not answer, ``ValueError`` and ``TypeError`` for what cannot be asked."""
        question = Question(
            text=_checked(text), form=form_of(schema), expires=None if expires is None else seconds(expires)
        )
        read = _reader(schema)
        while (answer := self._taken()) is not None:
            if answer.error is not None:
                who = answer.by or "somebody"
                raise QuestionDeclinedError(f"{who} did not answer {question.text[:200]!r}: {answer.error}")
            try:
                return read(answer.value)
            except ValidationError as error:
                said = explained(error, "The answer before does not fit:", ())
                question = question.model_copy(update={"text": f"{_checked(text)}\n{said}"[: 2 * QUESTION_CHARS]})
        with self._lock:
            self.open = self.open or question
        raise Asking(question)

    def _taken(self) -> Answer | None:
        with self._lock:
            if self._next >= len(self._answers):
                return None
            self._next += 1
            return self._answers[self._next - 1]


def check_async(verb: str) -> None:
    """Raise ``RuntimeError`` on a thread without a running event loop: nobody would await what is returned."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(f"ctx.{verb} in a plain function: write ctx.blocking.{verb}(…) there") from None


def _reader(schema: Any) -> Callable[[Any], Any]:
    if schema is None or isinstance(schema, Mapping):
        return lambda value: value
    adapter = adapter_of(schema)
    return lambda value: adapter.validate_json(json.dumps(value))


def _checked(text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TypeError(f"a question is a text, not {text!r:.100}")
    if len(text) > QUESTION_CHARS:
        raise ValueError(f"the question has {len(text):,} characters; most is {QUESTION_CHARS:,}")
    return clean(text)
