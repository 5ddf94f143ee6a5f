"""What hooks return, read: the forms that are meant, and an error that names the hook for every other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import hook
from perdure.errors import HookError
from perdure.hooks.dispatch import (
    extract_file_blobs,
    read_hook_arguments,
    read_hook_message,
    read_hook_reply,
    read_hook_request,
    read_hook_text,
    replace_text,
    withhold_message,
)
from perdure.ports.model import ModelRequest
from perdure.types.messages import (
    File,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    encode_canonical,
)

REQUEST = ModelRequest("m", (Message.user("hi"),))
REPLY = Message(role="assistant", parts=(TextPart(text="hi"),), usage=Usage(input_tokens=7), cost_usd=0.1, model="m")
SAID = Message.user("hi", id="m1", by="ana")


@hook("on_finish")
def mine() -> None:
    """Its name is in every error."""


@pytest.mark.parametrize(
    ("read", "before"),
    [
        (read_hook_request, REQUEST),
        (read_hook_reply, REPLY),
        (read_hook_message, SAID),
        (read_hook_text, "hi"),
        (read_hook_arguments, {"a": 1}),
    ],
)
def test_none_changes_nothing_and_what_is_not_meant_is_an_error(read: Any, before: Any) -> None:
    assert read(mine, None, before) is before
    for wrong in (7, object(), [7], ToolResultPart(call_id="c", name="n")):
        with pytest.raises(HookError, match=r"the hook mine \(on_finish\)"):
            read(mine, wrong, before)


def test_a_request() -> None:
    changed = replace(REQUEST, system="Brief.")
    assert read_hook_request(mine, changed, REQUEST) == changed
    two = [Message.user("a"), Message.user("b")]
    assert read_hook_request(mine, two, changed) == replace(changed, messages=tuple(two))
    for wrong in ([], [Message.system("x")], replace(REQUEST, model="other")):
        with pytest.raises(HookError, match="mine"):
            read_hook_request(mine, wrong, REQUEST)


def test_a_reply_keeps_what_was_paid() -> None:
    other = Message(role="assistant", parts=(TextPart(text="\ud800"),), usage=Usage(), cost_usd=0.0)
    changed = read_hook_reply(mine, other, REPLY)
    assert (changed.usage, changed.cost_usd, changed.model) == (REPLY.usage, 0.1, "m")
    assert encode_canonical([changed]), "it can be stored"
    calls = Message.assistant("", ToolCallPart(id="c", name="n", arguments={"a": float("nan")}))
    assert encode_canonical([read_hook_reply(mine, calls, REPLY)])
    for wrong in (Message.user("x"), Message(role="assistant", parts=(ToolResultPart(call_id="c", name="n"),))):
        with pytest.raises(HookError, match="mine"):
            read_hook_reply(mine, wrong, REPLY)


def test_a_user_s_message_stays_its_sender_s() -> None:
    for returned in ("bye", Message.user("bye", id="other", by="bo"), Message.user(["bye"])):
        changed = read_hook_message(mine, returned, SAID)
        assert (changed.text, changed.id, changed.by, changed.role) == ("bye", "m1", "ana", "user")
    withheld = withhold_message(SAID, "no")
    assert (withheld.text, withheld.id, withheld.by) == ("[withheld: no]", "m1", "ana")
    assert read_hook_message(mine, "", SAID).text == "[withheld]", "an empty message is none that a model takes"
    for wrong in (REPLY, Message(role="user"), Message(role="user", parts=(ThinkingPart(text="hm"),))):
        with pytest.raises(HookError, match="mine"):
            read_hook_message(mine, wrong, SAID)


PARTS = st.sampled_from(
    [
        TextPart(text="a"),
        TextPart(text="b"),
        ThinkingPart(text="t"),
        ToolCallPart(id="c", name="n"),
        OpaquePart(provider="p", data={}),
    ]
)


@given(st.lists(PARTS, max_size=6), st.text(max_size=3))
def test_new_text_stands_once_before_the_calls_and_the_rest_stays(parts: list[Any], text: str) -> None:
    found = replace_text(parts, text)
    assert [part for part in found if part.type != "text"] == [part for part in parts if part.type != "text"]
    texts = [place for place, part in enumerate(found) if part.type == "text"]
    assert len(texts) == bool(text)
    calls = [place for place, part in enumerate(found) if part.type == "tool_call"]
    if texts and calls and not any(part.type == "text" for part in parts[: parts.index(found[calls[0]])]):
        assert texts[0] < calls[0]


def test_bytes_become_blobs() -> None:
    png = b"\x89PNG\r\n\x1a\n"
    plain, with_file = Message.user("hi"), Message.user(["see", File(png)])
    (same, kept), blobs = extract_file_blobs([plain, with_file])
    assert same is plain
    assert [blob.body for blob in blobs] == [png]
    assert kept.parts[1].blob == blobs[0].ref  # type: ignore[union-attr]
