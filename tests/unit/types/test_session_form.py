"""The flat form of a conversation: what it looks like, and that nothing is lost on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidInputError
from perdure.types.messages import (
    BlobRef,
    FilePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from perdure.types.session_form import from_session, to_session

WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
REFS = st.builds(BlobRef, hash=st.sampled_from(["0" * 64, "f" * 64]), size=st.integers(0, 9))
OPAQUE = st.none() | st.dictionaries(WORDS, st.none() | WORDS | st.integers(), max_size=2)
FROM = st.none() | st.sampled_from(["anthropic", "google"])
FILES = st.one_of(
    st.builds(FilePart, media_type=st.just("image/png"), name=st.none() | WORDS, blob=REFS),
    st.builds(FilePart, media_type=st.just("image/png"), data=st.just("eHg=")),
)
IDS = st.sampled_from(["c1", "c2", ""])
PARTS = st.one_of(
    st.builds(TextPart, text=WORDS, blob=st.none() | REFS, provider=FROM, opaque=OPAQUE),
    st.builds(ThinkingPart, text=WORDS, provider=FROM, opaque=OPAQUE),
    st.builds(OpaquePart, provider=st.just("anthropic"), data=st.dictionaries(WORDS, WORDS, max_size=2)),
    FILES,
    st.builds(
        ToolCallPart,
        id=IDS,
        name=WORDS,
        arguments=st.dictionaries(WORDS, st.integers(), max_size=2),
        malformed=st.none() | WORDS,
        provider=FROM,
        opaque=OPAQUE,
    ),
    st.builds(
        ToolResultPart,
        call_id=IDS,
        name=WORDS,
        content=WORDS,
        blob=st.none() | REFS,
        is_error=st.booleans(),
        files=st.lists(FILES, max_size=2).map(tuple),
        given_by=st.none() | WORDS,
    ),
)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    parts=st.lists(PARTS, max_size=4).map(tuple),
    id=st.none() | WORDS,
    by=st.none() | WORDS,
    model=st.none() | st.just("gpt-5"),
    finish_reason=st.none() | st.just("stop"),
    usage=st.none() | st.builds(Usage, input_tokens=st.integers(0, 9), cache_write_tokens=st.integers(0, 9)),
    cost_usd=st.none() | st.just(0.5),
)
PLAIN = st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), parts=PARTS.map(lambda part: (part,)))


@given(st.lists(MESSAGES | PLAIN, max_size=5))
def test_a_round_trip_loses_nothing(messages: list[Message]) -> None:
    session = json.loads(json.dumps(to_session(messages)))
    assert from_session(session) == messages


SESSION: list[dict[str, Any]] = [
    {"type": "system", "content": "Be brief."},
    {"type": "user", "content": "What is 2 + 2, and 3 + 3?"},
    {"type": "thinking", "content": "Add."},
    {"type": "assistant", "content": "Let me see."},
    {"type": "tool_call", "name": "add", "id": "c1", "input": {"a": 2, "b": 2}},
    {"type": "tool_call", "name": "add", "id": "c2", "input": {"a": 3, "b": 3}},
    {"type": "tool_result", "id": "c1", "output": "4"},
    {"type": "tool_result", "id": "c2", "output": "6"},
    {"type": "assistant", "content": "4 and 6."},
]


def test_a_plain_session_has_nothing_but_its_own_keys() -> None:
    messages = from_session(SESSION)
    assert [(message.role, len(message.parts)) for message in messages] == [
        ("system", 1),
        ("user", 1),
        ("assistant", 4),
        ("tool", 2),
        ("assistant", 1),
    ]
    assert [result.name for result in messages[3].tool_results] == ["add", "add"]
    assert to_session(messages) == SESSION


def test_roles_and_plain_outputs_are_read_too() -> None:
    session = [{"role": "user", "content": "hi"}, {"type": "tool_result", "id": "c1", "output": {"ä": 1}}]
    user, results = from_session(session)
    assert (user, results.tool_results[0].content) == (Message.user("hi"), '{"ä": 1}')


def test_two_replies_in_a_row_stay_two() -> None:
    messages = [Message.assistant("one"), Message.assistant("two")]
    assert to_session(messages) == [
        {"type": "assistant", "content": "one"},
        {"type": "assistant", "content": "two", "message": {}},
    ]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("hi", r"session\[1\]: an entry is a dictionary, not str"),
        ({"type": "tool", "content": "x"}, r"session\[1\]: type is one of system, user, .* not 'tool'"),
        ({"content": "x"}, r"not None"),
        ({"type": ["user"], "content": "x"}, r"session\[1\]: type is one of .* not \['user'\]"),
        ({"type": "user", "contents": "x"}, r"session\[1\]: user has no key 'contents'"),
        ({"type": "user", "content": 3}, r"session\[1\]: content: .*string"),
        ({"type": "tool_call", "id": "c1", "name": "f", "input": "x"}, r"session\[1\]: .*input: .*dictionary"),
        ({"type": "tool_call", "name": "f"}, r"session\[1\]: .*id: Field required"),
        ({"type": "user", "content": "x", "message": {"usage": 3}}, r"session\[1\]: usage: "),
        ({"type": "user", "content": "x", "message": {"ids": 3}}, r"session\[1\]\.message: "),
        ({"type": "user", "content": "x", "message": {"parts": "x"}}, r"session\[1\]\.message\.parts"),
        ({"type": "user", "content": "x", "message": {"parts": 2}}, r"session\[1\]\.message\.parts"),
        ({"type": "user", "file": 3}, r"session\[1\]: "),
    ],
    ids=str,
)
def test_what_is_no_session_is_named(entry: Any, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        from_session([{"type": "user", "content": "hi"}, entry])
