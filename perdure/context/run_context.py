"""The contexts of author code: ``RunContext``, ``ToolContext`` with its questions (``ctx.ask``), the auth context."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, cast, overload

from pydantic import ValidationError
from pydantic_core import to_jsonable_python
from typing_extensions import ParamSpec, TypeVar

from ..errors import QuestionDeclinedError
from ..types.approvals import Consent
from ..types.json_schema import build_form, build_type_adapter, explain_validation_error
from ..types.limits import parse_seconds
from ..types.messages import clean_text
from ..types.plain_json import dump_json_value, find_json_flaw
from ..types.tool_calls import QUESTION_CHARS, Question, ToolAnswer
from .auth import AuthContext
from .memory import Memory

if TYPE_CHECKING:
    from ..ports.grants import GrantAccess

# ---
# ``ctx.ask``: a tool's questions to a person.
#
# A tool cannot hold a worker's slot for a month. So a question ends the tool's run and the call waits. After the answer
# the tool runs again from its start, and ``ask`` returns the answer.


class QuestionSuspension(BaseException):  # not an Exception: handlers of errors must not catch it
    """Leaves the tool, past every ``except Exception``. The call runs again when the question is answered."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"asks: {question.text}")
        self.question = question


class Questions:
    """The answers that one run of a call has, and its open question. Safe from every thread."""

    def __init__(self, answers: Iterable[Any] = ()) -> None:
        """``answers`` in order: each a ``ToolAnswer``, or its value."""
        self._answers = iter(
            [
                answer
                if isinstance(answer, ToolAnswer)
                else ToolAnswer(value=to_jsonable_python(answer, by_alias=True))
                for answer in answers
            ]
        )
        self._lock = threading.Lock()
        self.open_question: Question | None = None
        """The first question without an answer. Kept here too: a tool may swallow any exception."""

    def ask(self, text: str, schema: Any, expires: float | str | timedelta | None) -> Any:
        """Return the next answer that fits ``schema``. Raises ``QuestionSuspension`` if there is none,
        ``QuestionDeclinedError`` if a person declined to answer, ``ValueError`` and ``TypeError`` for an invalid
        question."""
        text = _validate_question_text(text)
        expires = None if expires is None else parse_seconds(expires)
        question = Question(text=text, form=build_form(schema), expires=expires)
        adapter = None if schema is None or isinstance(schema, Mapping) else build_type_adapter(schema)
        while (answer := self._take_answer()) is not None:
            if answer.error is not None:
                person = answer.by or "the approver"
                raise QuestionDeclinedError(f"{person} did not answer {text[:200]!r}: {answer.error}")
            try:
                return answer.value if adapter is None else adapter.validate_json(json.dumps(answer.value))
            except ValidationError as error:
                problem = explain_validation_error(error, "The answer before does not fit:", ())
                question = question.model_copy(update={"text": f"{text}\n{problem}"[: 2 * QUESTION_CHARS]})
        with self._lock:
            self.open_question = self.open_question or question
        raise QuestionSuspension(question)

    def ask_for_consent(self, text: str, consent: Consent) -> NoReturn:
        """Ask a person to sign in: the call runs again after the answer, and asks again as long as consent lacks.

        Raises ``QuestionSuspension``, or ``QuestionDeclinedError`` if the last answer was no or an error.
        """
        last: ToolAnswer | None = None
        while (answer := self._take_answer()) is not None:
            last = answer
        if last is not None and (last.error is not None or last.value is False):
            person = last.by or "the approver"
            raise QuestionDeclinedError(f"{person} did not sign in: {last.error or 'the answer was no'}")
        form = {"type": "boolean", "title": "Signed in"}
        question = Question(text=clean_text(text)[:QUESTION_CHARS], form=form, consent=consent)
        with self._lock:
            self.open_question = self.open_question or question
        raise QuestionSuspension(question)

    def _take_answer(self) -> ToolAnswer | None:
        with self._lock:
            return next(self._answers, None)


def _validate_question_text(text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TypeError(f"a question is a text, not {text!r:.100}")
    if len(text) > QUESTION_CHARS:
        raise ValueError(f"the question has {len(text):,} characters; most is {QUESTION_CHARS:,}")
    return clean_text(text)


# With a default, a bare `ctx: ToolContext` is complete under mypy --strict. In typing from Python 3.13 only.
ContextT = TypeVar("ContextT", default=Any)
ContextT_co = TypeVar("ContextT_co", default=Any, covariant=True)
ContextT_contra = TypeVar("ContextT_contra", default=Any, contravariant=True)
AnswerT = TypeVar("AnswerT")


class RunContext(Generic[ContextT_co]):
    """Facts of the run. The engine makes it; ``RunContext[UserContext]`` types ``context``.

    A test makes one by hand, with what the function under test reads: ``RunContext(context=…, resources=…)``.
    """

    def __init__(
        self,
        *,
        run_id: str = "run",
        task_id: str = "turn",
        agent: str = "agent",
        iteration: int = 1,
        context: ContextT_co | None = None,
        auth_context: Mapping[str, Any] | None = None,
        resources: Any = None,
        memory: Memory | None = None,
        caller: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
    ) -> None:
        self.run_id = run_id
        """Id of the conversation: the workflow id."""
        self.task_id = task_id
        """Id of the turn."""
        self.agent = agent
        """Name of the agent."""
        self.iteration = iteration
        """Model calls of this turn so far, this one included."""
        self.context = cast(ContextT_co, context)  # None only where the agent declares no context
        """The author's own data of the run: of the agent's ``context`` type, a dictionary where it declares none."""
        self.auth_context = None if auth_context is None else AuthContext(auth_context)
        """Credentials for which the run acts, if it was started with an ``auth_context`` or ``auth_ref``: plain JSON
        that is in no history, transcript or event. Else None; also None in hooks at the end of a run."""
        self.resources = resources
        """What the worker's ``lifespan`` yields (pools, clients); None without one."""
        self.caller = caller
        """Who has sent the message that the run works on, as the service has authenticated it: over HTTP the caller's
        name, from a program what it says (``by``). The last sender's where several write to one run; in a subagent that
        of the run above it. None where it is not known."""
        self.tenant = tenant
        """The tenant whose run it is; None for a run without one."""
        self.user = user
        """The user whose run it is: over HTTP its first caller, unless one that may says another."""
        self.grant_access: GrantAccess | None = None
        """The grants of MCP servers: for the engine."""
        self.memory = Memory(tenant=tenant) if memory is None else memory
        """Values that all conversations of the tenant share. A context made by hand, for tests, has a memory of its
        own."""

    @property
    def shared_memory(self) -> Memory:
        """Values that the conversations of all tenants share: what one writes, all others read."""
        return self.memory.shared

    def __repr__(self) -> str:
        facts = f"run_id={self.run_id!r}, agent={self.agent!r}, iteration={self.iteration}"
        return f"{type(self).__name__}({facts})"


def _discard(*_: Any) -> None:
    """Ignore a heartbeat or progress: outside an activity (an inline tool, a unit test) nothing receives them."""


def _is_never_cancelled() -> bool:
    return False


class ToolContext(RunContext[ContextT_co]):
    """Facts of the run and of this tool call. Safe to use from any thread. A test may make one by hand."""

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
        context: ContextT_co | None = None,
        auth_context: Mapping[str, Any] | None = None,
        resources: Any = None,
        memory: Memory | None = None,
        caller: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        heartbeat: Callable[..., None] = _discard,
        cancelled: Callable[[], bool] = _is_never_cancelled,
        progress: Callable[[str, Any], None] = _discard,
        answers: Iterable[Any] = (),
    ) -> None:
        """``heartbeat``, ``cancelled`` and ``progress`` (given a text and plain JSON) are called on the tool's thread:
        all must be thread-safe. :meth:`ask` returns ``answers``, one after the other."""
        super().__init__(
            run_id=run_id,
            task_id=task_id,
            agent=agent,
            iteration=iteration,
            context=context,
            auth_context=auth_context,
            resources=resources,
            memory=memory,
            caller=caller,
            tenant=tenant,
            user=user,
        )
        self.call_id = call_id
        """Id of the call in the transcript."""
        self.attempt = attempt
        """1 for the first attempt of this call."""
        self.idempotency_key = idempotency_key
        """The same for every attempt of this call, unique to the call: pass it to the API that acts."""
        self._heartbeat = heartbeat
        self._cancelled = cancelled
        self._progress = progress
        self.questions = Questions(answers)
        """Questions and answers so far: for the engine."""

    def heartbeat(self, *details: Any) -> None:
        """Report that the call is alive. ``details`` are plain data, which Temporal shows while the call runs."""
        self._heartbeat(*details)

    def progress(self, message: str, data: Any = None) -> None:
        """Report progress to the clients that follow the run, as an event ``tool.progress``. Inline tools may, too.

        Call it as often as you like: the latest is written a few times a second, and nothing waits for it. ``data`` is
        JSON, a dataclass or a pydantic model. Raises ``ValueError`` for other data, or more than 32 KiB.
        """
        plain = json.loads(dump_json_value(data))
        if why := find_json_flaw(plain):
            raise ValueError(f"progress: data must be plain JSON: {why}")
        self._progress(clean_text(str(message)), plain)

    @property
    def cancelled(self) -> bool:
        """Whether the call is to stop. A long sync tool checks this; an async one is cancelled anyway."""
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
        """Ask a person, and continue with the answer: ``amount = await ctx.ask("How much?", float)``.

        The run of the tool ends here; the call waits in the inbox (``client.approvals()``), without a worker's slot
        and for months if need be. After the answer the tool **runs again from its start**, and this call returns the
        answer, as earlier questions return theirs, in order. Code before a question runs again: put effects after it.

        ``schema`` is a type that pydantic can take, and the answer is a value of it; if an answer does not fit, the
        question is asked again. With a JSON Schema or None the answer is plain JSON. ``expires`` is in seconds, or text
        like ``"7d"``; a call that expires ends as an error. Raises ``QuestionDeclinedError`` if the person declines to
        answer. A plain ``def`` tool uses :attr:`blocking`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # the awaitable would never be awaited
            raise RuntimeError("ctx.ask in a plain function: write ctx.blocking.ask(…) there") from None
        return _return_answer(self.questions.ask(question, schema, expires))

    @property
    def blocking(self) -> BlockingContext:
        """The same for plain ``def`` tools, not async."""
        return BlockingContext(self.questions)


class BlockingContext:
    """The async methods of :class:`ToolContext` for plain ``def`` tools: ``ctx.blocking.ask("How much?", float)``."""

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


# ---
# Functions that take a context, for type checkers: the type of the context, and what calls of the function take.
#
# The first overload is the function as it is, the second says where its context stands: a function that fits has both.
# A context further back than the fourth place, or under a keyword alone, is checked where the agent is defined.


P = ParamSpec("P", default=...)
ReturnT = TypeVar("ReturnT", default=Any)
ReturnT_co = TypeVar("ReturnT_co", default=Any, covariant=True)


class TakesContextFirst(Protocol[P, ReturnT_co, ContextT_contra]):
    """A function whose first argument is a context."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT_co: ...
    @overload
    def __call__(self, ctx: ToolContext[ContextT_contra], /, *args: Any, **kwargs: Any) -> Any: ...


class TakesContextSecond(Protocol[P, ReturnT_co, ContextT_contra]):
    """A function whose second argument is a context."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT_co: ...
    @overload
    def __call__(self, _1: Any, ctx: ToolContext[ContextT_contra], /, *args: Any, **kwargs: Any) -> Any: ...


class TakesContextThird(Protocol[P, ReturnT_co, ContextT_contra]):
    """A function whose third argument is a context."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT_co: ...
    @overload
    def __call__(self, _1: Any, _2: Any, ctx: ToolContext[ContextT_contra], /, *args: Any, **kwargs: Any) -> Any: ...


class TakesContextFourth(Protocol[P, ReturnT_co, ContextT_contra]):
    """A function whose fourth argument is a context."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT_co: ...
    @overload
    def __call__(
        self, _1: Any, _2: Any, _3: Any, ctx: ToolContext[ContextT_contra], /, *args: Any, **kwargs: Any
    ) -> Any: ...
