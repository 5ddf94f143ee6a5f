"""The command ``perdure``; adding a command is one line below.

A command's module imports only typer and the standard library until it is called, so ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback

from ..errors import PerdureError
from ..terminal import LogFormatter, print_text
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
    server,
    show,
    steer,
    worker,
)
from .options import Commands
from .output import INTERRUPTED, print_error

app = Commands(
    name="perdure",
    help="Durable agents: runs that survive crashes, deploys and month-long waits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(run.run)
app.command()(chat.chat)
app.command()(dev.dev)
app.command()(worker.worker)
app.command("list")(list_runs.list_runs)
app.command()(show.show)
app.command()(events.events)
app.command()(steer.send)
app.command()(run.wait)
app.command()(steer.inject)
app.command()(steer.interrupt)
app.command()(steer.cancel)
app.command()(steer.close)
app.command()(steer.resume)
app.command()(fork.fork)
app.command()(fork.diff)
app.command()(approvals.approvals)
app.command()(approvals.approve)
app.command()(approvals.deny)
app.command()(approvals.revoke)
app.command()(approvals.answer)
app.command()(replay.replay)
app.command()(schema.schema)
app.add_typer(schedule.app, name="schedule")
app.add_typer(server.app, name="server")
app.command()(server.env)
app.command()(doctor.doctor)


def main() -> None:
    """Run the command line and end the process with its exit code (see :mod:`perdure.cli.output`)."""
    code = _run_app()
    for stream in (sys.stdout, sys.stderr):
        # A reader that went away (`perdure list | head -1`) is no failure.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # A Temporal client that is left to the interpreter's exit aborts it now and then (FACTS.md).
    os._exit(code)


def _run_app() -> int:
    if logging.lastResort is not None:  # it prints warnings where a command sets up no logging
        logging.lastResort.setFormatter(LogFormatter())
    try:
        app(prog_name="perdure")
    except PerdureError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        print_text(traceback.format_exc().rstrip(), error=True)
    return 1
