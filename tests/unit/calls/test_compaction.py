"""The compaction stage by itself: views that do not depend on what is kept, and every wire format takes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Compaction
from perdure.calls.summary import format_message_text
from perdure.calls.view import ConversationViewCache, estimate_message_bytes
from perdure.errors import DefinitionError
from perdure.loop.compaction import ConversationView
from perdure.ports.model import ModelRequest
from perdure.store.cache import ENTRY_BYTES, ByteLRU
from perdure.types.compaction import CompactionSettings, build_compaction_settings
from perdure.types.messages import File, Message, TextPart, ToolCallPart, ToolResultPart
from tests.support.formats import FORMATS
from tests.support.transcripts import transcripts


def ways(*given: Compaction) -> CompactionSettings:
    found = build_compaction_settings("test", given)
    assert found is not None
    return found


def test_a_kind_is_given_once() -> None:
    window = Compaction.window(messages=8)
    for compactions in ([window, window], [window, Compaction.window(messages=9)]):
        with pytest.raises(DefinitionError, match="window twice"):
            build_compaction_settings("test", compactions)


def conversation(count: int) -> list[Message]:
    return [Message.user(f"message {n}") if n % 2 == 0 else Message.assistant(f"reply {n}") for n in range(count)]


def test_the_next_call_reads_on_where_the_last_one_stopped() -> None:
    folds, asked, messages = (
        ConversationViewCache(ByteLRU(10**9)),
        ways(Compaction.window(messages=8)),
        conversation(30),
    )
    first = folds.get_view("run", asked, 0, messages[:20])
    second = folds.get_view("run", asked, 0, messages)
    assert second.all_messages == messages
    assert [a is b for a, b in zip(second.all_messages, first.all_messages, strict=False)] == [True] * 20
    at_once = ConversationView(asked)
    at_once.add_messages(messages)
    assert second.build_sent_messages() == at_once.build_sent_messages()


def test_what_a_call_is_given_besides_is_not_kept() -> None:
    folds, asked, messages = ConversationViewCache(ByteLRU(10**9)), ways(Compaction.window(messages=8)), conversation(7)
    folds.get_view("run", asked, 0, messages).add_messages(conversation(20))
    assert folds.get_view("run", asked, 0, messages).build_sent_messages() == messages


@pytest.mark.parametrize(
    "other",
    [
        (Compaction.window(messages=8), 1, conversation(30)),
        (Compaction.window(messages=6), 0, conversation(30)),
        (Compaction.window(messages=8), 0, conversation(10)),
        (Compaction.window(messages=8), 0, [Message.user("Something else."), *conversation(30)[1:]]),
    ],
    ids=["tighter", "another window", "shorter", "another conversation"],
)
def test_another_conversation_or_another_view_is_read_anew(other: tuple[Compaction, int, list[Message]]) -> None:
    folds = ConversationViewCache(ByteLRU(10**9))
    folds.get_view("run", ways(Compaction.window(messages=8)), 0, conversation(30))
    way, tighter, messages = other
    fresh = ConversationView(ways(way), tighter)
    fresh.add_messages(messages)
    assert folds.get_view("run", ways(way), tighter, messages).build_sent_messages() == fresh.build_sent_messages()


def test_only_so_much_is_kept() -> None:
    asked, each = ways(Compaction.window(messages=8)), sum(map(estimate_message_bytes, conversation(20))) + ENTRY_BYTES
    kept: ByteLRU[Any] = ByteLRU(2 * each)
    folds = ConversationViewCache(kept)

    def names() -> list[str]:
        return [name for name in (*given, "long") if name in kept]

    given = {f"run {n}": conversation(20) for n in range(4)}
    for name, messages in given.items():
        folds.get_view(name, asked, 0, messages)
    assert (names(), kept.budget.used) == (["run 2", "run 3"], 2 * each)
    folds.get_view("run 2", asked, 0, [*given["run 2"], Message.user("More.")])
    assert names() == ["run 2"], "one that grows counts for what it has become"
    folds.get_view("long", asked, 0, conversation(60))
    assert names() == ["run 2"], "nothing leaves for one that has no room at all"


def test_a_few_large_results_count_for_what_they_are() -> None:
    kept: ByteLRU[Any] = ByteLRU(1_000_000)
    folds, asked = ConversationViewCache(kept), ways(Compaction.window(messages=8))
    large = [
        Message.user("Go."),
        Message(role="tool", parts=(ToolResultPart(call_id="a", name="read", content="x" * 600_000),)),
    ]
    folds.get_view("first", asked, 0, large)
    folds.get_view("second", asked, 0, large)
    assert ["first" in kept, "second" in kept] == [False, True]


def test_a_conversation_as_text() -> None:
    assert (
        format_message_text(Message.user(["Look:", File(b"\x89PNG\r\n\x1a\n", name="a.png")]))
        == "[user]\nLook:\n[file a.png]"
    )
    call = ToolCallPart(id="1", name="f", arguments={"ä": 1})
    assert format_message_text(Message.assistant("Yes.", call)) == '[assistant]\nYes.\n(calls f with {"ä": 1})'
    result = ToolResultPart(call_id="1", name="f", content="No.", is_error=True)
    assert format_message_text(Message(role="tool", parts=(result,))) == "[tool]\n(error of f:) No."
    assert format_message_text(Message(role="assistant", parts=())) == ""
    assert len(format_message_text(Message(role="user", parts=(TextPart(text="x" * 50_000),)))) < 9_000


views = st.sampled_from(
    [
        (Compaction.truncate(after=1, keep=0, every=1),),
        (Compaction.clear_results(after=1, every=1),),
        (Compaction.window(messages=4),),
        (Compaction.window(tokens=100), Compaction.truncate(after=1, keep=3, every=1)),
        (Compaction.window(messages=5), Compaction.truncate(after=2, keep=0), Compaction.clear_results(after=1)),
    ]
)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_every_format_takes_every_view(name: str, data: st.DataObject) -> None:
    """Views of conversations with anything in them, by the rules of the strict servers."""
    of = FORMATS[name]
    messages = data.draw(transcripts())
    fold = ConversationView(ways(*data.draw(views)))
    fold.add_messages(messages)
    request: dict[str, Any] = {"model": of.model, "messages": fold.build_sent_messages()}
    of.check(of.encode(ModelRequest(**request), of.own.origin))
