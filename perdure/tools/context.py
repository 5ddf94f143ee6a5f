"""What a tool, a prompt or a hook is told of the run that it works for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, cast, overload

from pydantic import ValidationError
from pydantic_core import to_jsonable_python
from typing_extensions import TypeVar

from ..errors import QuestionDeclinedError
from ..types.limits import parse_seconds
from ..types.messages import clean_text
from ..types.plain_json import find_json_flaw
from ..types.tool_calls import QUESTION_CHARS, Question, ToolAnswer
from .json_schema import build_form, build_type_adapter, explain_validation_error
from .memory import Memory
from .results import dump_result_json

# ---
# ``ctx.ask``: what a tool asks of a person, and what it was answered.
#
# A tool cannot hold a worker's slot for a month. So the question ends its run: the call waits, and when somebody has
# answered, the tool is run again from its start, and ``ask`` returns what was answered.


class QuestionSuspension(BaseException):  # it is no error, and no handler of errors is to catch it
    """Leaves the tool, past every ``except Exception``. The call is run again when the question was answered."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"asks: {question.text}")
        self.question = question


class Questions:
    """Of one run of a call: the answers that there are, and what is asked beyond them. Safe from every thread."""

    def __init__(self, answers: Iterable[Any] = ()) -> None:
        """``answers`` in order: each an ``ToolAnswer``, or its value."""
        self._answers = [
            one if isinstance(one, ToolAnswer) else ToolAnswer(value=to_jsonable_python(one, by_alias=True))
            for one in answers
        ]
        self._next_index = 0
        self._lock = threading.Lock()
        self.open_question: Question | None = None
        """What was asked and has no answer. Kept here too: a tool may swallow whatever leaves it."""

    def ask(self, text: str, schema: Any, expires: float | str | timedelta | None) -> Any:
        """The next answer that fits ``schema``. Raises ``QuestionSuspension`` where there is none,
        ``QuestionDeclinedError`` where somebody would not answer, ``ValueError`` and ``TypeError`` for what cannot be
        asked."""
        question = Question(
            text=_validate_question_text(text),
            form=build_form(schema),
            expires=None if expires is None else parse_seconds(expires),
        )
        read = _build_answer_reader(schema)
        while (answer := self._take_answer()) is not None:
            if answer.error is not None:
                who = answer.by or "somebody"
                raise QuestionDeclinedError(f"{who} did not answer {question.text[:200]!r}: {answer.error}")
            try:
                return read(answer.value)
            except ValidationError as error:
                said = explain_validation_error(error, "The answer before does not fit:", ())
                question = question.model_copy(
                    update={"text": f"{_validate_question_text(text)}\n{said}"[: 2 * QUESTION_CHARS]}
                )
        with self._lock:
            self.open_question = self.open_question or question
        raise QuestionSuspension(question)

    def _take_answer(self) -> ToolAnswer | None:
        with self._lock:
            if self._next_index >= len(self._answers):
                return None
            self._next_index += 1
            return self._answers[self._next_index - 1]


def check_running_loop(verb: str) -> None:
    """Raise ``RuntimeError`` on a thread without a running event loop: nobody would await what is returned."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(f"ctx.{verb} in a plain function: write ctx.blocking.{verb}(…) there") from None


def _build_answer_reader(schema: Any) -> Callable[[Any], Any]:
    if schema is None or isinstance(schema, Mapping):
        return lambda value: value
    adapter = build_type_adapter(schema)
    return lambda value: adapter.validate_json(json.dumps(value))


def _validate_question_text(text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TypeError(f"a question is a text, not {text!r:.100}")
    if len(text) > QUESTION_CHARS:
        raise ValueError(f"the question has {len(text):,} characters; most is {QUESTION_CHARS:,}")
    return clean_text(text)


# ---
# ``ctx.auth_context``: on whose behalf a run acts.


class AuthContext(Mapping[str, Any]):
    """Plain JSON by names, to be read: ``ctx.auth_context["token"]``. What it says of itself are the names alone, so
    that a log line or a traceback gives nothing away.
    """

    __slots__ = ("_given",)

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._given = dict(given or {})

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        return f"<auth_context of {', '.join(map(str, self._given)) or 'nobody'}>"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Whose ``auth_ref`` is to be resolved."""

    run_id: str
    """Id of the conversation: the workflow id."""
    task_id: str
    """Id of the turn."""
    agent: str
    """Name of the agent."""
    context: Mapping[str, Any] | None = None
    """The author's own data of the run, as plain JSON."""
    resources: Any = None
    """What the worker's ``lifespan`` yields."""


AuthFunction = Callable[[str, RunFacts], Awaitable[Mapping[str, Any]] | Mapping[str, Any]]
"""``async def resolve(ref, run): return {"token": …}``; also a plain function."""


# With a default, a bare `ctx: ToolContext` is complete under mypy --strict. In typing from Python 3.13 only.
ContextT = TypeVar("ContextT", default=Any)
AnswerT = TypeVar("AnswerT")


class RunContext(Generic[ContextT]):
    """Facts of the run. The engine makes it; ``RunContext[UserContext]`` types ``context``.

    A test makes one by hand, with what the function under test looks at: ``RunContext(context=…, resources=…)``.
    """

    def __init__(
        self,
        *,
        run_id: str = "run",
        task_id: str = "turn",
        agent: str = "agent",
        iteration: int = 1,
        context: ContextT | None = None,
        auth_context: Mapping[str, Any] | None = None,
        resources: Any = None,
        memory: Memory | None = None,
    ) -> None:
        self.run_id = run_id
        """Id of the conversation: the workflow id."""
        self.task_id = task_id
        """Id of the turn."""
        self.agent = agent
        """Name of the agent."""
        self.iteration = iteration
        """Model calls of this turn so far, this one included."""
        self.context = cast(ContextT, context)  # None only where the agent declares no context
        """The author's own data of the run: of the agent's ``context`` type, a dictionary where it declares none."""
        self.auth_context = None if auth_context is None else AuthContext(auth_context)
        """On whose behalf the run acts, where it was started with an ``auth_context`` or ``auth_ref``: plain JSON that
        is in no history, transcript or event. None else, and in hooks at the end of a run."""
        self.resources = resources
        """What the worker's ``lifespan`` yields (pools, clients); None without one."""
        self.memory = Memory() if memory is None else memory
        """What conversations share. One that is made by hand has a memory of its own, for tests."""

    def __repr__(self) -> str:
        facts = f"run_id={self.run_id!r}, agent={self.agent!r}, iteration={self.iteration}"
        return f"{type(self).__name__}({facts})"


def _discard_heartbeat(*details: Any) -> None:
    """Outside an activity (an inline tool, a unit test) nobody waits for a heartbeat."""


def _discard_progress(message: str, data: Any) -> None:
    """Nobody follows."""


def _is_never_cancelled() -> bool:
    return False


class ToolContext(RunContext[ContextT]):
    """Facts of the run and of this tool call. Safe to use from any thread. A test makes one by hand as it likes."""

    def __init__(
        self,
        *,
        run_id: str = "run",
        task_id: str = "turn",
        agent: str = "agent",
        call_id: str = "call",
        idempotency_key: str = "key",
        attempt: int = 1,
        iteration: int = 1,
        context: ContextT | None = None,
        auth_context: Mapping[str, Any] | None = None,
        resources: Any = None,
        memory: Memory | None = None,
        heartbeat: Callable[..., None] = _discard_heartbeat,
        cancelled: Callable[[], bool] = _is_never_cancelled,
        progress: Callable[[str, Any], None] = _discard_progress,
        answers: Iterable[Any] = (),
    ) -> None:
        """``heartbeat``, ``cancelled`` and ``progress`` (given a text and plain JSON) are called on the tool's thread:
        all must be thread-safe. ``answers`` are what :meth:`ask` returns, one after the other."""
        super().__init__(
            run_id=run_id,
            task_id=task_id,
            agent=agent,
            iteration=iteration,
            context=context,
            auth_context=auth_context,
            resources=resources,
            memory=memory,
        )
        self.call_id = call_id
        """Id that the model's call has in the transcript."""
        self.attempt = attempt
        """1 for the first attempt of this call."""
        self.idempotency_key = idempotency_key
        """The same for every attempt of this call, and of no other call: hand it to the API that acts."""
        self._heartbeat = heartbeat
        self._cancelled = cancelled
        self._progress = progress
        self.questions = Questions(answers)
        """What was asked and answered so far: for the engine."""

    def heartbeat(self, *details: Any) -> None:
        """Say that the call is alive. ``details`` are plain data, shown by Temporal while the call is under way."""
        self._heartbeat(*details)

    def progress(self, message: str, data: Any = None) -> None:
        """Tell whoever follows the run how far this is, as an event ``tool.progress``: also an inline tool may.

        As often as you like: the latest is written a few times a second, and nothing waits for it. ``data`` is
        anything that is JSON, a dataclass or a pydantic model. Raises ``ValueError`` for what is not, or is too large
        (32 KiB).
        """
        plain = json.loads(dump_result_json(data))
        if why := find_json_flaw(plain):
            raise ValueError(f"progress: data must be plain JSON: {why}")
        self._progress(clean_text(str(message)), plain)

    @property
    def cancelled(self) -> bool:
        """Whether the call is to stop. A long sync tool looks here; an async one is cancelled anyway."""
        return self._cancelled()

    @overload
    def ask(
        self, question: str, schema: type[AnswerT], *, expires: float | str | timedelta | None = None
    ) -> Awaitable[AnswerT]: ...
    @overload
    def ask(
        self, question: str, schema: Any = None, *, expires: float | str | timedelta | None = None
    ) -> Awaitable[Any]: ...
    def ask(
        self, question: str, schema: Any = None, *, expires: float | str | timedelta | None = None
    ) -> Awaitable[Any]:
        """Ask a person, and go on with the answer: ``amount = await ctx.ask("How much?", float)``.

        The run of the tool ends here; the call waits in the inbox (``client.approvals()``), without a worker's slot
        and for months if need be. When somebody has answered, the tool is **run again from its start**, and this
        returns the answer; so do earlier questions, in order. What stands before a question runs again: put effects
        behind it.

        ``schema`` is a type that pydantic can take, and the answer is one of it; for one that does not fit, it is asked
        again. Or a JSON Schema, or None: then the answer is plain JSON. ``expires`` is in seconds, or text like
        ``"7d"``: then the call ends as an error. Raises ``QuestionDeclinedError`` where somebody would not answer. A
        plain ``def`` tool uses :attr:`blocking`.
        """
        check_running_loop("ask")
        return _return_answer(self.questions.ask(question, schema, expires))

    @property
    def blocking(self) -> BlockingContext:
        """The same for plain ``def`` tools: nothing is awaited."""
        return BlockingContext(self.questions)


class BlockingContext:
    """What of :class:`ToolContext` is awaited, for plain ``def`` tools: ``ctx.blocking.ask("How much?", float)``."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    @overload
    def ask(
        self, question: str, schema: type[AnswerT], *, expires: float | str | timedelta | None = None
    ) -> AnswerT: ...
    @overload
    def ask(self, question: str, schema: Any = None, *, expires: float | str | timedelta | None = None) -> Any: ...
    def ask(self, question: str, schema: Any = None, *, expires: float | str | timedelta | None = None) -> Any:
        """See :meth:`ToolContext.ask`."""
        return self._questions.ask(question, schema, expires)


async def _return_answer(answer: Any) -> Any:
    return answer
