"""Thinking that comes as ``<think>`` tags in the text, and conversations whose roles must take turns."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.providers.openai_chat_request import alternate_roles
from perdure.providers.reply import ThinkTags
from tests.servers.dialects import refuse


def split(*pieces: str) -> tuple[str, str]:
    tags = ThinkTags()
    said = [*map(tags.add, pieces), tags.flush()]
    return "".join(thinking for thinking, _ in said), "".join(text for _, text in said)


TEXTS = {
    "<think>a</think>b": ("a", "b"),
    "\n <think>\na\n</think>\n\nb": ("a\n", "b"),
    "<thinking>a</thinking>b": ("a", "b"),
    "<thought>a</thinking></thought>b": ("a</thinking>", "b"),
    "<think></think>b": ("", "b"),
    "<think>a<b</think>c</think>": ("a<b", "c</think>"),
    "<think>never ends</thin": ("never ends</thin", ""),
    "<think>a</think>": ("a", ""),
    "b <think>a</think>": ("", "b <think>a</think>"),
    "`<think>` is a tag": ("", "`<think>` is a tag"),
    "<thinker>": ("", "<thinker>"),
    "<thi": ("", "<thi"),
    " \n": ("", " \n"),
    "": ("", ""),
}


@pytest.mark.parametrize("text", TEXTS)
def test_tags(text: str) -> None:
    assert split(text) == TEXTS[text]
    assert split(*text) == TEXTS[text]


@given(st.sampled_from([*TEXTS]), st.lists(st.integers(0, 40), max_size=6))
def test_pieces_may_end_anywhere(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    assert split(*(text[a:b] for a, b in pairwise(places))) == TEXTS[text]


@given(st.text(alphabet="<>/think \n"), st.integers(1, 5))
def test_nothing_is_lost_but_tags_and_blanks(text: str, size: int) -> None:
    thinking, rest = split(*(text[n : n + size] for n in range(0, len(text), size)))
    kept = "".join((thinking + rest).split())
    assert len(kept) in (len("".join(text.split())) - lost for lost in (0, 7, 10, 15, 21))
    assert split(text)[1] == rest


def test_endless_blanks_are_text() -> None:
    assert split(*[" "] * 5_000) == ("", " " * 5_000)


IMAGE = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]


def call_with_results(count: int) -> list[dict[str, Any]]:
    calls = [
        {"id": f"aaaaaaaa{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(count)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in calls]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


TURNS = st.one_of(
    st.sampled_from(["", "said", "more"]).map(lambda text: [{"role": "assistant", "content": text}]),
    st.sampled_from(["a", "b", IMAGE]).map(lambda content: [{"role": "user", "content": content}]),
    st.just([{"role": "system", "content": "note"}]),
    st.just([{"role": "assistant", "content": None, "refusal": "no"}]),
    st.integers(1, 3).map(call_with_results),
)


@given(st.lists(TURNS, max_size=9))
def test_roles_take_turns_whatever_was_said(turns: list[list[dict[str, Any]]]) -> None:
    messages = [message for turn in turns for message in turn]
    body = {"model": "m", "max_tokens": 1, "messages": alternate_roles(messages)}
    for server in ("mistral", "vllm", "llama.cpp", "perplexity"):
        assert refuse("openai", server, body) is None
    sent = str(body["messages"])
    for word in ("said", "more", "see", "note", "no", "aaaaaaaa2"):
        assert str(messages).count(f"'{word}'") <= sent.count(word)
