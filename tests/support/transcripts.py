"""Valid transcripts, for tests of whatever takes one: any text, files, calls and results that a run may come to.

What only one provider understands is given by an :class:`Own`, beside what others gave, which no format takes.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

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
)

FOREIGN = "elsewhere"
"""Origin of opaque parts that belong to no provider here."""

Opaque = Callable[[str, int], dict[str, Any]]
"""A text and a number that nothing else has → opaque data."""


@dataclass(frozen=True, slots=True)
class Own:
    """What the provider ``origin`` gives with the parts of a reply; None where it gives nothing."""

    origin: str
    thinking: Opaque | None = None
    text: Opaque | None = None
    call: Opaque | None = None
    sealed: Opaque | None = None
    """Data of a whole opaque part."""


NOTHING = Own(FOREIGN)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
said = texts.filter(str.strip)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda v: st.lists(v, max_size=2), max_leaves=4
)
arguments = st.dictionaries(texts, values, max_size=3)


def _encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


pictures = st.builds(
    FilePart,
    media_type=st.just("image/png"),
    data=st.binary(max_size=6).map(lambda body: _encoded(b"\x89PNG\r\n\x1a\n" + body)),
    name=st.none() | st.just("cat.png"),
)
papers = st.builds(
    FilePart,
    media_type=st.just("application/pdf"),
    data=st.binary(max_size=6).map(lambda body: _encoded(b"%PDF-1.7 " + body)),
    name=st.just("a.pdf"),
)
others = st.sampled_from(
    [
        FilePart(media_type="image/png", url="https://x.test/a.png"),
        FilePart(media_type="text/csv", data=_encoded(b"a,b\n1,2"), name="t.csv"),
        FilePart(media_type="application/x-foo", data=_encoded(b"\xff\xfe"), name="a.foo"),
    ]
)


@dataclass(slots=True)
class _Writer:
    """Draws one transcript."""

    draw: st.DrawFn
    own: Own
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def user(self) -> Message:
        first: Part = TextPart(text=self.draw(said))
        content = texts.map(lambda text: TextPart(text=text)) | pictures | papers | others
        return Message(
            role="user", parts=(first, *self.draw(st.lists(content, max_size=3))), id=self.draw(texts), by="Ana"
        )

    def reply(self) -> Message:
        kinds = st.sampled_from(["text", "thinking", "foreign", "opaque", "sealed", "call", "call", "malformed"])
        parts = tuple(part for kind in self.draw(st.lists(kinds, max_size=5)) for part in self.part(kind))
        return Message(role="assistant", parts=parts, model="m", usage=Usage(input_tokens=1), cost_usd=0.5)

    def part(self, kind: str) -> list[Part]:
        text, number, own = self.draw(texts), next(self.numbers), self.own
        theirs: dict[str, Any] = {"provider": FOREIGN, "opaque": {"theirs": number}}
        match kind:
            case "text":
                return [TextPart(text=text, **self.opaque(own.text, text, number))]
            case "thinking":
                return [ThinkingPart(text=text, **self.opaque(own.thinking, text, number))]
            case "foreign":
                return [ThinkingPart(text=text, **theirs), TextPart(text=text, **theirs)]
            case "opaque":
                return [OpaquePart(provider=FOREIGN, data={"theirs": number})]
            case "sealed":
                return [OpaquePart(provider=own.origin, data=own.sealed(text, number))] if own.sealed else []
            case "call":
                given = {"arguments": self.draw(arguments)}
                return [ToolCallPart(**self.called(number), **given, **self.opaque(own.call, text, number))]
            case _:
                return [ToolCallPart(**self.called(number), malformed='{"a": ')]

    def opaque(self, make: Opaque | None, text: str, number: int) -> dict[str, Any]:
        """For about half of the parts."""
        if make is None or self.draw(st.booleans()):
            return {}
        return {"provider": self.own.origin, "opaque": make(text, number)}

    def called(self, number: int) -> dict[str, str]:
        call_id = self.draw(st.sampled_from([f"call_{number}", f"{'x' * 70}{number}", f"functions.add:{number}"]))
        return {"id": call_id, "name": self.draw(st.sampled_from(["add", "look_up", "no such tool!", "n" * 80]))}

    def results(self, calls: tuple[ToolCallPart, ...]) -> Message:
        return Message(role="tool", parts=tuple(map(self.result, calls)))

    def result(self, call: ToolCallPart) -> ToolResultPart:
        made = ToolResultPart(
            call_id=call.id, name=call.name, content=self.draw(texts), is_error=self.draw(st.booleans())
        )
        files = [] if made.is_error else self.draw(st.lists(pictures | papers, max_size=2))
        return made.model_copy(update={"files": tuple(files)})


@st.composite
def transcripts(draw: st.DrawFn, own: Own = NOTHING) -> list[Message]:
    """A transcript at a point where a model is asked: it begins with a user, and ends with one or with results."""
    writer = _Writer(draw, own)
    messages = [writer.user()]
    for _ in range(draw(st.integers(0, 3))):
        messages.append(writer.reply())
        if calls := messages[-1].tool_calls:
            messages.append(writer.results(calls))
        else:
            messages.append(writer.user())
        if draw(st.booleans()):
            messages.append(writer.user())  # a message that came in the middle of a turn
    return messages
