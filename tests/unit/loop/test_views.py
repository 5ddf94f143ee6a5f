"""Views: what a model is sent of a conversation, cut and left out at steps, valid whatever it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import DefinitionError
from perdure.loop.compaction import WINDOW_NOTE_ID, ConversationView, truncate_message
from perdure.types.compaction import Compaction, CompactionSettings, build_compaction_settings
from perdure.types.messages import (
    FilePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    encode_canonical,
)

LONG = "x" * 1000


def ways(*given: Compaction) -> CompactionSettings:
    checked = build_compaction_settings("test", list(given))
    assert checked is not None
    return checked


def view(messages: list[Message], *given: Compaction, tighter: int = 0) -> list[Message]:
    fold = ConversationView(ways(*given), tighter)
    fold.add_messages(messages)
    return fold.build_sent_messages()


def reply(number: int, *, tokens: int = 0, size: int = 1000) -> Message:
    parts: tuple[Part, ...] = (
        ThinkingPart(text="t" * size),
        TextPart(text="s" * size),
        ToolCallPart(id=f"c{number}", name="note", arguments={"what": "a" * size, "n": number}),
    )
    return Message(role="assistant", parts=parts, usage=Usage(input_tokens=tokens, output_tokens=1) if tokens else None)


def result(number: int, size: int = 1000) -> Message:
    return Message(role="tool", parts=(ToolResultPart(call_id=f"c{number}", name="note", content="r" * size),))


def loop(iterations: int, *, start: int = 0, size: int = 1000) -> list[Message]:
    """A task, and a call with its result in each iteration."""
    messages = [Message.user("The task.")] if start == 0 else []
    for number in range(start, start + iterations):
        messages += [reply(number, size=size), result(number, size)]
    return messages


def cut_at(messages: list[Message]) -> int:
    """How many replies from the front are cut."""
    replies = [message for message in messages if message.role == "assistant"]
    marks = ["characters cut]" in str(message.parts) for message in replies]
    assert marks == sorted(marks, reverse=True), "the old ones are cut, the new ones whole"
    return sum(marks)


@pytest.mark.parametrize(("replies", "old"), [(0, 0), (3, 0), (4, 1), (5, 2), (9, 6)])
def test_truncates_as_soon_as_so_many_replies_have_followed(replies: int, old: int) -> None:
    assert cut_at(view(loop(replies), Compaction.truncate(after=3, every=1))) == old


@pytest.mark.parametrize(("replies", "old"), [(3, 0), (5, 0), (6, 3), (8, 3), (9, 6)])
def test_by_itself_it_truncates_in_steps(replies: int, old: int) -> None:
    assert cut_at(view(loop(replies), Compaction.truncate(after=3))) == old


def test_truncation_leaves_texts_and_results_and_the_transcript_alone() -> None:
    messages = loop(2)
    before = encode_canonical(messages)
    sent = view(messages, Compaction.truncate(after=1, keep=10))
    thinking, text, call = sent[1].parts
    assert isinstance(thinking, ThinkingPart)
    assert thinking.text == "t" * 10 + "… [990 characters cut]"
    assert isinstance(call, ToolCallPart)
    assert call.arguments == {"what": "a" * 10 + "… [990 characters cut]", "n": 0}
    assert text is messages[1].parts[1]
    assert [sent[0], *sent[2:]] == [messages[0], *messages[2:]]
    assert encode_canonical(messages) == before


@pytest.mark.parametrize(
    "arguments",
    [{"a": {"deep": [LONG]}}, {f"k{n}": "short" for n in range(400)}, {"a": [1] * 900}, {"é": "é" * 900}],
)
def test_arguments_of_any_shape_are_cut(arguments: dict[str, Any]) -> None:
    message = Message.assistant("", ToolCallPart(id="c", name="f", arguments=arguments))
    assert len(truncate_message(message, 50).model_dump_json()) < len(message.model_dump_json()) / 2


def test_what_would_not_get_shorter_stays_the_same_message() -> None:
    message = reply(0, size=20)
    assert truncate_message(message, 15) is message


def test_a_signed_reply_that_is_cut_is_nobodys_own() -> None:
    signed: tuple[Part, ...] = (
        ThinkingPart(text=LONG, provider="anthropic", opaque={"signature": "s"}),
        OpaquePart(provider="anthropic", data={"type": "redacted_thinking"}),
        TextPart(text="Said.", provider="anthropic", opaque={"citations": []}),
        ToolCallPart(id="c", name="f", provider="google", opaque={"thoughtSignature": "s"}),
    )
    thinking, text, call = truncate_message(Message(role="assistant", parts=signed), 10).parts
    assert (thinking, text, call) == (
        ThinkingPart(text="x" * 10 + "… [990 characters cut]"),
        TextPart(text="Said."),
        ToolCallPart(id="c", name="f"),
    )
    short = Message(role="assistant", parts=(ThinkingPart(text="Hm.", provider="a", opaque={"signature": "s"}),))
    assert truncate_message(short, 10) is short


def test_old_results_become_notes() -> None:
    messages = loop(3)
    picture = FilePart(media_type="image/png", url="https://example.com/a.png")
    part = ToolResultPart(call_id="c0", name="note", content="short", files=(picture,), is_error=True)
    messages[2] = Message(role="tool", parts=(part,))
    sent = view(messages, Compaction.clear_results(after=1, every=1))
    contents = [part.content for message in sent for part in message.tool_results]
    assert contents == [
        "[An old result, left out to save space: 5 characters, 1 file.]",
        "[An old result, left out to save space: 1,000 characters.]",
        "r" * 1000,
    ]
    assert sent[2].tool_results[0].is_error
    assert sent[2].tool_results[0].files == ()


def test_a_window_keeps_the_task_and_drops_to_half() -> None:
    messages = loop(10)
    whole = view(messages[:20], Compaction.window(messages=20))
    assert whole == messages[:20]
    sent = view(messages, Compaction.window(messages=20))
    assert sent[0] == messages[0]
    assert (sent[1].id, sent[1].text) == (WINDOW_NOTE_ID, "[12 earlier messages were left out here to save space.]")
    assert sent[2:] == messages[13:]


def test_a_window_of_tokens_goes_by_what_the_provider_counted() -> None:
    messages = [Message.user("The task.")]
    for number in range(20):
        messages += [reply(number, tokens=500 * (number + 1), size=40), result(number, 40)]
    sent = view(messages, Compaction.window(tokens=6000))
    assert messages[0] in sent
    assert 4 <= len(sent) < 30, "estimates alone would have kept everything"
    assert view(messages[:20], Compaction.window(tokens=6000)) == messages[:20]


def test_a_tightened_window_leaves_out_more_until_nothing_is_left_to_leave_out() -> None:
    messages = loop(30)
    sizes = []
    for tighter in range(12):
        fold = ConversationView(ways(Compaction.window(tokens=8000)), tighter)
        fold.add_messages(messages)
        sizes.append(len(fold.build_sent_messages()))
        if not fold.can_tighten:
            break
    assert sizes == sorted(sizes, reverse=True)
    assert fold.build_sent_messages()[-2:] == messages[-2:]
    assert sizes[-1] == 4, "the task, the note, the last call and its result"


def test_a_tightened_window_does_not_go_by_what_was_counted_for_more_than_it_lets_through() -> None:
    messages = [Message.user("The task.")]
    for number in range(8):
        messages += [reply(number, tokens=3000, size=40), result(number, 40)]
    assert view(messages, Compaction.window(tokens=4000), tighter=1) == messages
    assert len(view(messages, Compaction.window(tokens=2000))) < len(messages)


# --- what holds for every conversation


def parts_of(draw: st.DrawFn, number: int) -> Message:
    calls = draw(st.integers(0, 3))
    size = draw(st.sampled_from([0, 5, 300, 3000]))
    thinking: tuple[Part, ...] = (ThinkingPart(text="t" * size),) if draw(st.booleans()) else ()
    asked = tuple(ToolCallPart(id=f"{number}-{n}", name="f", arguments={"a": "a" * size}) for n in range(calls))
    tokens = draw(st.sampled_from([0, 100, 1000, 9000]))
    usage = Usage(input_tokens=tokens, output_tokens=1)
    return Message(role="assistant", parts=(*thinking, TextPart(text=f"reply {number}"), *asked), usage=usage)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    for number in range(draw(st.integers(1, 25))):
        users = draw(st.lists(st.sampled_from(["", "u" * 900]), min_size=0 if messages else 1, max_size=2))
        messages += [Message.user(f"user {number} {text}") for text in users]
        messages.append(said := parts_of(draw, number))
        if said.tool_calls:
            size = draw(st.sampled_from([0, 90, 5000]))
            parts = tuple(ToolResultPart(call_id=c.id, name="f", content="r" * size) for c in said.tool_calls)
            messages.append(Message(role="tool", parts=parts))
    return messages


kinds = st.tuples(
    st.none() | st.builds(Compaction.truncate, after=st.integers(1, 6), every=st.none() | st.integers(1, 5)),
    st.none() | st.builds(Compaction.clear_results, after=st.integers(1, 6), every=st.none() | st.integers(1, 5)),
    st.none()
    | st.builds(Compaction.window, messages=st.integers(4, 20))
    | st.builds(Compaction.window, tokens=st.integers(100, 20_000))
    | st.builds(Compaction.window, messages=st.integers(4, 20), tokens=st.integers(100, 20_000)),
).filter(any)


@given(conversations(), kinds, st.integers(0, 3), st.integers(0))
def test_every_view_is_valid_and_does_not_depend_on_how_it_was_read(
    messages: list[Message], given: tuple[Compaction | None, ...], tighter: int, somewhere: int
) -> None:
    asked = ways(*(way for way in given if way is not None))
    step_by_step = ConversationView(asked, tighter)
    for end in range(1, len(messages) + 1):
        step_by_step.add_messages(messages[end - 1 : end])
        sent = step_by_step.build_sent_messages()
        if end in (len(messages), 1 + somewhere % len(messages)):
            at_once = ConversationView(asked, tighter)
            at_once.add_messages(messages[:end])
            assert sent == at_once.build_sent_messages()
        check_valid(sent, messages[:end])


def check_valid(sent: list[Message], messages: list[Message]) -> None:
    assert sent[0].role == "user"
    first = next(message for message in messages if message.role == "user")
    assert sent[0] == first, "the task stays"
    assert sent[-1].role == messages[-1].role
    for place, message in enumerate(sent):
        asked = [part.id for part in message.tool_calls]
        if asked and place + 1 < len(sent):
            assert [part.call_id for part in sent[place + 1].tool_results] == asked
        if message.role == "tool":
            assert sent[place - 1].role == "assistant"
            assert [part.id for part in sent[place - 1].tool_calls] == [p.call_id for p in message.tool_results]


@pytest.mark.parametrize(
    ("way", "most"),
    [
        (Compaction.truncate(after=10), 20),
        (Compaction.clear_results(after=10), 20),
        (Compaction.window(messages=40), 21),
        (Compaction.window(tokens=20_000), 42),
    ],
    ids=["truncate", "clear_results", "messages", "tokens"],
)
def test_a_view_begins_as_the_one_before_but_at_steps(way: Compaction, most: int) -> None:
    """200 iterations: how often a provider's cache is of no use."""
    fold = ConversationView(ways(way))
    fold.add_messages([Message.user("The task.")])
    before: list[Message] = fold.build_sent_messages()
    steps = 0
    for number in range(200):
        fold.add_messages([reply(number), result(number)])
        sent = fold.build_sent_messages()
        steps += sent[: len(before)] != before
        before = sent
    assert 1 <= steps <= most


# --- definitions


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Compaction.truncate(after=0), "truncate: after must be greater than or equal to 1, not 0"),
        (lambda: Compaction.truncate(after=1, keep=-1), "keep must be"),
        (lambda: Compaction.truncate(after=1, every=0), "every must be"),
        (lambda: Compaction.clear_results(after=True), "clear_results: after must be"),
        (lambda: Compaction.window(), r"window: it needs messages=… or tokens=…"),
        (lambda: Compaction.window(messages=3), "messages must be greater than or equal to 4"),
        (lambda: Compaction.window(tokens=1.5), "tokens must be"),  # type: ignore[arg-type]  # what is refused
        (lambda: Compaction.summarise(at=0), "summarise: at must be"),
        (lambda: Compaction.summarise(at=1000, keep_last=-1), "keep_last must be"),
        (lambda: Compaction.summarise(at=1000, keep_last=125), "at=1,000 tokens is less than the last 125 messages"),
        (lambda: Compaction.summarise(at=1000, prompt=" "), "prompt: it is blank"),
    ],
)
def test_numbers_without_sense_are_refused(make: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        make()


def test_an_agent_has_one_of_a_kind() -> None:
    assert build_compaction_settings("a", None) is None
    assert build_compaction_settings("a", []) is None
    assert ways(Compaction.truncate(after=2)) == CompactionSettings(truncate=Compaction.truncate(after=2))
    with pytest.raises(DefinitionError, match="agent 'a': compaction has window twice"):
        build_compaction_settings("a", [Compaction.window(messages=9), Compaction.window(tokens=900)])
    for wrong in (7, "window", {"window": 9}, Compaction):
        with pytest.raises(DefinitionError) as refused:
            build_compaction_settings("a", wrong)
        assert f"agent 'a': compaction must be a Compaction or a list of them, not {wrong!r:.100}" in str(refused.value)
    with pytest.raises(DefinitionError, match="or a list of them, not None"):
        build_compaction_settings("a", [None])
