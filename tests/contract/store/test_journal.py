"""What every store promises about outcomes and claims."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from perdure.ports.store import Blob, Claim, Commit, Node, Outcome, RunRow, Store
from tests.contract.store.conftest import Database


def outcome(key: str, body: bytes = b"{}") -> Commit:
    return Commit(outcome=Outcome(key, "tool", body))


async def test_finds_what_was_recorded_and_nothing_else(store: Store):
    await store.commit(outcome("a", b"1"))
    await store.commit(outcome("b", b"2"))
    await store.claim("claimed", "me")
    assert await store.find_outcomes(["a", "claimed", "unknown", "b", "a"]) == {"a": b"1", "b": b"2"}
    assert await store.find_outcomes([]) == {}


async def test_finds_thousands_of_keys(store: Store):
    await asyncio.gather(*[store.commit(outcome(f"k{i}", b"%d" % i)) for i in range(1200)])
    found = await store.find_outcomes([f"k{i}" for i in range(1200)])
    assert found == {f"k{i}": b"%d" % i for i in range(1200)}


async def test_the_first_outcome_wins(database: Database):
    first, second = await database.open(), await database.open()
    assert await first.commit(outcome("a", b"first")) == b"first"
    assert await second.commit(outcome("a", b"late")) == b"first"
    assert await second.find_outcomes(["a"]) == {"a": b"first"}


async def test_a_late_outcome_leaves_the_run_alone(store: Store):
    def row(status: str) -> RunRow:
        return RunRow("c", "agent", "scope", None, status)

    await store.commit(Commit(outcome=Outcome("a", "model", b"1"), run=row("completed")))
    late = Commit(outcome=Outcome("a", "model", b"2"), run=row("running"))
    assert await store.commit(late) == b"1"
    kept = await store.get_run("c")
    assert kept is not None
    assert kept.status == "completed"


async def test_a_commit_without_outcome_returns_none(store: Store):
    assert await store.commit(Commit(nodes=[Node("n", None, b"[]")])) is None


async def test_the_first_owner_may_act_and_may_ask_twice(store: Store):
    assert await store.claim("k", "one") == Claim("new")
    assert await store.claim("k", "one") == Claim("new")


async def test_another_owner_hears_that_it_was_begun(store: Store):
    await store.claim("k", "one")
    assert await store.claim("k", "two") == Claim("begun", begun_by="one")
    assert await store.claim("k", "one") == Claim("new")


async def test_again_takes_the_claim_over(store: Store):
    await store.claim("k", "one")
    assert await store.claim("k", "two", again=True) == Claim("new", starts=2, begun_by="one")
    assert await store.claim("k", "two") == Claim("new", starts=2)
    assert await store.claim("k", "one") == Claim("begun", starts=2, begun_by="two")


async def test_owners_that_begin_are_counted(store: Store):
    for n in range(1, 4):
        for other in (f"owner-{n - 1}" if n > 1 else None, None):  # the same owner asking twice is one start
            assert await store.claim("k", f"owner-{n}", again=True) == Claim("new", starts=n, begun_by=other)
    assert await store.claim("other", "owner-1", again=True) == Claim("new", starts=1)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("owner", ["one", "two"])
async def test_a_recorded_outcome_wins_over_every_claim(store: Store, owner: str, again: bool):
    await store.claim("k", "one")
    await store.commit(outcome("k", b"done"))
    assert await store.claim("k", owner, again=again) == Claim("done", b"done")


async def test_an_outcome_without_a_claim_is_done_too(store: Store):
    await store.commit(outcome("k", b""))
    assert await store.claim("k", "one") == Claim("done", b"")


async def test_of_many_claims_at_once_one_is_new(database: Database):
    stores = [await database.open() for _ in range(3)]
    claims = [store.claim("k", f"{i}-{n}") for i, store in enumerate(stores) for n in range(20)]
    states = [claim.state for claim in await asyncio.gather(*claims)]
    assert sorted(states) == ["begun"] * 59 + ["new"]


CLAIMER = """
import asyncio, json, sys
from perdure.store import open_store

async def main(url, owner):
    store = open_store(url)
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    claims = [await store.claim(f"k{i}", owner) for i in range(200)]
    await store.close()
    print(json.dumps([store.store_id, [claim.state for claim in claims]]))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_claims_of_processes_at_once(database: Database):
    """They also create the store at once, and agree on its id."""
    url = database.other_process()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, url, f"owner-{i}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [json.loads(process.communicate()[0]) for process in processes]
    assert len({store_id for store_id, _ in answers}) == 1
    for states in zip(*[states for _, states in answers], strict=True):
        assert sorted(states) == ["begun", "begun", "new"]


async def test_everything_or_nothing(store: Store):
    """A row that the store cannot take makes the whole commit fail."""
    commit = Commit(
        nodes=[Node("n", None, b"[]")],
        blobs=[Blob("b", b"blob")],
        outcome=Outcome("a", "model", b"1"),
        run=RunRow("c", "agent", "scope", "n", None),  # type: ignore[arg-type]
    )
    with pytest.raises(Exception, match=r"(?i)not.null"):
        await store.commit(commit)
    assert await store.find_outcomes(["a"]) == {}
    assert await store.read_blobs(["b"]) == {}
    assert await store.list_runs() == []
    assert await store.commit(outcome("a", b"2")) == b"2"


async def test_a_claim_that_is_given_up_is_free_again(store: Store):
    await store.claim("k", "one")
    assert not await store.release_claim("k", "two")
    assert await store.release_claim("k", "one")
    assert not await store.release_claim("k", "one")
    assert await store.claim("k", "two") == Claim("new")


async def test_what_another_has_or_had_is_not_given_up(store: Store):
    await store.claim("taken", "one")
    await store.claim("taken", "two", again=True)
    assert not await store.release_claim("taken", "one")
    assert not await store.release_claim("taken", "two"), "the first owner may have acted"
    await store.claim("done", "one")
    await store.commit(outcome("done", b"done"))
    assert not await store.release_claim("done", "one")
    assert await store.claim("done", "two") == Claim("done", b"done")
