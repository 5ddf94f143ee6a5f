"""``python -m benchmarks.cluster``: runs that wait for approval, on a Temporal server and a store in PostgreSQL.

Both are those of ``TEMPORAL_ADDRESS`` and ``PERDURE_STORE_URL``: ``make cluster`` prints the file that sets them. The
workers are the bench's own, on a task queue of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import asyncpg
from temporalio.client import Client as TemporalClient

from benchmarks import parked
from benchmarks.output import keep_clean
from benchmarks.postgres import read_size


async def measure(count: int, workers: int, cache: int) -> dict[str, Any]:
    """The figures of ``parked.park``, and what the store has become. Raises ``AssertionError`` as ``parked.check``."""
    address, store_url = os.environ["TEMPORAL_ADDRESS"], os.environ["PERDURE_STORE_URL"]
    parked.CACHE = cache
    database = await asyncpg.connect(store_url)
    name = await database.fetchval("SELECT current_database()")

    async def look() -> dict[str, int]:
        return await read_size(database, name)

    before = (await look())["bytes"]
    with tempfile.TemporaryDirectory() as folder:
        temporal = await TemporalClient.connect(address)
        figures = await parked.park(
            temporal, address, Path(folder), count, store_url=store_url, workers=workers, look=look
        )
        parked.check(figures)
    after = (await look())["bytes"]
    await database.close()
    parked_bytes = figures.pop("bytes") - before
    return {**figures, "bytes_per_parked_run": parked_bytes // count, "bytes_per_run": (after - before) // count}


def main() -> None:
    """Entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--parked", type=int, default=1000, help="runs that wait at once (default 1000)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--cache", type=int, default=100, help="workflows that a worker keeps (default 100)")
    options = parser.parse_args()
    for name in ("TEMPORAL_ADDRESS", "PERDURE_STORE_URL"):
        if not os.environ.get(name):
            parser.error(f"{name} is not set: start `make cluster`, and read the file that it prints")
    keep_clean()
    load = os.getloadavg()[0]
    figures = asyncio.run(measure(options.parked, options.workers, options.cache))
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    for name, value in figures.items():
        if name not in ("decided", "ran"):
            print(f"{name:<20} {value:.1f}" if isinstance(value, float) else f"{name:<20} {value}")
    sys.stdout.flush()
    os._exit(0)  # a Temporal client at the interpreter's exit aborts now and then (FACTS.md)


if __name__ == "__main__":
    main()
