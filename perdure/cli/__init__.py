"""The command ``perdure``; a new command is added to the list below.

Until it is called, the module of a command imports only typer and the standard library, so ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from typing import Annotated

import typer

from ..errors import PerdureError
from ..terminal import OUTPUT_NAME, LogFormatter, print_line
from . import (
    approvals,
    chat,
    demo,
    dev,
    doctor,
    events,
    fork,
    list_runs,
    replay,
    run,
    schedule,
    schema,
    serve,
    server,
    show,
    steer,
    store,
    token,
    webhook,
    worker,
)
from .options import Commands
from .output import INTERRUPTED, print_error, print_unexpected_error

app = Commands(
    name="perdure",
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


app.add(demo.demo, run.run, chat.chat, dev.dev, worker.worker, serve.serve, serve.console)
app.add(list_runs.list_runs, name="list")
app.add(show.show, events.events, steer.send, run.wait, steer.inject, steer.interrupt, steer.cancel, steer.close)
app.add(steer.terminate, steer.delete, steer.pause, steer.resume, fork.fork, fork.diff)
app.add(approvals.approvals, approvals.approve, approvals.deny, approvals.revoke, approvals.answer)
app.add(replay.replay, schema.schema)
app.add_typer(schedule.app, name="schedule")
app.add_typer(server.app, name="server")
app.add_typer(store.app, name="store")
app.add_typer(token.app, name="token")
app.add_typer(webhook.app, name="webhook")
app.add(server.env, doctor.doctor)


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
