"""The command ``perdure``; a new command is added to the table below.

The module of a command is imported when the command is called, or when the help lists all. Until then it imports only
typer and the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from .._terminal import OUTPUT_NAME, LogFormatter, print_line
from ..errors import PerdureError
from .options import Commands
from .output import INTERRUPTED, print_error, print_unexpected_error

_COMMANDS = {
    "demo": "demo.demo",
    "new": "new.new",
    "run": "run.run",
    "chat": "chat.chat",
    "dev": "dev.dev",
    "worker": "worker.worker",
    "serve": "serve.serve",
    "console": "serve.console",
    "list": "list_runs.list_runs",
    "show": "show.show",
    "events": "events.events",
    "send": "steer.send",
    "wait": "run.wait",
    "inject": "steer.inject",
    "interrupt": "steer.interrupt",
    "cancel": "steer.cancel",
    "close": "steer.close",
    "terminate": "steer.terminate",
    "delete": "steer.delete",
    "pause": "steer.pause",
    "resume": "steer.resume",
    "bulk": "bulk.app",
    "fork": "fork.fork",
    "diff": "fork.diff",
    "approvals": "approvals.approvals",
    "approve": "approvals.approve",
    "deny": "approvals.deny",
    "revoke": "approvals.revoke",
    "answer": "approvals.answer",
    "replay": "replay.replay",
    "schema": "schema.schema",
    "env": "server.env",
    "doctor": "doctor.doctor",
    "schedule": "schedule.app",
    "server": "server.app",
    "store": "store.app",
    "token": "token.app",
    "webhook": "webhook.app",
    "mcp": "mcp.app",
}
"""Module and function of each command, or the ``Commands`` of a group, in the order of the help."""


class _CommandTable(Mapping[str, Any]):
    """Typer's commands by their names, each built when it is first asked for."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            module, _, attribute = _COMMANDS[name].partition(".")
            self._built[name] = _build_command(name, getattr(import_module(f".{module}", __name__), attribute))
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


def _build_command(name: str, source: Commands | Callable[..., None]) -> Any:
    if isinstance(source, Commands):
        group = get_group(source)
        group.name = name
        return group
    single = Commands(add_completion=False)
    single.add(source, name=name)
    return get_command(single)


class _LazyGroup(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": _CommandTable()})


app = Commands(
    name="perdure",
    cls=_LazyGroup,
    help="Durable agents: runs that survive crashes, deploys and month-long waits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write to a full disk."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            version = metadata.version("perdure")
        except metadata.PackageNotFoundError:  # run from its source
            version = "(not installed)"
        print_line(f"perdure {version}")
        raise typer.Exit


@app.callback()
def _read_global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Durable agents: runs that survive crashes, deploys and month-long waits."""


def main() -> None:
    """Run the command line and end the process with its exit code (see :mod:`perdure.cli.output`)."""
    code = _run_app()
    for stream in (sys.stdout, sys.stderr):
        # A closed pipe (`perdure list | head -1`) is not a failure.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # A Temporal client that is left to the interpreter's exit sometimes aborts it (FACTS.md).
    os._exit(code)


def _run_app() -> int:
    if logging.lastResort is not None:  # prints warnings if the command sets up no logging
        logging.lastResort.setFormatter(LogFormatter())
    try:
        app(prog_name="perdure")
    except PerdureError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _FULL_DISK_ERRNOS:
            place = "the output" if error.filename == OUTPUT_NAME else error.filename or "a file"
            return print_error(PerdureError(f"cannot write {place}: {error.strerror}"))
        return print_unexpected_error(error)
    return 0
