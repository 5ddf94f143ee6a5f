"""The signals, updates and queries of a run. They only change the state, and need no agent code.

Whatever their argument, they raise only Temporal's own exceptions: any other would fail the workflow task again and
again. The reason why a signal was refused is in ``status.refused``; that of an update is its error.
"""

from __future__ import annotations

import asyncio
import inspect
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ..errors import EngineError, InvalidInputError, PerdureError
from ..loop import approvals
from ..loop.background import apply_child_ended
from ..loop.decide import NextStep
from ..loop.lifecycle import close_run, request_interrupt, request_pause, resume_run
from ..loop.messages import accept_message, check_message, receive_message, record_refusal
from ..loop.status import build_status
from ..loop.turns import build_turn_status, is_turn_running
from ..types.interface import READ_ERROR_TYPE
from ..types.messages import NAME_CHARS, clean_text
from ..types.state import RunState
from .guard import Guard
from .host import TaskProgress, expose_state, get_host, outlive_cancellation

UpdateResult = TypeVar("UpdateResult")
ASKER_CHARS = 100

WAIT_SECONDS = 20
"""How long ``wait_for_turn`` waits: as long as Temporal's server keeps a request for the result of an update open."""
MAX_WAITS = 3
"""``wait_for_turn`` at once: Temporal lets a run have ten updates in flight, and messages and decisions need some."""
MAX_WAITS_OF_EXECUTION = 500
"""``wait_for_turn`` in one execution, of the 2,000 updates that Temporal lets it have."""
WAIT_REFUSED_TYPE = "TooManyWaits"
"""Type of the error of a ``wait_for_turn`` too many."""
Handler = TypeVar("Handler", bound=Callable[..., Any])


def accept_raw_argument(handler: Handler) -> Handler:
    """Have Temporal pass the argument undecoded, so that ``handler`` refuses one that cannot be decoded.

    ``handler`` must take any number of arguments: Temporal calls it with a wrong number, too.
    """
    argument = inspect.Parameter("argument", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=RawValue)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    handler.__signature__ = inspect.Signature([itself, argument])  # type: ignore[attr-defined]  # read by Temporal
    handler.__annotations__ = {"argument": RawValue}
    return handler


def decode_argument(argument: Any) -> Any:
    """Decode the JSON value of an argument. Raises ``InvalidInputError`` if the data converter cannot decode it."""
    if not isinstance(argument, RawValue):
        return argument
    try:
        return workflow.payload_converter().from_payload(argument.payload)
    except Exception as error:
        raise InvalidInputError(
            f"the argument cannot be decoded: {type(error).__name__}: {error}",
            hint="Send plain JSON, with the data converter that the workers have.",
        ) from None


class WorkflowHandlers:
    """The handlers of ``AgentWorkflow``."""

    def __init__(self) -> None:
        self._state: RunState | None = None
        self._guard = Guard()
        self._queued_changes: list[Callable[[RunState], None]] = []
        """Signals and updates that came before the input was read, as with signal-with-start."""
        self._step: NextStep | None = None
        """The present step."""
        self._step_started_at: str | None = None
        """When the present step began."""
        self._progress = TaskProgress()
        self._open_waits = self._accepted_waits = 0
        """Clients that wait for a turn now, and that have done so in this execution."""
        self._is_ending_execution = False
        """Whether the execution ends, or continues as new, as soon as no client waits."""

    @workflow.signal
    @accept_raw_argument
    def inject_user_message(self, message: Any = None, *_: Any) -> None:
        """Add a message, which joins the conversation at the next iteration: a string, or ``{"content", "id"}``."""
        self._apply_signal("inject_user_message", receive_message, message)

    @workflow.update
    @accept_raw_argument
    async def send_message(self, message: Any = None, *_: Any) -> dict[str, Any]:
        """Add a message as an update, for a client that waits for the answer.

        Returns the ``{"task_id"}`` of the turn that it joins or opens.
        """
        return {"task_id": await self._apply_update("send_message", accept_message, message)}

    @send_message.validator
    @accept_raw_argument
    def _check_message(self, message: Any = None, *_: Any) -> None:
        """Refuse an invalid message; a refused update adds nothing to history."""
        _run_validator(check_message, self._state, message)

    @workflow.update
    @accept_raw_argument
    async def decide_approval(self, decision: Any = None, *_: Any) -> dict[str, Any]:
        """Approve or deny a call that waits: ``{"call_id", "decision", "by", "comment", "always", …}``."""
        decided = await self._apply_update("decide_approval", approvals.decide_approval, decision, get_host().now())
        return decided.model_dump(mode="json", exclude_none=True)

    @decide_approval.validator
    @accept_raw_argument
    def _check_approval(self, decision: Any = None, *_: Any) -> None:
        """Refuse a decision that comes too late or fits no call; a refused update adds nothing to history."""
        _run_validator(approvals.check_approval, self._state, decision, get_host().now())

    @workflow.update
    @accept_raw_argument
    async def revoke_approval(self, revocation: Any = None, *_: Any) -> dict[str, Any]:
        """Revoke the standing approvals of a tool: ``{"tool", "by"}``. Returns those revoked as ``{"revoked"}``."""
        change, now = approvals.revoke_standing_approval, get_host().now()
        revoked = await self._apply_update("revoke_approval", change, revocation, now)
        return {"revoked": [approval.model_dump(mode="json") for approval in revoked]}

    @revoke_approval.validator
    @accept_raw_argument
    def _check_revocation(self, revocation: Any = None, *_: Any) -> None:
        """Refuse a revocation that fits no standing approval; a refused update adds nothing to history."""
        _run_validator(approvals.check_revocation, self._state, revocation)

    @workflow.update
    @accept_raw_argument
    async def answer_call(self, answer: Any = None, *_: Any) -> dict[str, Any]:
        """Answer a call that waits for it: ``{"call_id", "value" or "error", "by", "hash"}``."""
        answered = await self._apply_update("answer_call", approvals.answer_call, answer, get_host().now())
        return answered.model_dump(mode="json", exclude_none=True)

    @answer_call.validator
    @accept_raw_argument
    def _check_answer(self, answer: Any = None, *_: Any) -> None:
        """Refuse an answer that is invalid or comes too late; a refused update adds nothing to history."""
        _run_validator(approvals.check_answer, self._state, answer, get_host().now())

    @workflow.signal
    @accept_raw_argument
    def interrupt(self, message: Any = None, *_: Any) -> None:
        """Stop what is in flight. With a message the turn goes on with it; without one the turn ends."""
        self._apply_signal("interrupt", request_interrupt, message)

    @workflow.signal
    @accept_raw_argument
    def close(self, *_: Any) -> None:
        """End a session after its current turn."""
        self._apply_signal("close", close_run)

    @workflow.signal
    @accept_raw_argument
    def resume(self, limits: Any = None, *_: Any) -> None:
        """Resume a paused run with the same step. ``{"limits": {"cost_usd": 5}}`` raises limits."""
        self._apply_signal("resume", resume_run, limits, get_host().now())

    @workflow.signal
    @accept_raw_argument
    def pause(self, request: Any = None, *_: Any) -> None:
        """Pause the run until ``resume``, once what is in flight has ended: ``{"by", "reason"}``."""
        self._apply_signal("pause", request_pause, request, get_host().now())

    @workflow.signal
    @accept_raw_argument
    def child_ended(self, ended: Any = None, *_: Any) -> None:
        """Receive the end of a subagent in background: a ``ChildEnding``, refused unless it has the child's scope."""
        self._apply_signal("child_ended", apply_child_ended, ended)

    @workflow.signal
    @accept_raw_argument
    def probe(self, *_: Any) -> None:
        """Show the sender that the run is open: a signal to a closed run fails."""
        self._progress.record_received()

    @workflow.update
    @accept_raw_argument
    async def read(self, view: Any = None, *_: Any) -> None:
        """Never accepted: the validator's error has the answer in its details. See :meth:`_answer_read`."""

    @read.validator
    @accept_raw_argument
    def _answer_read(self, view: Any = None, *_: Any) -> None:
        """Refuse ``{"view": "status" or "turn", "task_id", "asker"}`` with the query's result: ``{"answer", "asker"}``.

        A refused update adds nothing to history, and always comes with a workflow task, which a query need not: see
        docs/decisions/025-queries.md.
        """
        value = decode_argument(view)
        request = value if isinstance(value, dict) else {}
        answer = self.turn(request.get("task_id")) if request.get("view") == "turn" else self.status()
        asker = request.get("asker")
        details = {"answer": answer, "asker": asker if isinstance(asker, str) and len(asker) <= ASKER_CHARS else None}
        raise ApplicationError("the answer is in the details", details, type=READ_ERROR_TYPE, non_retryable=True)

    @workflow.update
    @accept_raw_argument
    async def wait_for_turn(self, wanted: Any = None, *_: Any) -> dict[str, Any]:
        """Wait up to ``WAIT_SECONDS`` until a turn has ended: ``{"task_id"}``, or that text; by default the present or
        last turn. Returns its ``TurnStatus``, also if it is still ``running``. Changes nothing in the run."""
        self._open_waits += 1
        self._accepted_waits += 1
        try:
            with translate_input_errors("the turn"):
                if self._state is None:  # with update-with-start
                    await get_host().wait_condition(lambda: self._state is not None)
                state = self._require_state()
                task_id = _read_task_id(decode_argument(wanted)) or (state.turn.task_id if state.turn else "")
                if self._is_wait_open(state, task_id):
                    with suppress(TimeoutError), outlive_cancellation():
                        await get_host().wait_condition(
                            lambda: not self._is_wait_open(state, task_id),
                            timeout=WAIT_SECONDS,
                            timeout_summary="a client waits for the turn",
                        )
                return build_turn_status(state, task_id or None).model_dump(mode="json", exclude_none=True)
        finally:
            self._open_waits -= 1

    def _is_wait_open(self, state: RunState, task_id: str) -> bool:
        return is_turn_running(state, task_id) and not self._is_ending_execution

    async def _end_waits(self) -> None:
        """Have the clients that wait for a turn answered, before the execution ends."""
        self._is_ending_execution = True
        if self._open_waits:
            with suppress(asyncio.CancelledError):
                await get_host().wait_condition(lambda: not self._open_waits)

    @wait_for_turn.validator
    @accept_raw_argument
    def _check_wait(self, wanted: Any = None, *_: Any) -> None:
        """Refuse an invalid argument, and a wait above the limits; a refused update adds nothing to history."""
        with translate_input_errors("the argument"):
            _read_task_id(decode_argument(wanted))
        if self._open_waits >= MAX_WAITS or self._accepted_waits >= MAX_WAITS_OF_EXECUTION:
            raise ApplicationError(
                f"{self._open_waits} clients wait for turns of this run now, and {self._accepted_waits} have since it "
                f"last continued as new; {MAX_WAITS} and {MAX_WAITS_OF_EXECUTION} may. Wait a second, then read the "
                'turn with the update "read", {"view": "turn"}, which is not limited.',
                type=WAIT_REFUSED_TYPE,
                non_retryable=True,
            )

    @workflow.query
    @accept_raw_argument
    def status(self, *_: Any) -> dict[str, Any]:
        """Return what the run does or waits for: a ``Status``."""
        return build_status(self._require_state(), self._step_started_at, self._step).model_dump(mode="json")

    @workflow.query
    @accept_raw_argument
    def turn(self, task_id: Any = None, *_: Any) -> dict[str, Any]:
        """Return the state and answer of a turn: a ``TurnStatus``. Without ``task_id``, the present or last turn."""
        value = decode_argument(task_id)
        wanted_id = value if isinstance(value, str) else None
        return build_turn_status(self._require_state(), wanted_id).model_dump(mode="json", exclude_none=True)

    def _require_state(self) -> RunState:
        if self._state is None:
            raise ApplicationError("the run has not begun", type="RunNotFoundError", non_retryable=True)
        return self._state

    def _apply_signal(self, name: str, change: Callable[..., object], *arguments: Any) -> None:
        """Make the change of a signal; a signal has no reply, so an error is recorded in ``status.refused``."""

        def apply(state: RunState) -> None:
            try:
                self._change_state(state, f"signal {name}", change, arguments)
            except EngineError as error:
                record_refusal(state, error.message)
            except PerdureError as error:
                record_refusal(state, f"{name}: {error.message}")

        self._apply_or_queue(apply)
        self._progress.record_received()

    async def _apply_update(self, name: str, change: Callable[..., UpdateResult], *arguments: Any) -> UpdateResult:
        """Apply ``change`` to the state and return its result. Raises its ``PerdureError`` as ``ApplicationError``."""
        results: list[UpdateResult] = []
        refusals: list[ApplicationError] = []

        def apply(state: RunState) -> None:
            try:
                results.append(self._change_state(state, f"update {name}", change, arguments))
            except PerdureError as error:
                refusals.append(build_application_error(error))

        self._apply_or_queue(apply)
        # Wait only if the input is not read yet: else a run that ends in this task would end before the update.
        if not results and not refusals:
            await get_host().wait_condition(lambda: bool(results or refusals))
        if refusals:
            raise refusals[0]
        return results[0]

    def _change_state(
        self, state: RunState, what: str, change: Callable[..., UpdateResult], arguments: tuple[Any, ...]
    ) -> UpdateResult:
        return self._guard.change_or_raise(
            state, what, lambda: change(state, *map(decode_argument, arguments)), PerdureError
        )

    def _apply_or_queue(self, change: Callable[[RunState], None]) -> None:
        if self._state is None:
            self._queued_changes.append(change)
        else:
            change(self._state)

    def _set_state(self, state: RunState) -> None:
        """Set the state once the input is read, and apply the signals and updates that came before."""
        self._state = state
        expose_state(state)
        for change in self._queued_changes:
            change(state)
        self._queued_changes.clear()


def _read_task_id(value: Any) -> str | None:
    """Read the argument of ``wait_for_turn``. Raises ``InvalidInputError``, also for what is larger than any id: the
    result repeats the id, and one that is too large for Temporal would fail the workflow task again and again."""
    task_id = value.get("task_id") if isinstance(value, dict) and value.keys() <= {"task_id"} else value
    if task_id is None or (isinstance(task_id, str) and len(task_id) <= NAME_CHARS):
        return task_id or None
    raise InvalidInputError(
        f"the turn must be named by its task_id, a text of up to {NAME_CHARS} characters, not {reprlib.repr(task_id)}",
        hint='Send {"task_id": "…"}, or nothing for the present turn.',
    )


def build_application_error(error: PerdureError) -> ApplicationError:
    """Convert ``error`` into a non-retryable ``ApplicationError``; its type is the class name."""
    return ApplicationError(clean_text(str(error)), type=type(error).__name__, non_retryable=True)


@contextmanager
def translate_input_errors(subject: str) -> Iterator[None]:
    """Convert every error in the block to a non-retryable ``ApplicationError``. An unexpected error is reported as an
    invalid ``subject``."""
    try:
        yield
    except PerdureError as error:
        raise build_application_error(error) from None
    except Exception as error:
        unread = InvalidInputError(f"{subject} cannot be read: {type(error).__name__}: {error}")
        raise build_application_error(unread) from None


def _run_validator(check: Callable[..., object], state: RunState | None, *arguments: Any) -> None:
    with translate_input_errors("the argument"):
        check(state, *map(decode_argument, arguments))
