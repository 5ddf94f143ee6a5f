"""The checks of ``perdure doctor``: the setup of this machine. They change nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from .._installation import build_install_command, find_version, list_extras
from ..errors import PerdureError, ServerUnreachableError
from ..temporal.attributes import find_search_attributes
from ..temporal.workflow_tasks import FailingTask, find_failing_task
from ..types.interface import WORKFLOW_TYPE
from .address import ServerTarget, connect, resolve_target
from .binary import find_binary
from .home import current_home, named_store
from .server import DEFAULT_PORTS, is_port_free

_REQUIRED_PACKAGES = ("temporalio", "pydantic", "sqlalchemy", "alembic", "typer", "rich")
_API_KEY_EXTRAS = {"OPENAI_API_KEY": "openai", "ANTHROPIC_API_KEY": "anthropic", "GEMINI_API_KEY": "google"}
_MAX_RUNS_CHECKED, _MAX_CONCURRENT_CHECKS = 1000, 20
"""Most open runs that are checked, and how many at once: 4 s for all of them."""
_DISK_FAIL, _DISK_WARN = 100 * 2**20, 2**30

CheckStatus = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line: what was checked, its state, and the way out of a problem."""

    check: str
    status: CheckStatus
    detail: str
    hint: str | None = None


def check_machine() -> Iterator[Finding]:
    """Check Python, packages, keys, home, store and disk."""
    version = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    yield Finding("python", "fail" if old else "ok", version, "Use Python 3.11 or newer." if old else None)
    yield from _check_packages()
    yield from _check_api_keys()
    yield _check_home()
    yield from _check_store_file()
    yield from _check_disk_space()


async def check_servers(address: str | None, namespace: str | None, profile: str | None) -> list[Finding]:
    """Check the Temporal server that perdure would use, and the requirements of the embedded server."""
    try:
        target = await resolve_target(address=address, namespace=namespace, profile=profile)
    except ServerUnreachableError:  # neither is a server configured nor does one run
        return [await _check_binary(), *_check_ports(), Finding("server", "ok", "none runs; it is started when needed")]
    except PerdureError as error:
        return [Finding("server", "fail", error.message, error.hint)]
    binary = [await _check_binary()] if target.embedded else []
    return [*binary, *await _check_server(target)]


async def _check_server(target: ServerTarget) -> list[Finding]:
    where = f"{target.address} ({target.origin})"
    try:
        client = await connect(target)
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=target.namespace))
        attributes = await check_search_attributes(client)
        stuck = [*await _check_missing_store_file(client), *await _check_stuck_runs(client)]
    except PerdureError as error:
        return [Finding("server", "fail", error.message, error.hint)]
    except RPCError as error:
        missing = error.status is RPCStatusCode.NOT_FOUND
        detail = f"{target.namespace}: {'this namespace does not exist' if missing else error.message}"
        way_out = "Set TEMPORAL_NAMESPACE, or create it: temporal operator namespace create."
        return [Finding("server", "ok", where), Finding("namespace", "fail", detail, way_out)]
    return [Finding("server", "ok", where), Finding("namespace", "ok", target.namespace), attributes, *stuck]


async def _check_stuck_runs(client: Client) -> list[Finding]:
    """Find the runs whose workflow task fails repeatedly, among the latest open runs."""
    semaphore = asyncio.Semaphore(_MAX_CONCURRENT_CHECKS)

    async def check_run(run: WorkflowExecution) -> FailingTask | None:
        async with semaphore:
            try:
                handle = client.get_workflow_handle(run.id, run_id=run.run_id)
                return await find_failing_task(client, await handle.describe())
            except RPCError:  # deleted meanwhile
                return None

    open_runs = f"WorkflowType = '{WORKFLOW_TYPE}' AND ExecutionStatus = 'Running'"
    runs = [run async for run in client.list_workflows(open_runs, limit=_MAX_RUNS_CHECKED)]
    failing = [task for task in await asyncio.gather(*map(check_run, runs)) if task is not None]
    if not failing:
        detail = f"of the latest {_MAX_RUNS_CHECKED:,} open runs none" if len(runs) == _MAX_RUNS_CHECKED else "none"
        return [Finding("stuck runs", "ok", detail)]
    return [Finding("stuck runs", "fail", f"{task.run_id}: {task}", task.way_out) for task in failing]


async def check_search_attributes(client: Client) -> Finding:
    """Check the search attributes of the client's namespace."""
    try:
        attributes = await find_search_attributes(client.service_client, client.namespace)
    except RPCError as error:
        return Finding("search attrs", "warn", f"the server does not list them: {error.message}")
    if problems := str(attributes):
        hint = "`perdure server setup` registers them; until then the inbox queries every open run."
        return Finding("search attrs", "warn", problems, hint)
    return Finding("search attrs", "ok", ", ".join(attributes.names))


async def _check_binary() -> Finding:
    try:
        binary = await find_binary()
    except PerdureError as error:
        return Finding("dev server", "fail", error.message, error.hint)
    if binary is None:
        return Finding("dev server", "warn", "no binary yet", "`perdure server install` fetches it now.")
    return Finding("dev server", "ok", f"{binary.path}, server {binary.server_version}, from {binary.source}")


def _check_ports() -> Iterator[Finding]:
    taken = [port for port in DEFAULT_PORTS if not is_port_free(port)]
    if taken:
        detail = f"taken by another program: {', '.join(map(str, taken))}"
        yield Finding("ports", "warn", detail, "The embedded server takes others then.")
    else:
        yield Finding("ports", "ok", f"free: {', '.join(map(str, DEFAULT_PORTS))}")


def _check_packages() -> Iterator[Finding]:
    versions = {package: find_version(package) for package in _REQUIRED_PACKAGES}
    if missing := [package for package, version in versions.items() if version is None]:
        yield Finding("packages", "fail", f"missing: {', '.join(missing)}", "Install perdure again with pip.")
    else:
        yield Finding("packages", "ok", ", ".join(f"{package} {version}" for package, version in versions.items()))
    extras = list_extras()
    if not extras:
        detail = "unknown: perdure runs from its source, and is not installed"
        yield Finding("extras", "warn", detail, f"Install it: {build_install_command(['all'])}")
        return
    installed = [
        " ".join([extra.name, *(map(str, extra.packages.values()) if len(extra.packages) == 1 else ())])
        for extra in extras
        if not extra.missing
    ]
    absent = [extra.name for extra in extras if extra.missing]
    detail = (", ".join(installed) or "none") + (f"; not installed: {', '.join(absent)}" if absent else "")
    yield Finding("extras", "ok", detail, build_install_command(absent) if absent else None)


def _check_api_keys() -> Iterator[Finding]:
    present = [name for name in _API_KEY_EXTRAS if os.environ.get(name)]
    if not present:
        hint = f"For a language model set one of {', '.join(_API_KEY_EXTRAS)}; demo:echo and demo:tools need none."
        yield Finding("API keys", "warn", "none is set", hint)
        return
    yield Finding("API keys", "ok", f"set: {', '.join(present)}")
    absent = {extra.name for extra in list_extras() if extra.missing}
    for name in present:
        if (extra := _API_KEY_EXTRAS[name]) in absent:
            detail = f"{name} is set, but its SDK is not installed"
            yield Finding("API keys", "warn", detail, build_install_command([extra]))


def _check_home() -> Finding:
    root = current_home().root
    if not root.exists():
        return _check_path_writable("home", root, f"{root} (made when needed)")
    if not root.is_dir():
        return Finding("home", "fail", f"{root} is not a directory", "Set PERDURE_HOME to a directory.")
    if root.stat().st_mode & 0o077:
        return Finding("home", "warn", f"{root} is open to other users", f"chmod 700 {root}")
    return _check_path_writable("home", root, str(root))


def _check_store_file() -> Iterator[Finding]:
    """Check the file of the store; nothing if the store is none."""
    path = _find_store_file()
    if path is None:
        return
    if path.is_file() and path.stat().st_mode & 0o077:
        yield Finding("store", "warn", f"{path} is open to other users", f"chmod 600 {path}")
        return
    yield _check_path_writable("store", path, str(path) if path.exists() else f"{path} (made when needed)")


def _find_store_file() -> Path | None:
    """Return the store's file; None if the store is not a file."""
    url = named_store()
    if url and not url.startswith("sqlite"):
        return None
    return Path(unquote(urlsplit(url).path)[1:]) if url else current_home().store_db


async def _check_missing_store_file(client: Client) -> list[Finding]:
    """Report a missing store file if the server has runs."""
    path = _find_store_file()
    if path is None or path.exists():
        return []
    runs = [run async for run in client.list_workflows(f"WorkflowType = '{WORKFLOW_TYPE}'", limit=1)]
    hint = "Put the store back there (is its volume mounted?), or correct PERDURE_STORE_URL."
    return [Finding("store file", "warn", f"none at {path}, but run {run.id} is on the server", hint) for run in runs]


def _check_path_writable(check: str, path: Path, detail: str) -> Finding:
    """Check that ``path`` can be written, or created if it is missing."""
    place = _find_existing_ancestor(path)
    if (place.is_dir() or place == path) and os.access(place, os.W_OK):
        return Finding(check, "ok", detail)
    return Finding(check, "fail", f"{path}: {place} cannot be written", "Make it writable, or set another path.")


def _find_existing_ancestor(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _check_disk_space() -> Iterator[Finding]:
    """Check the disk of the home, and that of the store's file, if it is another one."""
    home = _find_existing_ancestor(current_home().root)
    yield _check_free_space("disk", home, "Free some space, or set PERDURE_HOME to another disk.")
    path = _find_store_file()
    if path is not None and (place := _find_existing_ancestor(path)).stat().st_dev != home.stat().st_dev:
        way_out = "Free some space there, or copy the store to another disk: `perdure store copy`."
        yield _check_free_space("store disk", place, way_out)


def _check_free_space(check: str, place: Path, way_out: str) -> Finding:
    free = shutil.disk_usage(place).free
    status: CheckStatus = "ok" if free >= _DISK_WARN else "warn" if free >= _DISK_FAIL else "fail"
    return Finding(check, status, f"{free / 2**30:.1f} GiB free at {place}", None if status == "ok" else way_out)
