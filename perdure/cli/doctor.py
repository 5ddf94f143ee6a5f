"""``perdure doctor``: what is set up on this machine, and the way out where something is not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from ..errors import RuntimeSetupError
from .options import Output, OutputOptions, ServerOptions, print_json

if TYPE_CHECKING:
    from ..embedded.diagnosis import Finding

_MARKS = {"ok": ("\033[32m", "ok  "), "warn": ("\033[33m", "warn"), "fail": ("\033[31m", "fail")}


def doctor(server: ServerOptions, output: OutputOptions) -> None:
    """Check this machine's setup; exit code 1 when something is broken. Starts and fetches nothing."""
    from ..embedded import diagnosis

    findings = [
        *diagnosis.machine(),
        *_encryption(),
        *asyncio.run(diagnosis.servers(server.address, server.namespace, server.profile)),
    ]
    if output is not Output.TEXT:
        print_json([asdict(finding) for finding in findings], output=output)
    else:
        colours = sys.stdout.isatty()
        for finding in findings:
            colour, mark = _MARKS[finding.status]
            print(f"{colour if colours else ''}{mark}{chr(27) + '[0m' if colours else ''}  ", end="")
            print(f"{finding.check:<14} {finding.detail}")
            if finding.hint:
                print(f"{'':6}{'':<14} → {finding.hint}")
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def _encryption() -> Iterator[Finding]:
    """The keys of ``auth_context``, where there are some: their ids alone."""
    from ..embedded.diagnosis import Finding
    from ..encryption import VARIABLE, Keys

    try:
        ids = Keys.given().ids
    except RuntimeSetupError as error:
        yield Finding("encryption", "fail", error.message, error.hint)
        return
    if ids:
        others = f"; decrypts also: {', '.join(ids[1:])}" if ids[1:] else ""
        yield Finding("encryption", "ok", f"{VARIABLE}: {ids[0]} encrypts{others}")
