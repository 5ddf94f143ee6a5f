"""Every error that perdure raises on purpose.

    PerdureError
    ├── DefinitionError (also TypeError)         an agent or tool is defined wrongly; raised where it is defined
    │   └── SettingsError (also ValueError)      a setting that the provider does not have
    ├── InvalidInputError (also ValueError)      a run was started or steered with an invalid argument
    │   ├── NotWaitingYetError                   the call does not wait for it yet; retryable
    │   └── NewerStateError                      a newer engine wrote the run's state; retryable
    ├── RetryLaterError                          a call has not failed, and is to be made again later; retryable
    ├── RunError                                 a run ended without an answer
    │   ├── LimitError
    │   │   ├── MaxIterationsError
    │   │   └── BudgetExceededError
    │   ├── ParseError                           the model gave no valid typed output
    │   ├── OutputLimitError                     the output limit cut the model's replies, again and again
    │   ├── HookError                            an author's hook failed
    │   ├── BranchError                          a branch of a step ended without an answer
    │   ├── AbortError                           an author's hook or tool ended the run
    │   ├── RunCancelledError
    │   ├── EngineError                          the engine failed unexpectedly
    │   ├── AgentNotFoundError                   no worker on the task queue has the agent; retryable
    │   ├── ToolsetError                         a toolset cannot list its tools; retryable
    │   └── AuthContextError                     the run's auth_context was changed, or made for another run
    │       └── AuthContextUnavailableError      it is not available now (a key is missing); retryable
    ├── ToolError                                what a tool's exception becomes for the model
    │   └── QuestionDeclinedError                the question of a tool was declined
    ├── RunExistsError
    │   └── RunIdError                           the id cannot be that of a new run
    ├── RunNotFoundError · RunOpenError · RunClosedError · RunStuckError
    ├── ScheduleNotFoundError · ScheduleExistsError · WebhookNotFoundError · BulkActionNotFoundError
    ├── ApprovalPendingError · ApprovalExpiredError · ApprovalDecidedError
    ├── ApprovalForbiddenError (also PermissionError)    who requested a call cannot approve it
    ├── ProviderError                            the model's API; ``retryable`` says whether to try again
    │   ├── AuthenticationError · PermissionDeniedError · ModelNotFoundError · BadRequestError
    │   ├── ContextLengthError · ContentFilterError
    │   └── RateLimitError · OverloadedError · ProviderServerError · ProviderConnectionError
    │       · ProviderTimeoutError · TruncatedStreamError · MalformedReplyError
    │       · ModelSlipError                                            (all retryable)
    ├── StoreError                               the store cannot be read or written; retryable
    │   ├── MemoryChangedError                   another call changed values that a call has read and changes
    │   ├── StoreMismatchError                   a store answers, but it is not the run's; retryable
    │   ├── StoreLocationError (also RuntimeSetupError)      the store's URL names no store
    │   ├── StoreVersionError                    the store's schema does not fit this program
    │   ├── TranscriptCorruptedError             a node is missing or altered; the run pauses
    │   └── TranscriptUnavailableError           the client was given no store
    └── RuntimeSetupError
        ├── MissingExtraError                    an extra of perdure is not installed
        ├── ServerNotFoundError · ServerStartError
        ├── ServerUnreachableError (also ConnectionError)
        ├── ThreadsLostError                     authors' functions that never return hold a worker's threads
        └── NoWorkerError                        no worker polls the task queue
            └── RunNotReadyError                 Temporal holds requests back from the run for the moment; retryable

An error that crosses Temporal keeps its class: it travels as ``ApplicationError(type=<class name>)``, and
:func:`build_error` restores the class.
"""

from __future__ import annotations

import math
import re
import sys

_COMMAND = re.compile(r"(?:^|: )(?:\S*/)?(?:pip|pipx|uv|make|export|perdure|temporal) .*$")
"""A command at the end of a text."""


def end_sentence(text: str) -> str:
    """Return ``text`` with a full stop, unless it ends as a sentence does, or with a command to be copied."""
    text = text.rstrip()
    is_whole = (
        not text or text.rstrip("\"'`)\u201d").endswith((".", "!", "?", "…")) or _COMMAND.search(text) is not None
    )
    return text if is_whole else f"{text}."


def join_sentences(*texts: str | None) -> str:
    """Join texts, such as an error and its hint, into one line of sentences. All that is shown of both in one place
    comes from here, or from ``str(error)``, which has them in two lines."""
    return " ".join(end_sentence(text) for text in texts if text and text.strip())


class PerdureError(Exception):
    """Base class of all errors of perdure. ``hint`` is the way out, if there is one."""

    retryable = False
    """Whether the same request may succeed later, unchanged."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{end_sentence(self.message)}\n{end_sentence(self.hint)}" if self.hint else self.message


class DefinitionError(PerdureError, TypeError):
    """An agent or a tool is defined wrongly."""


class SettingsError(DefinitionError, ValueError):
    """A setting is unknown, or the provider does not have it."""


class InvalidInputError(PerdureError, ValueError):
    """An argument of a start or of a later request has a wrong shape or size."""


class NotWaitingYetError(InvalidInputError):
    """An approval or an answer arrived before the run knows that its call waits, if it ever will."""

    retryable = True


class NewerStateError(InvalidInputError):
    """A newer engine wrote the state of the run, or the input of a call. Workers of the newer engine can continue the
    run; this one cannot."""

    retryable = True


class RetryLaterError(PerdureError):
    """A call has not failed, and is to be made again in ``seconds``: a rate is used up, for instance. It counts as no
    attempt, and there is no ``error`` event and no ``on_error`` hook of it. Nothing bounds how often it is made again,
    and each time is an attempt of Temporal's: less than 0.1 s counts as that. A provider of your own may raise it."""

    retryable = True

    def __init__(self, message: str, *, seconds: float = 1.0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class RunError(PerdureError):
    """A run ended without an answer."""


class LimitError(RunError):
    """A limit of the agent was reached."""


class MaxIterationsError(LimitError):
    """The turn used all its iterations, and ``on_limit`` is ``"error"``."""


class BudgetExceededError(LimitError):
    """The run used all its money or tokens."""


class LoopBlockedError(RunError):
    """A call has blocked the event loop of its worker for longer than its heartbeat timeout, twice: each time the
    worker, with all its runs, was taken for lost. The message names the function."""


class ParseError(RunError):
    """The model gave no valid value of the output type."""


class OutputLimitError(RunError):
    """The output limit (``max_tokens``) cut the model's replies several times in a row, and none had an answer."""


class HookError(RunError):
    """An author's hook failed, and ``on_error`` is not ``"log"``."""


class BranchError(RunError):
    """A branch of a step (``step.branch``) ended without an answer. ``__cause__`` is the error of its run."""


class AbortError(RunError):
    """An author's hook, step policy or tool ended the run on purpose."""

    def plain(self) -> AbortError:
        """Convert an author's subclass into an ``AbortError``: errors are identified by class name."""
        return AbortError(self.message, hint=self.hint)


Abort = AbortError
"""The name for authors: ``raise Abort("…")``."""


class ModelRetry(Exception):  # noqa: N818  # not an error of the run: the model tries again
    """Raised by an output validator: the message goes to the model, which answers again."""


class RunCancelledError(RunError):
    """The run was cancelled."""


class EngineError(RunError):
    """The engine failed unexpectedly. The change was dropped; the run continues, or is paused with the reason."""


class AgentNotFoundError(RunError):
    """No worker on the task queue has the agent."""

    retryable = True


class AuthContextError(RunError):
    """The run's ``auth_context`` was changed, or made for another run."""


class AuthContextUnavailableError(AuthContextError):
    """The run's ``auth_context`` is not available now: its key is missing, or no worker can resolve its
    ``auth_ref``."""

    retryable = True


class ToolsetError(RunError):
    """A toolset could not list its tools: its server is down, for instance."""

    retryable = True


class ToolError(PerdureError):
    """A tool failed; the model gets ``Type: message``."""


class QuestionDeclinedError(ToolError):
    """The question of a tool (``ctx.ask``) was declined."""


class RunNotFoundError(PerdureError):
    """No run has that id."""


LIST_HINT = "`perdure list` shows all runs."
"""Hint of errors about a run that is not found."""


class RunStuckError(PerdureError):
    """The run cannot continue by itself: its workflow task fails repeatedly, or it paused at a failure. The hint says
    how to repair it."""


class RunExistsError(PerdureError):
    """A run with that id exists."""


class RunIdError(RunExistsError):
    """The id cannot be that of a new run: it is malformed, reserved, deleted, or taken by a run that the caller may not
    see. One text for all causes."""


class RunOpenError(PerdureError):
    """The run, or one below it, has not ended, so it cannot be deleted."""


class RunClosedError(PerdureError):
    """The run has ended and accepts no more messages."""


class ScheduleNotFoundError(PerdureError):
    """No schedule has that id."""


class ScheduleExistsError(PerdureError):
    """A schedule with that id exists."""


class WebhookNotFoundError(PerdureError):
    """No webhook, or no delivery of one, has that id."""


class BulkActionNotFoundError(PerdureError):
    """No bulk action has that id, or it ended more than 30 days ago."""


class ApprovalPendingError(PerdureError):
    """The run waits for an approval or an answer; it stays open."""


class ApprovalExpiredError(PerdureError):
    """The request expired before a decision or an answer."""


class ApprovalDecidedError(PerdureError):
    """The call was already decided or answered."""


class ApprovalForbiddenError(PerdureError, PermissionError):
    """The call needs an approver other than its requester (``Approval(separate=True)``), and this one requested it."""


class ProviderError(PerdureError):
    """A model's API failed. ``retry_after`` is in seconds, if the API gave it; None for anything but a number from 0
    up. ``Limits(retry_wait=…)`` bounds it."""

    fallback = True
    """Whether the next model of a chain is called; false if it would be refused for the same reason."""
    place: str | None = None
    """The part of the request that the API named, in its own terms: ``messages.3.content.1.image.source``."""
    refused: frozenset[str] | None = None
    """SHA-256 of each text and file at ``place``; empty if no message is the cause, None if the cause is unknown."""
    requests = 1
    """How many requests the attempt sent: all count towards ``Limits(attempts=…)`` and ``provider_limits``."""

    def __init__(
        self, message: str, *, hint: str | None = None, retry_after: float | None = None, status: int | None = None
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
    """The key has no permission for this request."""


class ModelNotFoundError(ProviderError):
    """The endpoint has no such model."""


class BadRequestError(ProviderError):
    """The API refuses the request."""

    fallback = False


class ContextLengthError(BadRequestError):
    """The conversation is longer than the model accepts."""

    fallback = True  # another model may accept more
    ways: tuple[str, ...] = ()
    """The remaining compactions of the agent (``Agent(compaction=…)``) that can shorten the same call."""


class ContentFilterError(ProviderError):
    """The provider's filter refused the request or the reply."""


class RateLimitError(ProviderError):
    """Too many requests or tokens at present."""

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
    """The provider did not answer, or stopped sending in the middle of a reply."""

    retryable = True


class TruncatedStreamError(ProviderError):
    """The stream ended before the reply was complete."""

    retryable = True


class MalformedReplyError(ProviderError):
    """The reply does not have the wire format."""

    retryable = True


class ModelSlipError(MalformedReplyError):
    """The model wrote what its server cannot read, as a tool call that is no JSON. The next attempts tell it so; after
    five the run fails."""


class StoreError(PerdureError):
    """The store cannot be read or written at present (locked, full, read-only, unreachable)."""

    retryable = True
    away = False
    """The store does not answer for now, as while it is restarted: a worker that starts waits for it. False where its
    URL, its login or its schema may be wrong."""


class MemoryChangedError(StoreError):
    """Another call has changed values that this call has read and changes: the call runs again with the new values."""

    retryable = False


class StoreMismatchError(StoreError):
    """A store answers, but it is not the store of this run."""


class StoreVersionError(StoreError):
    """The store's schema is newer than this program can use, or older, and cannot be upgraded here."""

    retryable = False


class TranscriptCorruptedError(StoreError):
    """A node or blob of the transcript is missing from the right store, or its bytes were changed."""

    retryable = False


class TranscriptUnavailableError(StoreError):
    """This client has no store, so it cannot read transcripts."""

    retryable = False


class RuntimeSetupError(PerdureError):
    """Something that a run needs is missing."""


class MissingExtraError(RuntimeSetupError):
    """A package is missing that an extra of perdure brings. ``hint`` has the command that installs it for this copy."""

    extras: tuple[str, ...] = ()
    """The names of the extras."""


class StoreLocationError(StoreError, RuntimeSetupError):
    """The store's URL names no store that this perdure can use."""

    retryable = False


class ServerNotFoundError(RuntimeSetupError):
    """The Temporal dev server could not be found or fetched."""


class ServerStartError(RuntimeSetupError):
    """The Temporal dev server does not start."""


class ServerUnreachableError(RuntimeSetupError, ConnectionError):
    """No Temporal server answers at the address."""

    away = False
    """The server may be back in a moment: a worker that starts waits for it. False where its address may be wrong."""


class ThreadsLostError(RuntimeSetupError):
    """Too many abandoned functions still run in a worker's threads, so it has stopped. Raised by ``Worker.run``."""


class NoWorkerError(RuntimeSetupError):
    """No worker polls the task queue."""


class RunNotReadyError(NoWorkerError):
    """Temporal holds requests back from the run for the moment: its workflow task has failed or timed out three times,
    or too many requests wait for it. Says nothing of the run, and the same request may succeed in a moment."""

    retryable = True


def _find_error_class(name: str) -> type[PerdureError] | None:
    """Find the error class of that name; one of this module is not hidden by another of its name."""
    own = globals().get(name)
    if isinstance(own, type) and issubclass(own, PerdureError):
        return own
    return _find_subclass(PerdureError, name)


def _find_subclass(root: type[PerdureError], name: str) -> type[PerdureError] | None:
    for child in root.__subclasses__():
        if (found := child if child.__name__ == name else _find_subclass(child, name)) is not None:
            return found
    return None


def build_error(name: str | None, message: str, hint: str | None = None) -> PerdureError:
    """Restore the error of class ``name`` that crossed Temporal; ``RunError`` for an unknown class."""
    cls = _find_error_class(name or "")
    if cls is None:
        return RunError(f"{name}: {message}" if name else message, hint=hint)
    return cls(message, hint=hint)
