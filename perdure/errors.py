"""Every error that perdure raises on purpose.

    PerdureError
    ├── DefinitionError (also TypeError)         an agent or tool is defined wrongly; raised where it is defined
    │   └── SettingsError (also ValueError)      a setting that the provider does not have
    ├── InvalidInputError (also ValueError)      a run was started or steered with a badly shaped argument
    │   └── NotWaitingYetError                   the call may come to wait for somebody; retryable
    ├── RunError                                 a run ended without an answer
    │   ├── LimitError
    │   │   ├── MaxIterationsError
    │   │   └── BudgetExceededError
    │   ├── ParseError                           the model never gave valid typed output
    │   ├── HookError                            an author's hook failed
    │   ├── BranchError                          a branch of a step ended without an answer
    │   ├── AbortError                           an author's hook or tool ended the run
    │   ├── RunCancelledError
    │   ├── RunPausedError                       the run waits for an operator; it is not lost
    │   ├── AgentNotFoundError                   no worker on the task queue knows the agent
    │   ├── ToolsetError                         a toolset cannot say which tools it has; retryable
    │   └── AuthContextError                     the run's auth_context was changed, or made for another run
    │       └── AuthContextUnavailableError      it cannot be had for now (a key is missing); retryable
    ├── ToolError                                what a tool's exception becomes for the model
    │   └── QuestionDeclinedError                a person would not answer what the tool asks
    ├── RunNotFoundError · RunExistsError · RunClosedError · RunStuckError
    ├── ScheduleNotFoundError · ScheduleExistsError
    ├── ApprovalPendingError · ApprovalExpiredError · ApprovalDecidedError
    ├── ProviderError                            the model's API; ``retryable`` says whether to try again
    │   ├── AuthenticationError · PermissionDeniedError · ModelNotFoundError · BadRequestError
    │   ├── ContextLengthError · ContentFilterError
    │   └── RateLimitError · OverloadedError · ProviderServerError · ProviderConnectionError
    │       · ProviderTimeoutError · TruncatedStreamError · MalformedReplyError          (all retryable)
    ├── StoreError                               the store cannot be read or written; retryable
    │   ├── MemoryChangedError                   somebody else changed what a call has read and changes
    │   ├── StoreMismatchError                   a store answers, but it is not the run's; retryable
    │   ├── StoreVersionError                    the store's schema is newer than this program
    │   ├── TranscriptCorruptedError             a node is missing or altered; the run pauses
    │   └── TranscriptUnavailableError           the client was given no store
    └── RuntimeSetupError
        ├── ServerNotFoundError · ServerStartError
        ├── ServerUnreachableError (also ConnectionError)
        ├── ThreadsLostError                     authors' functions that never return hold a worker's threads
        └── NoWorkerError                        nobody polls the task queue

An error that crosses Temporal keeps its class: it travels as ``ApplicationError(type=<class name>)`` and
:func:`build_error` finds the class again.
"""

from __future__ import annotations

import math
import sys


class PerdureError(Exception):
    """Base of all errors here. ``hint`` is the way out, where there is one."""

    retryable = False
    """Whether the same attempt may succeed later without anybody changing the request."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class DefinitionError(PerdureError, TypeError):
    """An agent or a tool is defined wrongly."""


class SettingsError(DefinitionError, ValueError):
    """A setting is unknown, or the provider does not have it."""


class InvalidInputError(PerdureError, ValueError):
    """A run was started or steered with an argument of the wrong shape or size."""


class NotWaitingYetError(InvalidInputError):
    """An approval or an answer came before the run has heard that its call waits, if it is ever to wait."""

    retryable = True


class RunError(PerdureError):
    """A run ended without an answer."""


class LimitError(RunError):
    """A limit of the agent was reached."""


class MaxIterationsError(LimitError):
    """The turn used all its iterations and ``on_limit="error"``."""


class BudgetExceededError(LimitError):
    """The run used all its money or tokens."""


class ParseError(RunError):
    """The model never gave output of the asked type."""


class HookError(RunError):
    """An author's hook failed, and was not to be logged only."""


class BranchError(RunError):
    """A branch of a step (``step.branch``) ended without an answer. ``__cause__`` is the error of its run."""


class AbortError(RunError):
    """An author's hook, step policy or tool ended the run on purpose."""

    def plain(self) -> AbortError:
        """Itself, of a subclass of the author's without what only that has: it is told apart by its name."""
        return AbortError(self.message, hint=self.hint)


Abort = AbortError
"""``raise Abort("…")``: as authors write it."""


class ModelRetry(Exception):  # noqa: N818  # it is no error of the run: the model is told, and tries again
    """Raised by an output validator: the model is told why its answer will not do, and is to give another."""


class RunCancelledError(RunError):
    """Somebody cancelled the run."""


class RunPausedError(RunError):
    """The run waits for an operator; nothing is lost, and it goes on after ``resume``."""


class EngineError(RunError):
    """The engine failed unexpectedly. Nothing of the change was kept; the run goes on, or is paused and says so."""


class AgentNotFoundError(RunError):
    """No worker on the task queue knows the agent."""

    retryable = True


class AuthContextError(RunError):
    """The run's ``auth_context`` was changed, or made for another run."""


class AuthContextUnavailableError(AuthContextError):
    """The run's ``auth_context`` cannot be had for now: its key is not here, or nobody can resolve its ``auth_ref``."""

    retryable = True


class ToolsetError(RunError):
    """A toolset could not list its tools: its server is down, for instance."""

    retryable = True


class ToolError(PerdureError):
    """A tool failed; the model is told ``Type: message``."""


class QuestionDeclinedError(ToolError):
    """A person was asked by a tool (``ctx.ask``), and would not or could not answer."""


class RunNotFoundError(PerdureError):
    """There is no run of that id."""


LIST_HINT = "`perdure list` shows the runs there are."
"""The way out of errors about a run that is not found."""


class RunStuckError(PerdureError):
    """The run's workflow task fails again and again; the hint says how to get the run going."""


class RunExistsError(PerdureError):
    """A run of that id exists already."""


class RunClosedError(PerdureError):
    """The run has ended and takes no more messages."""


class ScheduleNotFoundError(PerdureError):
    """No schedule has that id."""


class ScheduleExistsError(PerdureError):
    """A schedule with that id exists."""


class ApprovalPendingError(PerdureError):
    """The run waits for a person's approval or answer; it stays open."""


class ApprovalExpiredError(PerdureError):
    """Nobody decided, or answered, in time."""


class ApprovalDecidedError(PerdureError):
    """Somebody has decided, or answered, already."""


class ProviderError(PerdureError):
    """A model's API failed. ``retry_after`` is in seconds, where the API said it; None for what is not a number from 0
    up. ``Limits(retry_wait=…)`` bounds it."""

    fallback = True
    """Whether the next model of a chain is asked. Not where it would be refused for the same reason."""
    place: str | None = None
    """The part of the request that the API named, in its own words: ``messages.3.content.1.image.source``."""
    refused: frozenset[str] | None = None
    """SHA-256 of each text and file at ``place``; empty where no message is to blame, None where that is not known."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after
        self.status = status

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before the next attempt."""
        return self._retry_after

    @retry_after.setter
    def retry_after(self, value: object) -> None:
        try:
            seconds = float(value)  # type: ignore[arg-type]  # an author's provider may pass on what its API sent
        except OverflowError:
            seconds = sys.float_info.max if value > 0 else -1.0  # type: ignore[operator]  # only a number overflows
        except (TypeError, ValueError):
            seconds = math.nan
        self._retry_after = min(seconds, sys.float_info.max) if seconds >= 0 else None


class AuthenticationError(ProviderError):
    """The API key is missing or wrong."""


class PermissionDeniedError(ProviderError):
    """The key may not do this."""


class ModelNotFoundError(ProviderError):
    """The endpoint has no such model."""


class BadRequestError(ProviderError):
    """The API refuses the request as it stands."""

    fallback = False


class ContextLengthError(BadRequestError):
    """The conversation is longer than the model takes."""

    fallback = True  # another model may take more
    ways: tuple[str, ...] = ()
    """Ways of the agent's (``Agent(compaction=…)``) by which the same call may be made shorter: those that are left."""


class ContentFilterError(ProviderError):
    """The provider's filter refused the request or the reply."""


class RateLimitError(ProviderError):
    """Too many requests or tokens for now."""

    retryable = True


class OverloadedError(ProviderError):
    """The provider is overloaded."""

    retryable = True


class ProviderServerError(ProviderError):
    """The provider failed on its own side."""

    retryable = True


class ProviderConnectionError(ProviderError):
    """The provider cannot be reached."""

    retryable = True


class ProviderTimeoutError(ProviderError):
    """The provider did not answer, or fell silent in the middle of a reply."""

    retryable = True


class TruncatedStreamError(ProviderError):
    """The stream ended before the reply was complete."""

    retryable = True


class MalformedReplyError(ProviderError):
    """The reply is not of the wire format."""

    retryable = True


class StoreError(PerdureError):
    """The store cannot be read or written for now (locked, full, read-only, unreachable)."""

    retryable = True


class MemoryChangedError(StoreError):
    """Somebody else has changed what a call has read and changes: the call runs once more, on what is there now."""

    retryable = False


class StoreMismatchError(StoreError):
    """A store answers, but it is not the one that holds this run."""


class StoreVersionError(StoreError):
    """The store's schema is newer than this program."""

    retryable = False


class TranscriptCorruptedError(StoreError):
    """A node or blob of the transcript is missing from the right store, or its bytes were changed."""

    retryable = False


class TranscriptUnavailableError(StoreError):
    """This client has no store, so it cannot read transcripts."""

    retryable = False


class RuntimeSetupError(PerdureError):
    """What a run needs to run is not there."""


class ServerNotFoundError(RuntimeSetupError):
    """The Temporal dev server could not be found or fetched."""


class ServerStartError(RuntimeSetupError):
    """The Temporal dev server does not start."""


class ServerUnreachableError(RuntimeSetupError, ConnectionError):
    """No Temporal server answers at the address."""


class ThreadsLostError(RuntimeSetupError):
    """Too many abandoned functions still run in a worker's threads, so it has stopped. Raised by ``Worker.run``."""


class NoWorkerError(RuntimeSetupError):
    """No worker polls the task queue."""


def _collect_error_classes(root: type[PerdureError]) -> dict[str, type[PerdureError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _collect_error_classes(child)
    return found


def build_error(name: str | None, message: str, hint: str | None = None) -> PerdureError:
    """The error of class ``name`` again, as it was before it crossed Temporal; ``RunError`` for a stranger."""
    cls = _collect_error_classes(PerdureError).get(name or "")
    if cls is None:
        return RunError(f"{name}: {message}" if name else message, hint=hint)
    return cls(message, hint=hint)
