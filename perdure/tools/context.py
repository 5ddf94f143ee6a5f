"""What a tool, a prompt or a hook is told of the run that it works for."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Generic, cast, overload

from typing_extensions import TypeVar

from perdure.tools.asking import Questions, check_async
from perdure.tools.auth import AuthContext
from perdure.tools.memory import Memory
from perdure.tools.result import json_text
from perdure.types.messages import clean
from perdure.types.plain import flaw

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


def _no_heartbeat(*details: Any) -> None:
    """Outside an activity (an inline tool, a unit test) nobody waits for a heartbeat."""


def _no_progress(message: str, data: Any) -> None:
    """Nobody follows."""


def _not_cancelled() -> bool:
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
        heartbeat: Callable[..., None] = _no_heartbeat,
        cancelled: Callable[[], bool] = _not_cancelled,
        progress: Callable[[str, Any], None] = _no_progress,
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
        plain = json.loads(json_text(data))
        if why := flaw(plain):
            raise ValueError(f"progress: data must be plain JSON: {why}")
        self._progress(clean(str(message)), plain)

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
        check_async("ask")
        return _given(self.questions.ask(question, schema, expires))

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


async def _given(answer: Any) -> Any:
    return answer
