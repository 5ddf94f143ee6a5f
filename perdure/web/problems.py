"""Errors as RFC 9457 problem details: ``application/problem+json`` with perdure's error name, and no internals."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ..errors import (
    AgentNotFoundError,
    ApprovalDecidedError,
    ApprovalExpiredError,
    ApprovalForbiddenError,
    ApprovalPendingError,
    AuthContextError,
    AuthContextUnavailableError,
    BulkActionNotFoundError,
    DefinitionError,
    InvalidInputError,
    NotWaitingYetError,
    NoWorkerError,
    PerdureError,
    ProviderError,
    RunClosedError,
    RunError,
    RunExistsError,
    RunNotFoundError,
    RunNotReadyError,
    RunOpenError,
    RunStuckError,
    RuntimeSetupError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    StoreError,
    TranscriptCorruptedError,
    WebhookNotFoundError,
    end_sentence,
)
from ..ports.tokens import ROLES, Verb

logger = logging.getLogger("perdure.web")

PROBLEM_TYPE = "application/problem+json"
RETRY_SECONDS = 1
"""Seconds in ``Retry-After`` of an answer that may be another one soon."""
_MAX_DETAIL_CHARS = 2_000


class WebError(PerdureError):
    """A request is refused before it reaches the engine. ``status`` is the HTTP status, ``name`` the problem's."""

    status = 400

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        name: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status or self.status
        self.name = name or type(self).__name__
        self.headers = dict(headers or {})


class UnauthorizedError(WebError):
    """No credentials, or wrong ones."""

    status = 401


class ForbiddenError(WebError):
    """The caller may not do this."""

    status = 403


class NotFoundError(WebError):
    """There is no such thing, or none that the caller may see."""

    status = 404


_ACTS: Mapping[Verb, str] = {
    "read": "look at this",
    "send": "start runs of agents and send messages to them",
    "decide": "decide on calls that wait for approval",
    "operate": "pause, resume, cancel and change runs and schedules, or see the audit trail",
    "admin": "manage tokens, webhooks and what else belongs to the whole service",
}


def build_forbidden_error(name: str, verb: Verb) -> ForbiddenError:
    """Build the error for a caller who lacks the right to do something, in words for a person."""
    roles = [role for role in ROLES if verb in ROLES[role]]
    named = " or ".join(filter(None, [", ".join(roles[:-1]), roles[-1]]))
    return ForbiddenError(
        f"{name!r:.200} may not {_ACTS[verb]}: that takes the right to {verb!r}",
        hint=f"It comes with the role {named}, which the operator of this service gives (`perdure token create`).",
    )


def build_unknown_session_error(id: str) -> RunNotFoundError:
    """Build the error for a session that does not exist, or is none of the caller's: the same for both."""
    return RunNotFoundError(f"there is no session {id!r:.200}")


def build_unknown_schedule_error(id: str) -> ScheduleNotFoundError:
    """Build the error for a schedule that does not exist, or is none of the caller's: the same for both."""
    return ScheduleNotFoundError(f"there is no schedule {id!r:.200}")


def build_unknown_agent_error(name: str) -> NotFoundError:
    """Build the error for an agent that no worker has recorded, or that the caller may not see."""
    return NotFoundError(
        f"there is no agent {name!r:.200}", name="AgentNotFoundError",
        hint="Workers record their agents when they start: GET /v1/agents.",
    )  # fmt: skip


_STATUSES: tuple[tuple[type[PerdureError], int], ...] = (
    (RunNotFoundError, 404),
    (ScheduleNotFoundError, 404),
    (WebhookNotFoundError, 404),
    (BulkActionNotFoundError, 404),
    (RunExistsError, 409),
    (ScheduleExistsError, 409),
    (RunClosedError, 409),
    (RunOpenError, 409),
    (RunStuckError, 409),
    (ApprovalForbiddenError, 403),
    (ApprovalDecidedError, 409),
    (ApprovalExpiredError, 409),
    (ApprovalPendingError, 409),
    (NotWaitingYetError, 409),
    (AgentNotFoundError, 409),
    (AuthContextUnavailableError, 503),
    (AuthContextError, 409),
    (TranscriptCorruptedError, 500),
    (StoreError, 503),
    (NoWorkerError, 503),
    (RuntimeSetupError, 503),
    (InvalidInputError, 400),
    (DefinitionError, 400),
    (ProviderError, 502),
    (RunError, 409),
)
"""The HTTP status of each class of errors: the first that fits counts."""
_INTERNAL = (StoreError, RuntimeSetupError)
"""Errors whose messages name hosts, paths or stores: they are logged, and the caller is told their name alone."""
_SEND_LATER = "Send the same request later: what has an id counts once."
_INTERNAL_TEXTS = {
    503: "A part of the service cannot be reached at present.",
    500: "What is stored of this is damaged.",
}


def build_problem(error: PerdureError, *, instance: str | None = None) -> Response:
    """Build the answer for ``error``."""
    if isinstance(error, WebError):
        return problem_response(
            error.status, error.name, error.message, hint=error.hint, headers=error.headers, instance=instance
        )
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    detail, hint = error.message, error.hint
    if isinstance(error, RunNotReadyError):
        detail, hint = (
            "The run takes no requests at present.",
            "Send the same request later: what has an id counts once.",
        )
    elif isinstance(error, NoWorkerError):
        detail, hint = (
            "No worker serves this run at present.",
            "Send the same request later: what has an id counts once.",
        )
    elif isinstance(error, AuthContextUnavailableError):  # its message names Temporal's address, or a key
        logger.warning("%s: %s", type(error).__name__, error)
        detail, hint = "The service is not set up to keep an auth_context secret.", "Its operator sets up a key."
    elif isinstance(error, _INTERNAL) or status == 500:
        logger.warning("%s: %s", type(error).__name__, error)
        detail, hint = _INTERNAL_TEXTS.get(status, "The request failed."), None
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 or error.retryable else {}
    return problem_response(status, type(error).__name__, detail, hint=hint, headers=headers, instance=instance)


def build_unexpected_problem(error: Exception) -> Response:
    """Build the answer for an error that perdure did not raise on purpose; the log has it."""
    logger.error("a request failed unexpectedly", exc_info=error)
    return problem_response(500, "InternalError", "The request failed unexpectedly; the log has the reason.")


def problem_response(
    status: int,
    name: str,
    detail: str,
    *,
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
    instance: str | None = None,
    **extra: Any,
) -> Response:
    """Build a problem. ``error`` is perdure's name of it, ``hint`` the way out."""
    fields: dict[str, Any] = {
        "type": "about:blank",
        "title": name,
        "status": status,
        "detail": end_sentence(detail[:_MAX_DETAIL_CHARS]),
        "error": name,
    }
    fields |= {"hint": end_sentence(hint[:_MAX_DETAIL_CHARS])} if hint else {}
    fields |= {"instance": instance} if instance else {}
    body = json.dumps(fields | extra).encode()
    # no-store: what one caller is refused, a cache may not answer to another
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, PROBLEM_TYPE)
