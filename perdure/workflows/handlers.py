"""What others say to a run and ask of it: signals, updates and queries. They only append to the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from .. import loop
from ..errors import PerdureError
from ..types.messages import clean
from ..types.state import RunState
from . import host

Answer = TypeVar("Answer")


class Handlers:
    """The handlers of ``AgentWorkflow``. They need no agent code.

    They take any number of arguments, as the workflow's entry does: a wrong number would fail the task for ever.
    """

    def __init__(self) -> None:
        self._state: RunState | None = None
        self._early: list[Callable[[RunState], object]] = []
        self._since: str | None = None
        """When the present step began."""

    @workflow.signal
    def inject_user_message(self, message: Any = None, *_: Any) -> None:
        """A message that joins the conversation at the next iteration: a string, or ``{"content", "id"}``."""
        self._tell(lambda state: loop.receive(state, message))

    @workflow.update
    async def send_message(self, message: Any = None, *_: Any) -> dict[str, Any]:
        """The same from whoever waits for the answer: ``{"task_id"}`` of the turn that the message joins or opens."""
        return {"task_id": await self._answer(lambda state: loop.send(state, message))}

    @send_message.validator
    def _check_message(self, message: Any = None, *_: Any) -> None:
        """A message that is refused here leaves no trace in history."""
        try:
            loop.check_message(self._state, message)
        except PerdureError as error:
            raise as_failure(error) from None

    @workflow.update
    async def decide_approval(self, decision: Any = None, *_: Any) -> dict[str, Any]:
        """Approve or deny a call that waits: ``{"call_id", "decision", "by", "comment", "always", …}``."""
        decided = await self._answer(lambda state: loop.decide_approval(state, decision, host.now()))
        return decided.model_dump(mode="json", exclude_none=True)

    @decide_approval.validator
    def _check_approval(self, decision: Any = None, *_: Any) -> None:
        """One that comes too late, or fits no call, leaves no trace in history."""
        try:
            loop.check_approval(self._state, decision, host.now())
        except PerdureError as error:
            raise as_failure(error) from None

    @workflow.update
    async def revoke_approval(self, which: Any = None, *_: Any) -> dict[str, Any]:
        """Nobody approves every call of a tool any more: ``{"tool", "by"}``. What had stood is in ``revoked``."""
        gone = await self._answer(lambda state: loop.revoke(state, which, host.now()))
        return {"revoked": [one.model_dump(mode="json") for one in gone]}

    @revoke_approval.validator
    def _check_revocation(self, which: Any = None, *_: Any) -> None:
        """One that fits nothing leaves no trace in history."""
        try:
            loop.check_revocation(self._state, which)
        except PerdureError as error:
            raise as_failure(error) from None

    @workflow.update
    async def answer_call(self, answer: Any = None, *_: Any) -> dict[str, Any]:
        """Answer a call that waits for it: ``{"call_id", "value" or "error", "by", "hash"}``."""
        answered = await self._answer(lambda state: loop.answer_call(state, answer, host.now()))
        return answered.model_dump(mode="json", exclude_none=True)

    @answer_call.validator
    def _check_answer(self, answer: Any = None, *_: Any) -> None:
        """One that comes too late, or is none, leaves no trace in history."""
        try:
            loop.check_answer(self._state, answer, host.now())
        except PerdureError as error:
            raise as_failure(error) from None

    @workflow.signal
    def interrupt(self, message: Any = None, *_: Any) -> None:
        """Stop what is in flight. With a message the turn goes on with it, without one it ends."""
        self._tell(lambda state: loop.interrupt(state, message))

    @workflow.signal
    def close(self, *_: Any) -> None:
        """End a session after its current turn."""
        self._tell(loop.close)

    @workflow.signal
    def resume(self, how: Any = None, *_: Any) -> None:
        """The cause of a pause is gone: try the same step again. ``{"limits": {"cost_usd": 5}}`` raises limits."""
        self._tell(lambda state: loop.resume(state, how))

    @workflow.signal
    def child_ended(self, ended: Any = None, *_: Any) -> None:
        """A subagent in background has ended: a ``ChildEnded``. Only what it was given to prove itself counts."""
        self._tell(lambda state: loop.child_ended(state, ended))

    @workflow.signal
    def probe(self, *_: Any) -> None:
        """Somebody looks whether the run is still there: to a closed one, no signal is delivered."""

    @workflow.query
    def status(self, *_: Any) -> dict[str, Any]:
        """What the run is at, or waits for: a ``Status``."""
        return loop.status(self._begun(), self._since).model_dump(mode="json")

    @workflow.query
    def turn(self, task_id: Any = None, *_: Any) -> dict[str, Any]:
        """How a turn stands, and its answer: a ``TurnStatus``. Without a ``task_id`` the present or last turn."""
        asked = task_id if isinstance(task_id, str) else None
        return loop.turn_status(self._begun(), asked).model_dump(mode="json", exclude_none=True)

    def _begun(self) -> RunState:
        if self._state is None:
            raise ApplicationError("the run has not begun", type="RunNotFoundError", non_retryable=True)
        return self._state

    async def _answer(self, asked: Callable[[RunState], Answer]) -> Answer:
        """What ``asked`` answers on the state. Raises what it raises, as it crosses Temporal."""
        given: list[Answer] = []
        refused: list[PerdureError] = []

        def take(state: RunState) -> None:
            try:
                given.append(asked(state))
            except PerdureError as error:
                refused.append(error)

        self._tell(take)
        if not given and not refused:  # the input is not read yet; else a run that ends now would end before this
            await host.wait_condition(lambda: bool(given or refused))
        if refused:
            raise as_failure(refused[0])
        return given[0]

    def _tell(self, told: Callable[[RunState], object]) -> None:
        """They may arrive before the input is read, with signal-with-start for instance."""
        if self._state is None:
            self._early.append(told)
        else:
            told(self._state)

    def _begin(self, state: RunState) -> None:
        """The input is read: what was said before counts now."""
        self._state = state
        for told in self._early:
            told(state)
        self._early.clear()


def as_failure(error: PerdureError) -> ApplicationError:
    """``error`` as it crosses Temporal."""
    return ApplicationError(clean(str(error)), type=type(error).__name__, non_retryable=True)
