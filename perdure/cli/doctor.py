"""``perdure doctor``: what is set up on this machine, and the way out where something is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from ..errors import RuntimeSetupError
from ..terminal import print_line, style_text
from .options import OutputFormat, OutputOptions, ServerOptions, print_json
from .output import can_colour_stdout

if TYPE_CHECKING:
    from ..embedded.diagnosis import Finding


_STATUS_MARKS = {"ok": ("green", "ok  "), "warn": ("yellow", "warn"), "fail": ("red", "fail")}


def doctor(server: ServerOptions, output: OutputOptions) -> None:
    """Check this machine's setup; exit code 1 when something is broken. Starts and fetches nothing."""
    from ..embedded import diagnosis

    findings = [
        *diagnosis.check_machine(),
        *_check_encryption_keys(),
        *asyncio.run(diagnosis.check_servers(server.address, server.namespace, server.profile)),
    ]
    if output is not OutputFormat.TEXT:
        print_json([asdict(finding) for finding in findings], output=output)
    else:
        for finding in findings:
            colour, mark = _STATUS_MARKS[finding.status]
            print_line(f"{style_text(mark, colour, on=can_colour_stdout())}  {finding.check:<14} {finding.detail}")
            if finding.hint:
                print_line(f"{'':6}{'':<14} → {finding.hint}")
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def _check_encryption_keys() -> Iterator[Finding]:
    """The keys of ``auth_context``, where there are some: their ids alone."""
    from ..embedded.diagnosis import Finding
    from ..encryption import KEYS_VARIABLE, KeyRing

    try:
        ids = KeyRing.from_environment().ids
    except RuntimeSetupError as error:
        yield Finding("encryption", "fail", error.message, error.hint)
        return
    if ids:
        others = f"; decrypts also: {', '.join(ids[1:])}" if ids[1:] else ""
        yield Finding("encryption", "ok", f"{KEYS_VARIABLE}: {ids[0]} encrypts{others}")
