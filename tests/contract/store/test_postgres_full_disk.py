"""The server's disk is full: what fits no more is refused whole, and goes on once there is space."""

from __future__ import annotations

import random

import pytest

from perdure.errors import StoreError
from perdure.ports.store import Commit, EventBatch, NewEvent, Outcome
from perdure.store.postgres import PostgresStore
from perdure.types.events import LimitReached
from tests.support.postgres import build_url, execute, make_server_folder, mount_small_disk, run_server

pytestmark = pytest.mark.postgres


def build_commit(number: int) -> Commit:
    body = random.Random(number).randbytes(500_000)  # nothing that the server could compress
    events = EventBatch("c", [NewEvent(LimitReached(limit=number))])
    return Commit(outcome=Outcome(f"k{number}", "tool", body), events=events)


async def commit_until_refused(store: PostgresStore, commits: list[Commit]) -> tuple[int, StoreError]:
    for written, commit in enumerate(commits):
        try:
            await store.commit(commit)
        except StoreError as error:
            return written, error
    raise AssertionError("the disk was not full")


async def test_a_full_disk_and_space_again():
    """A tablespace of the database. Where its log (``pg_wal``) has no space left, the server stops itself."""
    with mount_small_disk(24) as disk, run_server() as server:
        data, ballast = disk / "data", disk / "ballast"
        ballast.write_bytes(b"x" * 6_000_000)
        make_server_folder(data)
        await execute(
            server.url, f"CREATE TABLESPACE small LOCATION '{data}'", "CREATE DATABASE small TABLESPACE small"
        )
        store = PostgresStore(build_url(server.url, "small"))
        await store.open()
        commits = [build_commit(number) for number in range(40)]
        written, refusal = await commit_until_refused(store, commits)
        assert "no disk, memory or connections left" in refusal.message
        assert refusal.retryable
        for _ in range(2):
            with pytest.raises(StoreError, match="53100"):
                await store.commit(commits[written])
        assert len(await store.find_outcomes([f"k{number}" for number in range(40)])) == written > 0
        ballast.unlink()
        await store.commit(commits[written])
        outcomes = [commit.outcome for commit in commits[: written + 1] if commit.outcome is not None]
        assert await store.find_outcomes([outcome.key for outcome in outcomes]) == {
            outcome.key: outcome.body for outcome in outcomes
        }
        assert [row.seq for row in await store.read_events("c")] == list(range(1, written + 2))
        await store.close()
