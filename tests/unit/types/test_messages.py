"""What a message remembers of its encoding, and what its texts may hold."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.types.messages import Message, TextPart, clean_json_text, clean_text


def test_a_message_remembers_its_encoding_by_format() -> None:
    message = Message.user("hi")
    message.remember_wire("a", b"1")
    assert (message.wire("a"), message.wire("b")) == (b"1", None)


def test_a_changed_copy_is_not_sent_as_the_original() -> None:
    message = Message.user("hi")
    message.remember_wire("a", b"1")
    copy = message.model_copy(update={"parts": (TextPart(text="ho"),)})
    copy.remember_wire("b", b"2")
    assert copy.wire("a") is None
    assert (message.wire("a"), message.wire("b")) == (b"1", None)


def cleaned(value: Any) -> Any:
    """``value`` with each of its texts cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): cleaned(part) for key, part in value.items()}
    return [cleaned(part) for part in value] if isinstance(value, list) else value


texts = st.text(st.characters() | st.sampled_from("\0\\u0\ud800"), max_size=12)
values = st.recursive(texts | st.integers() | st.none(), lambda part: st.lists(part) | st.dictionaries(texts, part))


@given(texts)
def test_a_clean_text_has_neither_nul_nor_lone_surrogates(text: str) -> None:
    found = clean_text(text)
    assert "\0" not in found
    assert found.encode().decode() == found
    assert clean_text(found) == found


@given(values)
def test_json_is_cleaned_text_by_text(value: Any) -> None:
    """What only looks like an escape (a backslash, then ``u0000``) stays."""
    assert json.loads(clean_json_text(json.dumps(value, ensure_ascii=False))) == cleaned(value)
