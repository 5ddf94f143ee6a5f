"""``perdure doctor``: checks the setup of this machine (apart because each command has a module)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .._terminal import style_text
from ..errors import MissingExtraError, PerdureError, RuntimeSetupError, StoreError
from .connection import ServerOptions
from .output import OutputOptions

if TYPE_CHECKING:
    from ..agent.spec import AgentSpec
    from ..embedded.diagnosis import Finding
    from ..ports.model import ModelRef, ToolSpec
    from ..ports.store import Store
    from ..ports.toolset import Toolset

_STATUS_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


_LIST_TIMEOUT = 60.0
"""Seconds that a toolset may take to list its tools."""


def doctor(
    server: ServerOptions,
    output: OutputOptions,
    file: Annotated[
        str | None, typer.Argument(help="File or module with agents: also check their tools.", show_default=False)
    ] = None,
) -> None:
    """Check this machine's setup; exit code 1 when something is broken. Starts and fetches nothing.

    With a file, its toolsets are asked for their tools, and each tool is checked against what the agent's models take.
    A row is written into the store and deleted; where PERDURE_BLOB_URL is set, an object is written there, read and
    deleted.
    """
    from ..embedded import diagnosis

    findings = [*diagnosis.check_machine(), *_check_encryption_keys()]
    findings += asyncio.run(_check_store())
    findings += asyncio.run(_check_blob_location())
    findings += asyncio.run(diagnosis.check_servers(**asdict(server)))
    findings += [] if file is None else asyncio.run(_check_file(file))
    lines = (line for finding in findings for line in _format_finding(finding))
    output.print_result([asdict(finding) for finding in findings], lines)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def _format_finding(finding: Finding) -> Iterator[str]:
    mark = style_text(finding.status.ljust(4), _STATUS_COLOURS[finding.status])
    yield f"{mark}  {finding.check:<14} {finding.detail}"
    if finding.hint:
        yield f"{'':<20} → {finding.hint}"


async def _check_store() -> list[Finding]:
    """Open the store, and write into it; a file that does not exist yet is left so."""
    from .._config import get_home_store_url, resolve_store_url
    from ..embedded.diagnosis import Finding
    from ..store import open_store

    url = resolve_store_url() or get_home_store_url()
    check = "store write" if url.startswith("sqlite:") else "store"  # the file itself was checked before
    try:
        store = open_store(url)
        await store.open(create=False)
    except (StoreError, MissingExtraError) as error:
        return [Finding(check, "fail", error.message, error.hint)]
    try:
        if not store.store_id:
            return [] if check == "store write" else [Finding(check, "ok", f"{store.place} (made when needed)")]
        detail = f"{store.place}, store {store.store_id}"
        await _write_and_undo(store)
    except StoreError as error:
        return [Finding(check, "fail", error.message, error.hint)]
    finally:
        await store.close()
    return [Finding(check, "ok", detail)]


async def _write_and_undo(store: Store) -> None:
    """Write a row and delete it again. Raises ``StoreError``, for instance for a full disk or a standby.

    Both are committed: what is rolled back may never reach the disk.
    """
    key, owner = f"doctor/{uuid.uuid4().hex}", "doctor"
    await store.claim_idempotency(key, "", owner, lease_seconds=1.0, keep_seconds=60.0)
    await store.complete_idempotency(key, owner, None)


def _check_encryption_keys() -> Iterator[Finding]:
    """The ids of the keys of ``auth_context``, if there are any."""
    from .._encryption import KEYS_VARIABLE, KeyRing
    from ..embedded.diagnosis import Finding

    try:
        ids = KeyRing.from_environment().ids
    except RuntimeSetupError as error:
        yield Finding("encryption", "fail", error.message, error.hint)
        return
    if ids:
        others = f"; decrypts also: {', '.join(ids[1:])}" if ids[1:] else ""
        yield Finding("encryption", "ok", f"{KEYS_VARIABLE}: {ids[0]} encrypts{others}")


async def _check_blob_location() -> list[Finding]:
    """Whether the location of large objects can be read and written; nothing where none is set."""
    from .._config import get_blob_bytes, get_blob_url
    from ..embedded.diagnosis import Finding
    from ..store.objects import parse_blob_url, probe_location

    url = get_blob_url()
    try:
        get_blob_bytes()
        if url is None:
            return []
        owner = await probe_location(url)
    except PerdureError as error:
        return [Finding("large objects", "fail", error.message, error.hint)]
    objects = "no objects yet" if owner is None else f"the objects of store {owner}"
    return [Finding("large objects", "ok", f"{parse_blob_url(url)}: can be read and written; {objects}")]


# ---
# The tools of agents.


async def _check_file(file: str) -> list[Finding]:
    """What the models of a file's agents cannot be offered, or only in other words."""
    from .agent_loader import load_agent_module

    loaded = load_agent_module(file)
    return [finding for agent in loaded.agents async for finding in _check_tools(agent)]


async def _check_tools(agent: AgentSpec) -> AsyncIterator[Finding]:
    from ..calls.toolsets import settle_tool_names
    from ..embedded.diagnosis import Finding
    from ..tools.tool import ToolsetTool, pin_tools

    check = f"tools of {agent.name}"
    rows = []
    for toolset in agent.toolsets:
        try:
            pinned, left_out = pin_tools(toolset, await _list_tools(toolset, agent))
        except Exception as error:  # the author's, or of a server
            why = error.message if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}"
            yield Finding(check, "warn", f"toolset {toolset.name} could not list its tools: {why}")
            continue
        rows += [row for row, _ in pinned]
        for name, reason in left_out.items():
            yield _build_left_out(check, f"toolset {toolset.name}", name, reason)
    try:
        rows = [*settle_tool_names(agent, rows)]
    except PerdureError as error:
        yield Finding(check, "fail", error.message, error.hint)
    specs = [*agent.specs, *(ToolsetTool(row).spec for row in rows)]
    for model in agent.chain:
        for finding in _check_model_tools(check, model, specs):
            yield finding


async def _list_tools(toolset: Toolset, agent: AgentSpec) -> Sequence[object]:
    from ..tools import RunContext

    try:
        async with asyncio.timeout(_LIST_TIMEOUT):
            return await toolset.list(RunContext(agent=agent.name))
    finally:
        await toolset.close()


def _check_model_tools(check: str, model: ModelRef, specs: Sequence[ToolSpec]) -> Iterator[Finding]:
    from ..embedded.diagnosis import Finding
    from ..providers.registry import get_provider

    try:
        translate_tools = getattr(model.own or get_provider(model.provider), "translate_tools", None)
    except PerdureError as error:
        yield Finding(check, "warn", error.message, error.hint)
        return
    if translate_tools is None:
        return
    tools = translate_tools(model.name, specs)
    for name, reason in tools.left_out.items():
        yield _build_left_out(check, str(model), name, reason)
    changed = [tool.spec.name for tool in tools.offered if tool.parameters != tool.spec.parameters]
    detail = f"{model}: {len(tools.offered)} tools"
    if changed:
        detail += f"; with a rewritten schema: {', '.join(changed[:20])}{' …' if len(changed) > 20 else ''}"
    yield Finding(check, "ok", detail)


def _build_left_out(check: str, where: str, name: str, reason: str) -> Finding:
    from ..embedded.diagnosis import Finding

    hint = "The agent works without it. Correct it where it is defined."
    return Finding(check, "warn", f"{where}: tool {name:.100} is left out: {reason}", hint)
