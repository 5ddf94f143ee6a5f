"""Asking on the terminal about a call that waits for a person: ``call(on_approval="prompt")``."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from typing import Any

from .inbox import PendingCall
from .printing import printable
from .types.form import misfit


async def prompt(one: PendingCall) -> Any:
    """What somebody types: a decision, or an answer. None where they leave it to somebody else.

    All of the call is shown, and nothing of it steers the terminal: a model has written it.
    """
    return await (_decision(one) if one.kind == "approval" else _answer(one))


def shown(one: PendingCall, most: int | None = None) -> str:
    """The call, in a line; ``most`` characters of its arguments."""
    said = "…" if one.arguments is None else json.dumps(one.arguments, ensure_ascii=False)
    cut = most is not None and len(said) > most
    return printable(f"{one.tool}({said[:most]}{'…' if cut else ''})")


async def _decision(one: PendingCall) -> bool | None:
    said = await _typed(f"\napprove {shown(one)}? [y/N] ")
    return said.strip().lower() in ("y", "yes") if said else None


async def _answer(one: PendingCall) -> Any:
    """Asked until the answer fits; an empty line leaves it to somebody else."""
    asks = f"asks: {printable(one.question)}" if one.question else "is yours to run."
    form = "" if one.form is None else f"form: {printable(json.dumps(one.form, ensure_ascii=False))}\n"
    before = f"\n{shown(one)} {asks}\n{form}"
    while True:
        if not (said := (await _typed(f"{before}answer: ")).strip()):
            return None
        try:
            value = said if one.form is None or misfit(one.form, said) is None else json.loads(said)
        except ValueError:
            value = said
        if one.form is None or (why := misfit(one.form, value)) is None:
            return value
        before = f"it does not fit: {printable(why)}\n"


async def _typed(text: str) -> str:
    """The line that somebody types behind ``text``; empty at the end of the input. A wait that is cancelled leaves
    nothing behind: neither a thread that the program would wait for, nor one that takes what is typed later."""
    sys.stderr.write(text)
    sys.stderr.flush()
    stopped, stop = os.pipe()
    reading = asyncio.ensure_future(asyncio.to_thread(_line, stopped))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        sys.stderr.write("\n")
        raise
    finally:
        os.write(stop, b"\0")
        await asyncio.wait([reading])
        os.close(stop)
        os.close(stopped)


def _line(stopped: int) -> str:
    """A line of the standard input; empty where there is something to read from ``stopped`` before."""
    try:
        typed = [sys.stdin.fileno()] if sys.stdin.isatty() else []
    except OSError:  # it has none: it is a stand-in
        typed = []
    if typed and sys.platform != "win32":  # a terminal gives a line at a time, so none is in Python's buffer
        ready, _, _ = select.select([*typed, stopped], [], [])
        if stopped in ready:
            return ""
    return sys.stdin.readline()


__all__ = ["prompt", "shown"]
