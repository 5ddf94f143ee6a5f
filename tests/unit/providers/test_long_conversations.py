"""Requests of long conversations: what segments keep of them changes no byte, in any wire format, and what a call costs
does not grow with what was said before."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import perdure
from perdure.loop.transcript import CallIds
from perdure.ports.model import ModelRequest
from perdure.ports.store import Commit
from perdure.providers import anthropic_request, google_request, openai_chat_request, openai_responses_request
from perdure.store.cache import CacheBudget
from perdure.store.chain import Chain
from perdure.testing.store import MemoryStore
from perdure.types.messages import FilePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from perdure.types.transcript import Segment, Transcript, drop_system_messages, find_last_system_message

FORMATS: dict[str, Callable[[ModelRequest], bytes]] = {
    "openai": lambda request: openai_chat_request.encode_request(request, origin="openai"),
    "openai-responses": lambda request: openai_responses_request.encode_request(request, origin="openai-responses"),
    "anthropic": lambda request: anthropic_request.encode_request(request, origin="anthropic").body,
    "google": lambda request: google_request.encode_request(request, origin="google"),
}
PACKAGE = str(Path(perdure.__file__).parent)


def ask(messages: Sequence[Message]) -> ModelRequest:
    return ModelRequest(model="claude-opus-5-5", messages=messages, system="Be brief.")


class Talk:
    """A conversation as runs have them, and some as only hostile imports have them, a node at a time."""

    def __init__(self, seed: int, cache: int = 256 * 1024 * 1024) -> None:
        self.random = random.Random(seed)
        self.store = MemoryStore()
        self.chain = Chain(self.store, cache=CacheBudget(cache))
        self.heads: list[str] = []
        self.messages: list[Message] = []
        self._calls: list[ToolCallPart] = []
        self._numbers = count()

    async def go_on(self) -> None:
        new = [*self._results(), *self._prompts(), self._reply()]
        node, _ = self.chain.extend(self.heads[-1] if self.heads else None, new)
        await self.store.commit(Commit([node]))
        if self.random.random() < 0.9:
            self.chain.remember(node, new)
        self.heads.append(node.hash)
        self.messages += [message.model_copy() for message in new]  # encoded anew, each time

    def _results(self) -> Iterator[Message]:
        results = tuple(map(self._result, self.random.sample(self._calls, len(self._calls))))
        if results:
            yield Message(role="tool", parts=results)

    def _result(self, call: ToolCallPart) -> ToolResultPart:
        files = (self._file(),) if self.random.random() < 0.2 else ()
        error = self.random.random() < 0.1
        return ToolResultPart(call_id=call.id, name=call.name, content="r\x7f" * 9, is_error=error, files=files)

    def _prompts(self) -> Iterator[Message]:
        if self.random.random() < 0.05:
            yield Message.system(f"prompt {next(self._numbers)}")
        for _ in range(self.random.choice([0, 0, 0, 1, 2]) if self.messages else 1):
            yield self.random.choice(
                [Message.user(""), Message.user("hi"), Message(role="user", parts=(TextPart(text="see"), self._file()))]
            )

    def _reply(self) -> Message:
        provider = self.random.choice(list(FORMATS))
        thinking = ThinkingPart(text="hm", provider=provider, opaque={"signature": "s", "field": "reasoning"})
        self._calls = [
            ToolCallPart(
                id=f"call_{next(self._numbers)}",
                name="work",
                arguments={"size": number, "deep": [True, 1.5, None]},
                provider=provider,
                provider_id=self.random.choice([None, None, None, f"own {next(self._numbers)}"]),
            )
            for number in range(self.random.choice([0, 1, 1, 2]))
        ]
        parts = [TextPart(text=self.random.choice(["", "ok"])), *self._calls]
        return Message(role="assistant", parts=(*([thinking] if self.random.random() < 0.3 else ()), *parts))

    def _file(self) -> FilePart:
        return FilePart(media_type="image/png", url=f"https://example.com/{next(self._numbers)}.png")


@pytest.mark.parametrize("seed", range(3))
async def test_a_long_conversation_is_sent_as_if_each_message_was_encoded_anew(seed: int) -> None:
    talk = Talk(seed)
    for _ in range(150):
        await talk.go_on()
        if talk.random.random() < 0.2:
            await talk.chain.load(talk.heads[-1])
    loaded = await talk.chain.load(talk.heads[-1])
    assert sum(isinstance(piece, Segment) for piece in loaded.pieces) > 1
    assert [message.model_copy() for message in loaded] == talk.messages
    last = find_last_system_message(loaded)
    prompts = [message.text for message in talk.messages if message.role == "system"]
    assert (None if last is None else last.text) == (prompts[-1] if prompts else None)
    request = drop_system_messages(loaded)
    assert any(isinstance(piece, Segment) for piece in request.pieces)
    anew = [message.model_copy() for message in request]
    for encode in FORMATS.values():
        expected = encode(ask(anew))
        for _ in range(2):
            assert encode(ask(request)) == expected
        assert encode(ask([*request])) == expected, "without its segments, as a hook may return it"


async def test_a_fork_within_a_segment_and_a_small_cache_get_the_same_messages() -> None:
    talk = Talk(7)
    small = Chain(talk.store, cache=CacheBudget(200_000))
    for _ in range(120):
        await talk.go_on()
    for chain in (talk.chain, small):
        for place in (119, 40, 119, 3):
            loaded = await chain.load(talk.heads[place])
            assert [message.model_copy() for message in loaded] == talk.messages[: len(loaded)]
            assert len(loaded) == len(await Chain(talk.store).load(talk.heads[place]))


async def test_a_transcript_is_read_as_a_list_of_its_messages_is() -> None:
    talk = Talk(2)
    for _ in range(80):
        await talk.go_on()
    loaded = await talk.chain.load(talk.heads[-1])
    listed = [*loaded]
    assert len(loaded) == len(listed)
    assert loaded == listed
    assert loaded == tuple(listed)
    assert loaded != listed[:-1]
    assert [*reversed(loaded)] == listed[::-1]
    for place in (0, 1, len(listed) // 2, -2, -1):
        assert loaded[place] is listed[place]
    assert loaded[3:-5] == tuple(listed[3:-5])
    assert listed[7] in loaded
    assert copy.deepcopy(loaded) == listed
    with pytest.raises(IndexError):
        loaded[len(listed)]
    assert (len(Transcript()), [*Transcript([(), ()])], bool(Transcript())) == (0, [], False)
    with pytest.raises(IndexError):
        Transcript()[-1]


async def test_an_edited_conversation_is_sent_as_it_was_edited() -> None:
    """What a hook or a step policy has changed within a segment is neither lost nor kept for the next call."""
    talk = Talk(1)
    for _ in range(80):
        await talk.go_on()
    request = drop_system_messages(await talk.chain.load(talk.heads[-1]))
    changed = [*request[:20], Message.user("another message"), *request[21:]]
    for encode in FORMATS.values():
        whole = encode(ask(request))
        assert b"another message" in encode(ask(changed))
        assert encode(ask(request)) == whole


async def test_an_iteration_costs_as_much_at_400_as_at_100() -> None:
    """Calls of perdure's own functions for loading a conversation, its ids and its request: no clock."""
    store = MemoryStore()
    chain = Chain(store)
    calls: list[int] = []
    head: str | None = None
    reply: list[Message] = [Message.user("Go.")]
    for number in range(416):
        new = [*reply, Message.assistant("", ToolCallPart(id=f"call_{number}", name="work", arguments={"size": 64}))]
        node, _ = chain.extend(head, new)
        chain.remember(node, new)
        head = node.hash
        reply = [Message(role="tool", parts=(ToolResultPart(call_id=f"call_{number}", name="work", content="x" * 64),))]
        with CallCounter() as counter:
            loaded = await chain.load(head)
            await chain.load_files(loaded)
            request = drop_system_messages(loaded, reply)
            find_last_system_message(loaded)
            assert CallIds(request, "scope", 1).get_streamed_id(0, f"call_{number + 1}") == f"call_{number + 1}"
            FORMATS["openai"](ask(request))
        calls.append(counter.calls)
    early, late = sum(calls[96:112]), sum(calls[400:416])  # segments are made of 16 iterations
    assert late <= 1.05 * early, f"{early / 16:.0f} calls at 100 iterations, {late / 16:.0f} at 400"


class CallCounter:
    """Counts calls of perdure's functions in this thread."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> CallCounter:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls += 1
