"""What Temporal's refusals and failures mean for a run."""

from __future__ import annotations

from temporalio import exceptions as temporal
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from .errors import (
    InvalidInputError,
    PerdureError,
    RunCancelledError,
    RunClosedError,
    RunError,
    RunNotFoundError,
    RuntimeSetupError,
    ServerUnreachableError,
    from_type,
)


def translated(temporal: TemporalClient, id: str, error: RPCError) -> PerdureError:
    """What Temporal's refusal means for run ``id``."""
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
        return unreachable(temporal, error.message)
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return InvalidInputError(f"Temporal refuses run {id!r:.100}: {error.message}")
    if error.status != RPCStatusCode.NOT_FOUND:
        return RunError(f"Temporal refused: {error.message}")
    if "amespace" in error.message:
        return RuntimeSetupError(
            f"Temporal: {error.message}", hint="Create the namespace, or name another one: TEMPORAL_NAMESPACE."
        )
    if "already completed" in error.message or "closing workflow" in error.message:  # an update in that very moment
        return closed_error(id)
    return RunNotFoundError(f"there is no run {id!r}", hint="`perdure list` shows the runs there are.")


def unreachable(temporal: TemporalClient, why: str) -> ServerUnreachableError:
    """The server does not answer."""
    return ServerUnreachableError(
        f"the Temporal server at {temporal.service_client.config.target_host} does not answer: {why}",
        hint="Runs are kept there and go on when the server is back.",
    )


def closed_error(id: str) -> RunClosedError:
    """The run is over."""
    return RunClosedError(
        f"run {id!r} has ended", hint="Send it a message and it goes on from where it ended; or start another one."
    )


def run_error(id: str, error: WorkflowFailureError) -> PerdureError:
    """The error that the run ended with."""
    cause = error.cause
    if isinstance(cause, temporal.ApplicationError):
        return from_type(cause.type, cause.message)
    if isinstance(cause, temporal.CancelledError):
        return RunCancelledError(f"run {id!r} was cancelled")
    if isinstance(cause, temporal.TerminatedError):
        return RunCancelledError(f"run {id!r} was terminated: {cause.message}")
    if isinstance(cause, temporal.TimeoutError):
        return RunError(f"run {id!r} ran into its workflow timeout")
    return RunError(f"run {id!r} failed: {cause}")
