"""What every store promises about nodes, blobs and runs."""

from __future__ import annotations

import pytest

from perdure.errors import TranscriptCorruptedError
from perdure.ports.store import Blob, Commit, EventBatch, NewEvent, Node, Outcome, RunRow, Store, build_batch_token
from perdure.store.chain import Chain
from perdure.types.events import RunEvent
from perdure.types.messages import Message
from perdure.types.subagents import Lineage, PathStep
from tests.contract.store.conftest import Database


def line(count: int, name: str = "n", parent: str | None = None) -> list[Node]:
    nodes = []
    for i in range(count):
        nodes.append(Node(f"{name}{i}", parent, b"[%d]" % i))
        parent = nodes[-1].hash
    return nodes


async def test_a_chain_comes_root_first(store: Store):
    nodes = line(5)
    await store.commit(Commit(nodes=nodes))
    assert await store.read_nodes("n4") == nodes
    assert await store.read_nodes("n2") == nodes[:3]


async def test_a_chain_stops_at_what_is_known(store: Store):
    nodes = line(6)
    await store.commit(Commit(nodes=nodes))
    assert await store.read_nodes("n5", until=["n3"]) == nodes[4:]
    assert await store.read_nodes("n5", until=["n1", "n4", "other"]) == nodes[5:]
    assert await store.read_nodes("n5", until=["n5"]) == []
    many = [f"x{i}" for i in range(1500)]
    assert await store.read_nodes("n5", until=[*many, "n3"]) == nodes[4:]


async def test_a_long_chain(store: Store):
    nodes = line(3000)
    await store.commit(Commit(nodes=nodes))
    assert await store.read_nodes("n2999") == nodes


async def test_forks_share_their_prefix(store: Store):
    trunk, branch = line(4), line(2, "b", "n1")
    await store.commit(Commit(nodes=[*trunk, *branch]))
    assert await store.read_nodes("b1") == trunk[:2] + branch
    assert await store.read_nodes("b1", until=["n3", "n1"]) == branch


async def test_writing_again_changes_nothing(database: Database):
    nodes = line(3)
    for _ in range(2):
        store = await database.open()
        await store.commit(Commit(nodes=nodes, blobs=[Blob("b", b"blob")]))
        await store.commit(Commit(nodes=[*nodes, *line(1, "m", "n2")]))
    assert await store.read_nodes("m0") == [*nodes, *line(1, "m", "n2")]
    assert await store.read_blobs(["b"]) == {"b": b"blob"}


async def test_a_missing_node_is_named(store: Store):
    with pytest.raises(TranscriptCorruptedError, match="nowhere") as caught:
        await store.read_nodes("nowhere")
    assert caught.value.hint


async def test_a_node_without_its_parent_is_refused(store: Store):
    outcome = Outcome("k", "model", b"{}")
    with pytest.raises(TranscriptCorruptedError, match="n1") as caught:
        await store.commit(Commit(nodes=line(4)[2:], outcome=outcome))
    assert "backup" in caught.value.hint
    assert await store.find_outcomes(["k"]) == {}, "nothing of the commit is written"
    await store.commit(Commit(nodes=line(4), outcome=outcome))
    assert len(await store.read_nodes("n3", until=["n1"])) == 2


async def test_blobs(store: Store):
    large = bytes(range(256)) * 80_000  # 20 MB
    await store.commit(Commit(blobs=[Blob("large", large), Blob("empty", b"")]))
    assert await store.read_blobs(["large", "missing", "empty"]) == {"large": large, "empty": b""}
    assert await store.read_blobs([]) == {}


async def test_a_chain_survives_the_store(database: Database):
    writer = await database.open()
    chain, head = Chain(writer), None
    said = [Message.user("hi"), Message.assistant("x" * 100_000), Message.user("\N{SNOWMAN}")]
    for message in said:
        node, blobs = chain.extend(head, [message])
        await writer.commit(Commit(nodes=[node], blobs=blobs))
        head = node.hash
    assert list(await Chain(await database.open()).load(head)) == said


async def test_the_store_has_one_id(database: Database):
    first, second = await database.open(), await database.open()
    assert first.store_id
    assert first.store_id == second.store_id


def row(context_id: str, **changes: object) -> RunRow:
    fields = {"agent": "support", "scope": "s", "head": None, "status": "running"} | changes
    return RunRow(context_id, **fields)  # type: ignore[arg-type]


async def test_runs_newest_first_and_filtered(store: Store):
    for name, agent, status in [("1", "a", "running"), ("2", "b", "running"), ("3", "a", "completed")]:
        await store.commit(Commit(run=row(name, agent=agent, status=status)))
    await store.commit(Commit(run=row("1", agent="a", status="running", iterations=9)))

    async def ids(**filters: object) -> list[str]:
        return [run.context_id for run in await store.list_runs(**filters)]  # type: ignore[arg-type]

    assert await ids() == ["3", "2", "1"]
    assert await ids(limit=2) == ["3", "2"]
    assert await ids(agent="a") == ["3", "1"]
    assert await ids(status="running") == ["2", "1"]
    assert await ids(agent="a", status="running") == ["1"]
    assert await ids(agent="nobody") == []

    pages, after = [], None
    while page := await store.list_runs(agent="a", after=after, limit=1):
        pages.append(page[0].context_id)
        after = page[0].created_at, page[0].context_id
    assert pages == ["3", "1"]
    first = (await store.list_runs(limit=1))[0]
    assert await ids(after=(first.created_at, "")) == ["2", "1"], "before all of that time"
    assert await ids(after=(first.created_at, "9")) == ["3", "2", "1"]
    assert await ids(after=("", "")) == []


async def test_a_run_below_another_has_its_root_which_its_id_does_not_tell(store: Store):
    steps = (PathStep(agent="a", call_id="1"),)
    await store.append(EventBatch("acme/1", [NewEvent(RunEvent(state="started"))], build_batch_token("t")))
    lineage = Lineage(root="acme", agent="a", path=steps)
    events = EventBatch("acme/2", [NewEvent(RunEvent(state="started"))], build_batch_token("t"), lineage=lineage)
    await store.commit(Commit(run=row("acme/2", result=b"{}"), events=events))
    for name in ("acme", "acme/1"):
        await store.commit(Commit(run=row(name, result=b"{}")))
    await store.commit(Commit(run=row("acme/2", result=b"{}", iterations=2)))  # opened again, without a parent
    listed = await store.list_runs()
    assert {run.context_id: run.root for run in listed} == {"acme": None, "acme/1": None, "acme/2": "acme"}
    assert {run.result for run in listed} == {None}, "it may have megabytes"
    assert [run.context_id for run in await store.list_runs(roots=True)] == ["acme/1", "acme"]
    assert [run.context_id for run in await store.list_runs(roots=True, limit=1)] == ["acme/1"]
    found = await store.get_run("acme/2")
    assert found is not None
    assert (found.root, found.result) == ("acme", b"{}")


@pytest.mark.parametrize("scope", ["s", "another"], ids=["in its scope", "of another scope"])
async def test_a_run_is_not_overwritten_by_what_was_asked_for_earlier(store: Store, scope: str):
    await store.commit(Commit(run=row("c", asked_at="2026-01-01T00:00:02", status="cancelled")))
    late = Commit(
        nodes=[Node("n", None, b"[]")],
        outcome=Outcome("k", "model", b"{}"),
        run=row("c", scope=scope, asked_at="2026-01-01T00:00:01", status="running"),
    )
    assert await store.commit(late) == b"{}"  # the reply was paid for: everything but the row is kept
    assert await store.read_nodes("n") == [Node("n", None, b"[]")]
    kept = await store.get_run("c")
    assert kept is not None
    assert (kept.status, kept.scope, kept.asked_at) == ("cancelled", "s", "2026-01-01T00:00:02")
    for asked_at in ("2026-01-01T00:00:02", "2026-01-01T00:00:03"):  # the same call once more, and a later one
        await store.commit(Commit(run=row("c", scope=scope, asked_at=asked_at, status="running")))
        changed = await store.get_run("c")
        assert changed is not None
        assert (changed.status, changed.scope, changed.asked_at) == ("running", scope, asked_at)


async def test_a_run_keeps_when_it_was_made(store: Store):
    await store.commit(Commit(run=row("c", created_at="never", updated_at="never")))
    made = await store.get_run("c")
    assert made is not None
    assert made.created_at == made.updated_at
    assert made.created_at.startswith("2026-01-01T")
    await store.commit(
        Commit(
            outcome=Outcome("k", "model", b"{}"),
            run=row("c", agent="other", scope="t", head="h", status="failed", iterations=3, result=b"{}"),
        )
    )
    changed = await store.get_run("c")
    assert changed is not None
    assert (changed.created_at, changed.updated_at > made.updated_at) == (made.created_at, True)
    assert (changed.agent, changed.scope, changed.head, changed.status) == ("other", "t", "h", "failed")
    assert (changed.iterations, changed.result) == (3, b"{}")
    assert await store.get_run("other") is None
