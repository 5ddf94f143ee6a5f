"""Translates the errors of a Temporal service, each by one table: :data:`REFUSALS`.

Temporal's server gives a status and a text, and the text is all that tells some cases apart. The table is total over
the statuses; its texts are those of go.temporal.io/server v1.29.1: `service/history/consts/const.go`,
`service/history/api/updateworkflow/api.go` and `service/history/workflow/update`.
"""

from __future__ import annotations

from enum import Enum, auto

from temporalio import exceptions as temporal
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from ..errors import (
    LIST_HINT,
    InvalidInputError,
    PerdureError,
    RunCancelledError,
    RunClosedError,
    RunError,
    RunNotFoundError,
    RunNotReadyError,
    RuntimeSetupError,
    ServerUnreachableError,
    build_error,
)

ACCEPTED_UPDATE_ENDED = "AcceptedUpdateCompletedWorkflow"
"""Temporal's error type for an update that a workflow accepted, and then ended without completing it."""
DENIED_STATUSES = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED)
"""Statuses of a server whose operator service is not open to every client: Temporal Cloud's, for instance."""


class Refusal(Enum):
    """What an error of Temporal says."""

    NO_ANSWER = auto()
    """Nothing of the request or the run: the same request may succeed in a moment."""
    NOT_READY = auto()
    """The run is open, and takes no request of this kind for the moment."""
    CLOSED = auto()
    """The run has ended."""
    NOT_FOUND = auto()
    """There is no such run."""
    NO_NAMESPACE = auto()
    """The server does not have the namespace."""
    INVALID = auto()
    """The request is wrong."""
    SETUP = auto()
    """This client, or this server, is not set up for the request."""
    REFUSED = auto()
    """Anything else: Temporal's text is all there is."""


_Status = RPCStatusCode
REFUSALS: tuple[tuple[RPCStatusCode, str, Refusal], ...] = (
    # A workflow task that has failed or timed out three times, or failed with the update in it; one that the server has
    # not scheduled yet; a run that has used up the updates of an execution, and continues as new: ``WorkflowNotReady``.
    (_Status.FAILED_PRECONDITION, "active in cluster", Refusal.NO_ANSWER),  # a namespace that fails over
    (_Status.FAILED_PRECONDITION, "amespace", Refusal.SETUP),  # it is being deleted
    (_Status.FAILED_PRECONDITION, "version", Refusal.SETUP),  # of this client, or of the server
    (_Status.FAILED_PRECONDITION, "", Refusal.NOT_READY),
    # ``BUSY_WORKFLOW``, ``CONCURRENT_LIMIT``: too many updates or queries wait for one run, or it continues as new.
    (_Status.RESOURCE_EXHAUSTED, "orkflow", Refusal.NOT_READY),
    (_Status.RESOURCE_EXHAUSTED, "in-flight updates", Refusal.NOT_READY),
    (_Status.RESOURCE_EXHAUSTED, "query buffer", Refusal.NOT_READY),
    (_Status.RESOURCE_EXHAUSTED, "", Refusal.NO_ANSWER),  # limits of the namespace or the server
    (_Status.UNAVAILABLE, "workflow update was aborted", Refusal.NOT_READY),  # the server lost what it had of the run
    (_Status.UNAVAILABLE, "Workflow task state is inconsistent", Refusal.NOT_READY),
    (_Status.UNAVAILABLE, "", Refusal.NO_ANSWER),  # also a namespace in handover
    (_Status.NOT_FOUND, "amespace", Refusal.NO_NAMESPACE),
    (_Status.NOT_FOUND, "already completed", Refusal.CLOSED),
    (_Status.NOT_FOUND, "closing workflow", Refusal.CLOSED),  # an update at that moment
    (_Status.NOT_FOUND, "stale reference", Refusal.NOT_READY),
    (_Status.NOT_FOUND, "", Refusal.NOT_FOUND),
    (_Status.DEADLINE_EXCEEDED, "", Refusal.NO_ANSWER),
    (_Status.CANCELLED, "", Refusal.NO_ANSWER),
    (_Status.UNKNOWN, "", Refusal.NO_ANSWER),  # a connection that broke under the request: the frontend was killed
    (_Status.INTERNAL, "", Refusal.NO_ANSWER),
    (_Status.ABORTED, "", Refusal.NO_ANSWER),
    (_Status.INVALID_ARGUMENT, "", Refusal.INVALID),
    (_Status.PERMISSION_DENIED, "", Refusal.SETUP),
    (_Status.UNAUTHENTICATED, "", Refusal.SETUP),
    (_Status.UNIMPLEMENTED, "", Refusal.REFUSED),  # an older server, or a proxy that does not pass it on
    (_Status.ALREADY_EXISTS, "", Refusal.REFUSED),
    (_Status.OUT_OF_RANGE, "", Refusal.REFUSED),
    (_Status.DATA_LOSS, "", Refusal.REFUSED),
)
"""Status, a part of the text, and what they say; the first row that fits counts."""


def classify_rpc_error(error: RPCError) -> Refusal:
    """Return what ``error`` says, by :data:`REFUSALS`."""
    for status, text, refusal in REFUSALS:
        if error.status == status and text in error.message:
            return refusal
    return Refusal.REFUSED  # a status that gRPC has not had so far


def translate_rpc_error(temporal: TemporalClient, id: str, error: RPCError) -> PerdureError:
    """Translate Temporal's refusal for run ``id``."""
    match classify_rpc_error(error):
        case Refusal.INVALID:
            return InvalidInputError(f"Temporal refuses run {id!r:.100}: {error.message}")
        case Refusal.CLOSED:
            return build_closed_error(id)
        case Refusal.NOT_FOUND:
            return RunNotFoundError(f"there is no run {id!r}", hint=LIST_HINT)
        case Refusal.NOT_READY:
            return build_not_ready_error(id, error.message)
        case _:
            return translate_service_error(temporal, error)


def translate_service_error(temporal: TemporalClient, error: RPCError) -> PerdureError:
    """Translate Temporal's refusal of a request that is not about one run."""
    match classify_rpc_error(error):
        case Refusal.NO_ANSWER | Refusal.NOT_READY:
            return build_unreachable_error(temporal, error.message)
        case Refusal.NO_NAMESPACE:
            return build_namespace_error(temporal.namespace)
        case Refusal.INVALID:
            return InvalidInputError(f"Temporal refuses the request: {error.message}")
        case Refusal.SETUP:
            return RuntimeSetupError(
                f"Temporal refused: {error.message}", hint="Check the namespace and the credentials of this client."
            )
        case Refusal.CLOSED | Refusal.NOT_FOUND | Refusal.REFUSED:
            return RunError(f"Temporal refused: {error.message}")


def build_namespace_error(namespace: str) -> RuntimeSetupError:
    """Build the error for a namespace that the server does not have."""
    return RuntimeSetupError(
        f"there is no namespace {namespace!r} on this Temporal server",
        hint="Name another one (TEMPORAL_NAMESPACE), or create it: `perdure server setup --create -n NAME`.",
    )


def build_unreachable_error(temporal: TemporalClient, why: str) -> ServerUnreachableError:
    """Build the error for a server that does not answer."""
    return ServerUnreachableError(
        f"the Temporal server at {temporal.service_client.config.target_host} does not answer: {why}",
        hint="Its runs are stored, and continue when the server is back.",
    )


def build_not_ready_error(id: str, why: str) -> RunNotReadyError:
    """Build the error for a run that takes no requests for the moment."""
    return RunNotReadyError(
        f"run {id!r} takes no requests at present: {why}",
        hint="Its worker stands still, or its workflow task fails: send the request again; `perdure show` says more.",
    )


def build_closed_error(id: str) -> RunClosedError:
    """Build the error for a run that has ended."""
    return RunClosedError(
        f"run {id!r} has ended", hint="Send it a message, and it continues from its end; or start another run."
    )


def build_run_error(id: str, error: WorkflowFailureError) -> PerdureError:
    """Build the error with which the run ended."""
    cause = error.cause
    if isinstance(cause, temporal.ApplicationError):
        return build_error(cause.type, cause.message)
    if isinstance(cause, temporal.CancelledError):
        return RunCancelledError(f"run {id!r} was cancelled")
    if isinstance(cause, temporal.TerminatedError):
        return RunCancelledError(f"run {id!r} was terminated: {cause.message}")
    if isinstance(cause, temporal.TimeoutError):
        return RunError(f"run {id!r} reached its workflow timeout")
    return RunError(f"run {id!r} failed: {cause}")


def build_update_error(id: str, error: WorkflowUpdateFailedError) -> PerdureError:
    """Build the error with which the run refused, or failed, an update."""
    kind = error.cause.type if isinstance(error.cause, temporal.ApplicationError) else None
    if kind == ACCEPTED_UPDATE_ENDED:
        return build_closed_error(id)
    return build_error(kind, getattr(error.cause, "message", str(error.cause)))


def is_denied(error: RPCError) -> bool:
    """Whether the server does not allow this client a request, or does not have it."""
    return error.status in DENIED_STATUSES


def is_missing_attribute(error: RPCError) -> bool:
    """Whether the server refuses a start, or a query, because a search attribute is missing."""
    return error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message
