"""Where a fork begins: any point of any conversation, however its messages lie in nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidInputError
from perdure.loop.transcript import list_open_calls
from perdure.ports.store import Commit
from perdure.store import Chain
from perdure.store.transcripts import find_fork_point
from perdure.testing import MemoryStore
from perdure.types.messages import Message, ToolCallPart, ToolResultPart
from perdure.types.outcome_unknown import FORKED


def asks(*ids: str) -> Message:
    return Message.assistant("", *(ToolCallPart(id=one, name="look", arguments={}) for one in ids))


def found(*ids: str, text: str = "found") -> Message:
    return Message(role="tool", parts=tuple(ToolResultPart(call_id=one, name="look", content=text) for one in ids))


SAID = [
    Message.system("Be brief."),
    Message.user("Go."),
    asks("a", "b"),
    found("a"),
    Message.system("Be brief, please."),
    found("b"),
    Message.user("Faster."),
    asks("c"),
    found("c", text="x" * 100_000),
    Message.assistant("Done."),
    Message.user("Thanks."),
    asks("d"),
]
ENDS = [0, 4, 9, 10, 12]
"""What belongs to the conversation up to each iteration ends before these."""


async def written(store: MemoryStore, said: list[Message], breaks: set[int]) -> str | None:
    chain, head, begin = Chain(store), None, 0
    for end in sorted({*breaks, len(said)}):
        node, blobs = chain.extend(head, said[begin:end])
        await store.commit(Commit(nodes=[node], blobs=blobs))
        head, begin = node.hash, end
    return head


async def forked(store: MemoryStore, head: str | None, at: int | None, **results: str) -> list[Message]:
    place = await find_fork_point(store, head, at, results)
    chain = Chain(store)
    if not place.extra_messages:
        return list(await chain.load(place.base_head))
    node, blobs = chain.extend(place.base_head, place.extra_messages)
    await store.commit(Commit(nodes=[node], blobs=blobs))
    return list(await chain.load(node.hash))


@given(st.sets(st.integers(1, len(SAID) - 1)), st.integers(0, 4))
async def test_every_point_of_every_cutting_into_nodes(breaks: set[int], at: int) -> None:
    store = MemoryStore()
    await store.open()
    said = await forked(store, await written(store, SAID, breaks), at)
    expected = [*SAID[: ENDS[at]], *([SAID[5]] if at == 1 else [])]
    assert said[: len(expected)] == expected
    assert list_open_calls(said) == []
    assert [part.content for message in said[len(expected) :] for part in message.tool_results] == (
        [FORKED] if at == 4 else []
    )


@given(st.sets(st.integers(1, len(SAID) - 1)))
async def test_results_in_the_place_of_others(breaks: set[int]) -> None:
    store = MemoryStore()
    await store.open()
    head = await written(store, SAID, breaks)
    for call, at in (("a", 1), ("b", 1), ("c", 2), ("d", 4)):
        said = await forked(store, head, None, **{call: "another"})
        texts = {part.call_id: part.content for message in said for part in message.tool_results}
        assert texts[call] == "another"
        assert sum(message.role == "assistant" for message in said) == at
        assert list_open_calls(said) == []
        kept = [part for message in said for part in message.tool_results if part.call_id != call]
        assert all(part.content in ("found", "x" * 100_000) for part in kept)
    with pytest.raises(InvalidInputError, match="no call 'c' in iteration 1"):
        await find_fork_point(store, head, 1, {"c": "x"})


async def test_the_end_is_shared_and_says_whether_it_is_answered() -> None:
    store = MemoryStore()
    await store.open()
    head = await written(store, SAID[:10], {2, 5})
    place = await find_fork_point(store, head)
    assert (place.base_head, place.extra_messages, place.is_answered, place.iteration) == (head, (), True, 3)
    assert not (await find_fork_point(store, await written(store, SAID[:11], set()))).is_answered
    assert not (await find_fork_point(store, head, 2)).is_answered
    assert (await find_fork_point(store, None, 0)).base_head is None
    with pytest.raises(InvalidInputError, match="no iteration 4: the conversation has 3"):
        await find_fork_point(store, head, 4)
