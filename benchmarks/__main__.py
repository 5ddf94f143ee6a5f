"""``python -m benchmarks``."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

import benchmarks
from benchmarks.actions import MEASURED, actions
from benchmarks.console import console
from benchmarks.contestants import CONTESTANTS, HOOKED, is_installed
from benchmarks.conversations import conversations
from benchmarks.copies import copies
from benchmarks.database import database, scaling
from benchmarks.events import events, following, replies, streaming
from benchmarks.hooks import hooks
from benchmarks.lab import open_lab
from benchmarks.lengths import lengths
from benchmarks.measures import QUICK, Figures, Scale, chosen, concurrent, histories, recovery, single
from benchmarks.output import keep_clean
from benchmarks.parked import parked
from benchmarks.postgres import is_installed as is_postgres_installed
from benchmarks.report import tables
from benchmarks.starts import starts
from benchmarks.web import web

MEASURES = {
    "single": single,
    "concurrent": concurrent,
    "history": histories,
    "recovery": recovery,
    "actions": actions,
    "events": events,
    "streaming": streaming,
    "replies": replies,
    "lengths": lengths,
    "hooks": hooks,
    "database": database,
    "scaling": scaling,
    "parked": parked,
    "conversations": conversations,
    "copies": copies,
    "web": web,
    "starts": starts,
    "console": console,
}
APART = ("parked", "conversations", "copies", "web", "console")
"""Only where they are named: they compare nothing with a floor."""


async def measure(scale: Scale, only: Sequence[str]) -> dict[str, Figures]:
    """What ``only`` names, measures or contestants; nothing named, everything."""
    measures = [name for name in MEASURES if name in only] or [name for name in MEASURES if name not in APART]
    who = chosen([name for name in CONTESTANTS if name in only])
    if measures == ["hooks"]:
        who = [one for one in who if one.name in HOOKED]
    if set(measures) <= {"starts", *APART}:
        who = []
    elif set(measures) <= {"database", "scaling", *APART}:
        who = [one for one in who if one.postgres] or [one for one in CONTESTANTS.values() if one.postgres]
    elif measures == ["actions"]:
        who = [one for one in who if one.name in MEASURED]
    elif set(measures) <= {"events", "streaming", *APART}:
        who = following(who) or following(chosen([]))  # no floor has to be there
    if not is_postgres_installed():
        if any(one.postgres for one in who):
            raise SystemExit("PostgreSQL and asyncpg are not installed: make bench installs requirements/postgres.txt")
        print("not measured: PostgreSQL, whose packages (requirements/postgres.txt) are not installed", file=sys.stderr)
    if missing := [one.name for one in who if not is_installed(one)]:
        raise SystemExit(f"{' and '.join(missing)}: not installed; make bench PEERS=1 installs requirements/peers.txt")
    results: dict[str, Figures] = {}
    with_postgres = is_postgres_installed() and bool(set(measures) & {"parked", "conversations", "copies", "web"})
    async with open_lab([one.name for one in who], with_postgres=with_postgres) as lab:
        for name in measures:
            began = time.perf_counter()
            results[name] = await MEASURES[name](lab, who, scale)
            print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return results


def machine() -> dict[str, Any]:
    """Where this was measured."""
    return {
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Entry."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=benchmarks.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*MEASURES, *CONTESTANTS]
    parser.add_argument("--quick", action="store_true", help="less of everything: about a minute, and noisy")
    parser.add_argument("--only", action="append", default=[], choices=names, help="a measure or contestant; repeat it")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    for given in dataclasses.fields(Scale):
        default = getattr(Scale(), given.name)
        kind = _lengths if isinstance(default, tuple) else int
        parser.add_argument(f"--{given.name.replace('_', '-')}", type=kind, help=f"default {default}")
    options = parser.parse_args(argv)
    changed = {
        given.name: value for given in dataclasses.fields(Scale) if (value := getattr(options, given.name)) is not None
    }
    scale = dataclasses.replace(QUICK if options.quick else Scale(), **changed)
    logging.basicConfig(level=logging.ERROR)
    keep_clean()
    where = machine()  # before the load is our own
    results = asyncio.run(measure(scale, options.only))
    table = tables(results, runs=scale.runs)
    if options.output == "json":
        whole = {"machine": where, "scale": dataclasses.asdict(scale), "results": results, "table": table.splitlines()}
        print(json.dumps(whole, indent=2))
    else:
        print(", ".join(f"{key} {value}" for key, value in where.items()), table, sep="\n\n")
    sys.stdout.flush()
    os._exit(0)  # a Temporal client at the interpreter's exit aborts now and then (FACTS.md)


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    main()
