"""Settings from the environment, in one place. Temporal's own are read by ``temporalio.envconfig``."""

from __future__ import annotations

import getpass
import os
import re
import string
import uuid
from contextlib import suppress
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from . import events
from .embedded.home import current_home, named_store
from .errors import DefinitionError, RuntimeSetupError
from .types.limits import HEARTBEAT_SECONDS

DEFAULT_TASK_QUEUE = "perdure"
LEAST_HEARTBEAT_SECONDS, MOST_HEARTBEAT_SECONDS = 0.1, 60.0
_PRIVATE_SUFFIX = re.compile("-call-[0-9a-f]{8}$")


def resolve_task_queue(given: str | None = None) -> str:
    """Return the argument, then ``PERDURE_TASK_QUEUE``, then ``perdure``."""
    return named_task_queue(given) or DEFAULT_TASK_QUEUE


def named_task_queue(given: str | None = None) -> str | None:
    """Return the argument, then ``PERDURE_TASK_QUEUE``; None if neither names a task queue."""
    return given or os.environ.get("PERDURE_TASK_QUEUE") or None


def make_private_task_queue(queue: str) -> str:
    """Return the name of a task queue that only one engine polls, for the calls without an id beside ``queue``."""
    return f"{queue}-call-{uuid.uuid4().hex[:8]}"


def get_shared_task_queue(queue: str) -> str:
    """Return the task queue beside which a private one was made; any other unchanged. What continues or forks the run
    of a call belongs there: the private queue has no worker after the call."""
    return _PRIVATE_SUFFIX.sub("", queue)


def resolve_store_url(given: str | None = None) -> str | None:
    """Return the argument, then ``PERDURE_STORE_URL``; None if neither names a store."""
    return given or named_store()


def get_blob_url() -> str | None:
    """Return ``PERDURE_BLOB_URL``, where large blobs are; None for the database."""
    return os.environ.get("PERDURE_BLOB_URL") or None


def get_blob_bytes() -> int | None:
    """Return ``PERDURE_BLOB_BYTES``, above which a blob is large; None for the default.

    Raises ``RuntimeSetupError`` for a value that is not a number of bytes.
    """
    value = os.environ.get("PERDURE_BLOB_BYTES", "")
    if value and not (value.isascii() and value.isdigit()):
        raise RuntimeSetupError(
            f"PERDURE_BLOB_BYTES is {value[:40]!r}, which is not a number of bytes", hint="Set it to 65536, or to none."
        )
    return int(value) if value else None


def get_outbox() -> dict[str, list[str]]:
    """Return which events get an outbox row, by target: ``PERDURE_OUTBOX``, for instance
    ``webhooks=approval.*,question.*,run;mail=approval.requested``. By default none.

    Raises ``RuntimeSetupError`` for a value of another form, or a pattern that no type of event matches.
    """
    rules: dict[str, list[str]] = {}
    for rule in filter(None, map(str.strip, os.environ.get("PERDURE_OUTBOX", "").split(";"))):
        target, _, listed = rule.partition("=")
        patterns = [pattern.strip() for pattern in listed.split(",") if pattern.strip()]
        if not target.strip() or not patterns or target.strip() in rules or target.strip().startswith("perdure."):
            raise RuntimeSetupError(
                f"PERDURE_OUTBOX has {rule[:80]!r}, which is not the form target=types, "
                "each target once and none that begins with perdure.",
                hint="For instance PERDURE_OUTBOX='webhooks=approval.*,question.*,run,turn'.",
            )
        kept_types = events.EVENT_TYPES - {"model.delta"}
        for pattern in patterns:
            if not any(fnmatchcase(known, pattern) for known in kept_types):
                raise RuntimeSetupError(
                    f"PERDURE_OUTBOX: no event that is kept has the type {pattern[:80]!r}",
                    hint=f"Types: {', '.join(sorted(kept_types))}; * stands for any characters.",
                )
        rules[target.strip()] = patterns
    return rules


def get_webhook_allow() -> str:
    """Return ``PERDURE_WEBHOOK_ALLOW``, the hosts and networks that webhooks may reach although they are not public."""
    return os.environ.get("PERDURE_WEBHOOK_ALLOW", "")


def get_public_url() -> str | None:
    """Return ``PERDURE_PUBLIC_URL``, the URL of the web application for people, without a slash at its end."""
    return os.environ.get("PERDURE_PUBLIC_URL", "").rstrip("/") or None


_UI_HINT = "For instance https://temporal.example.com."


def get_temporal_ui() -> str | None:
    """Return ``PERDURE_TEMPORAL_UI``, the URL of Temporal's UI, without a slash at its end. Raises
    ``RuntimeSetupError`` for another value."""
    value = os.environ.get("PERDURE_TEMPORAL_UI", "").strip().rstrip("/")
    if value:
        _check_page_url("PERDURE_TEMPORAL_UI", value, _UI_HINT)
        if "?" in value or "#" in value:
            raise RuntimeSetupError(f"PERDURE_TEMPORAL_UI is {value[:80]!r}, which has a query", hint=_UI_HINT)
    return value or None


LOG_URL_FIELDS = ("run", "execution", "activity", "attempt", "worker", "from", "until", "from_ms", "until_ms")
"""Placeholders of ``PERDURE_LOG_URL``."""
_LOG_URL_HINT = (
    "For instance https://logs.example.com/?q={worker}&from={from_ms}&to={until_ms}; placeholders: "
    + ", ".join(f"{{{name}}}" for name in LOG_URL_FIELDS)
    + "."
)


def get_log_url() -> str | None:
    """Return ``PERDURE_LOG_URL``, the URL of the log lines of an attempt, with the placeholders ``LOG_URL_FIELDS``.

    Raises ``RuntimeSetupError`` for another value, for an unknown placeholder, and for one in the host.
    """
    value = os.environ.get("PERDURE_LOG_URL", "").strip()
    if not value:
        return None
    _check_page_url("PERDURE_LOG_URL", value, _LOG_URL_HINT)
    try:
        fields = list(string.Formatter().parse(value))
    except ValueError as error:
        raise RuntimeSetupError(f"PERDURE_LOG_URL is {value[:80]!r}: {error}", hint=_LOG_URL_HINT) from None
    for _, name, form, conversion in fields:
        if name is not None and (name not in LOG_URL_FIELDS or form or conversion):
            raise RuntimeSetupError(
                f"PERDURE_LOG_URL has the placeholder {{{name[:40]}}}, which it does not know", hint=_LOG_URL_HINT
            )
    return value


def _check_page_url(variable: str, value: str, hint: str) -> None:
    """Raise ``RuntimeSetupError`` unless ``value`` is a URL of http or https with a host."""
    try:
        parts = urlsplit(value)
        host = parts.hostname
        parts.port  # noqa: B018  # raises for a wrong one
    except ValueError:
        parts, host = urlsplit(""), None
    is_printable = value.isprintable() and not any(character.isspace() for character in value)
    if parts.scheme not in ("http", "https") or not host or set("{}") & set(parts.netloc) or not is_printable:
        raise RuntimeSetupError(f"{variable} is {value[:80]!r}, which is not a URL of http or https", hint=hint)
    if parts.username or parts.password:
        raise RuntimeSetupError(f"{variable} has a user or a password, which every visitor would see", hint=hint)


def get_health_address() -> str | None:
    """Return ``PERDURE_HEALTH_ADDRESS``, the ``[HOST:]PORT`` of the health endpoint of ``perdure worker``."""
    return os.environ.get("PERDURE_HEALTH_ADDRESS") or None


def resolve_heartbeat(given: float | None = None) -> float:
    """Return the argument, then ``PERDURE_HEARTBEAT``, then ``HEARTBEAT_SECONDS``: seconds between two heartbeats of a
    call.

    Raises ``DefinitionError`` for an argument, ``RuntimeSetupError`` for a setting that is not from
    ``LEAST_HEARTBEAT_SECONDS`` to ``MOST_HEARTBEAT_SECONDS``.
    """
    hint = "Leave it out: 2 seconds. A lost worker is noticed after three times as long."
    allowed = f"a number of seconds from {LEAST_HEARTBEAT_SECONDS:g} to {MOST_HEARTBEAT_SECONDS:g}"
    if given is not None:
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not LEAST_HEARTBEAT_SECONDS <= given <= MOST_HEARTBEAT_SECONDS:
            raise DefinitionError(f"heartbeat must be {allowed}, not {given!r:.40}", hint=hint)
        return float(given)
    if not (value := os.environ.get("PERDURE_HEARTBEAT", "")):
        return HEARTBEAT_SECONDS
    with suppress(ValueError):
        if LEAST_HEARTBEAT_SECONDS <= (seconds := float(value)) <= MOST_HEARTBEAT_SECONDS:
            return seconds
    raise RuntimeSetupError(f"PERDURE_HEARTBEAT is {value[:40]!r}, which is not {allowed}", hint=hint)


def is_uvloop_wanted(*, is_installed: bool) -> bool:
    """Whether ``PERDURE_EVENT_LOOP``, ``uvloop`` or ``asyncio``, chooses uvloop; without it, whether it is installed.

    Raises ``RuntimeSetupError`` for another value, and for ``uvloop`` where it is not installed.
    """
    value = os.environ.get("PERDURE_EVENT_LOOP", "")
    if value not in ("", "uvloop", "asyncio"):
        raise RuntimeSetupError(
            f"PERDURE_EVENT_LOOP is {value[:40]!r}; it is uvloop or asyncio",
            hint="Leave it out: uvloop is used where it is installed.",
        )
    if value == "uvloop" and not is_installed:
        from ._installation import build_missing_extra_error

        raise build_missing_extra_error("PERDURE_EVENT_LOOP=uvloop", "uvloop", module="uvloop")
    return is_installed and value != "asyncio"


def are_all_file_urls_allowed() -> bool:
    """Whether ``PERDURE_FILE_URLS`` is ``any``: callers over HTTP may send files of any URL, also ``s3://`` and private
    hosts, which models' APIs read with the rights of the operator's account.

    Raises ``RuntimeSetupError`` for a value other than ``any`` and ``public``.
    """
    value = os.environ.get("PERDURE_FILE_URLS", "")
    if value not in ("", "public", "any"):
        raise RuntimeSetupError(
            f"PERDURE_FILE_URLS is {value[:40]!r}; it is public or any", hint="Leave it out: public."
        )
    return value == "any"


def is_new_store_allowed() -> bool:
    """Whether ``PERDURE_NEW_STORE`` allows a new store although runs are kept in another one."""
    return os.environ.get("PERDURE_NEW_STORE", "") not in ("", "0")


def get_home_store_url() -> str:
    """Return the store under ``PERDURE_HOME``, which the embedded engine uses."""
    return f"sqlite:///{current_home().store_db}"


def resolve_deployment(name: str | None = None, build_id: str | None = None) -> tuple[str, str] | None:
    """Return the Worker Deployment of this process and its build id: the arguments, then ``TEMPORAL_DEPLOYMENT_NAME``
    (or ``TEMPORAL_WORKER_DEPLOYMENT_NAME``) and ``TEMPORAL_WORKER_BUILD_ID``, which Temporal's Worker Controller sets;
    None without both.

    Raises ``RuntimeSetupError`` if one is there without the other, or if the two variables name two deployments.
    """
    names = {variable: os.environ.get(variable) for variable in _DEPLOYMENT_NAME_VARIABLES}
    given = {variable: value for variable, value in names.items() if value}
    if not name and len(set(given.values())) > 1:
        raise RuntimeSetupError(
            " and ".join(f"{variable} is {value[:80]!r}" for variable, value in given.items())
            + ": a worker belongs to one deployment",
            hint="Set one of them.",
        )
    name = name or next(iter(given.values()), None)
    build_id = build_id or os.environ.get("TEMPORAL_WORKER_BUILD_ID") or None
    if name and build_id:
        return name, build_id
    if name or build_id:
        there, missing = (
            (f"a deployment ({name:.80})", "build id") if name else (f"a build id ({build_id:.80})", "deployment")
        )
        raise RuntimeSetupError(
            f"the worker has {there} and no {missing}",
            hint="Set TEMPORAL_DEPLOYMENT_NAME and TEMPORAL_WORKER_BUILD_ID, or give --deployment and --build-id; or "
            "neither, for a worker without a version.",
        )
    return None


_DEPLOYMENT_NAME_VARIABLES = ("TEMPORAL_DEPLOYMENT_NAME", "TEMPORAL_WORKER_DEPLOYMENT_NAME")


def resolve_user(given: str | None = None) -> str:
    """Return the acting user: the argument, then ``PERDURE_USER``, then the user of the operating system."""
    named = given or os.environ.get("PERDURE_USER")
    if named:
        return named
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under an id without a name
        return f"uid-{os.getuid()}"
