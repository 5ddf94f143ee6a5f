"""What a conversation is made of: messages with typed parts.

The shape is the engine's own; every provider adapter converts it to its wire format and back. The canonical
bytes of a message (``canonical``) are what the transcript chain hashes, so fields are only ever added, with
defaults that are left out of the bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter

if TYPE_CHECKING:
    from .files import Content


Role = Literal["system", "user", "assistant", "tool"]


class Data(BaseModel):
    """Base of all stored and sent data: unknown fields of a newer version are kept out, not refused."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class BlobRef(Data):
    """Bytes that are kept in the store, because they are too large for a message or for history."""

    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    """sha256 of the bytes, hexadecimal."""
    size: int
    """Bytes."""


class TextPart(Data):
    """Text; ``blob`` instead of ``text`` where it is stored apart."""

    type: Literal["text"] = "text"
    text: str = ""
    blob: BlobRef | None = None
    provider: str | None = None
    opaque: dict[str, Any] | None = None
    """For the provider alone, for instance a thought signature or citations."""


class FilePart(Data):
    """An image or another file. Exactly one of ``blob``, ``url`` and ``data`` says where its bytes are."""

    type: Literal["file"] = "file"
    media_type: str
    """For instance ``image/png`` or ``application/pdf``."""
    name: str | None = None
    blob: BlobRef | None = None
    """The bytes, in the store."""
    url: str | None = None
    """Where the provider is to fetch it."""
    data: str | None = None
    """The bytes in base64: only on the way in; a transcript has them as a blob."""

    @property
    def is_image(self) -> bool:
        """Whether it is a picture."""
        return self.media_type.startswith("image/")


class ThinkingPart(Data):
    """What a model thought. ``opaque`` goes back to the provider that gave it, unread and unchanged."""

    type: Literal["thinking"] = "thinking"
    text: str = ""
    provider: str | None = None
    opaque: dict[str, Any] | None = None


NAME_CHARS = 200
"""Of what senders choose: ids of messages and turns, and who sends; and of names of agents and scopes."""
RUN_ID_CHARS = 2000
"""Of the id of a run."""
CALL_ID_CHARS = 100
"""Of a call's id, as a run uses it: no longer than 40 (``loop.calls``)."""


class ToolCallPart(Data):
    """A call that the model asked for."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    """No other call of the conversation has it. The provider's own, or ours where that was taken or unfit."""
    provider_id: str | None = None
    """The provider's, where ``id`` is another: it goes back to ``provider`` in the place of ``id``."""
    name: str
    arguments: dict[str, Any] = {}
    malformed: str | None = None
    """The raw text of the arguments, where it was not a JSON object; ``arguments`` is then empty."""
    provider: str | None = None
    opaque: dict[str, Any] | None = None
    """For the provider alone, for instance a thought signature."""


class ToolResultPart(Data):
    """What a tool call came to; ``blob`` instead of ``content`` where it is stored apart."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    name: str
    content: str = ""
    blob: BlobRef | None = None
    is_error: bool = False
    files: tuple[FilePart, ...] = ()
    """Images and files that the tool gave besides its text."""
    answered_by: str | None = None
    """Who gave it, where a client ran the call."""


class OpaquePart(Data):
    """A piece of a reply that only its provider understands (redacted thinking, a search that its servers made).

    It goes back to the same provider, unread and unchanged; every other one is not told of it.
    """

    type: Literal["opaque"] = "opaque"
    provider: str
    data: dict[str, Any]


Part = Annotated[
    TextPart | FilePart | ThinkingPart | ToolCallPart | ToolResultPart | OpaquePart, Field(discriminator="type")
]

ContentPart = Annotated[TextPart | FilePart, Field(discriminator="type")]
"""What a user's message may consist of, where it is not text alone."""


class Usage(Data):
    """Tokens of one model call, or of many added up."""

    input_tokens: int = 0
    """Everything the model read, cached tokens included."""
    output_tokens: int = 0
    """Everything the model wrote, reasoning included."""
    cached_tokens: int = 0
    """Of the input: read from the provider's cache."""
    reasoning_tokens: int = 0
    """Of the output."""
    cache_write_tokens: int = 0
    """Of the input: written into the provider's cache."""

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            cached_tokens=self.cached_tokens - other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens - other.reasoning_tokens,
            cache_write_tokens=self.cache_write_tokens - other.cache_write_tokens,
        )


FinishReason = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "veto", "other"]
"""Why a reply ended. ``veto``: a hook has answered in the model's place."""


class Replaced(Data):
    """An earlier form of the conversation, which stays in the store: what a summary stands for, or what a step policy
    has edited."""

    head: str
    """Where that ends."""
    messages: int
    """How many it has."""
    kept: int
    """How many of its last ones stand behind the summary again. Of an edited conversation none are counted."""


class Withheld(Data):
    """Something that a model's API refused, and that requests go out without."""

    key: str
    """Recognises it in the conversation: a digest of what it is and where it stands."""
    kind: Literal["file", "message", "result"]
    """A file of a message or result; a user's whole message; a tool's whole result."""
    what: str
    """For people: ``image/png cat.png``, ``message``, ``result of lookup``."""
    id: str | None = None
    """The sender's id of the user's message that it is (part of)."""
    call_id: str | None = None
    """The call whose result it is (part of)."""
    reason: str = ""
    """The error's class name and the beginning of its message."""


class Message(Data):
    """One message. Assistant messages also say which model wrote them, at what cost, and why it stopped."""

    role: Role
    parts: tuple[Part, ...] = ()
    id: str | None = None
    """The sender's id of a user message."""
    by: str | None = None
    """Who sent a user message, as the sender said."""
    model: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    replaces: Replaced | None = None
    """Of the first message of a conversation that was rewritten: what was there before."""
    withheld: tuple[Withheld, ...] = ()
    """Of a reply: everything before it that the model was not given, because its API had refused it."""

    _wire: dict[str, bytes] = PrivateAttr(default_factory=dict)

    @classmethod
    def system(cls, text: str) -> Message:
        """A system message."""
        return cls(role="system", parts=(TextPart(text=text),))

    @classmethod
    def user(cls, content: Content, *, id: str | None = None, by: str | None = None) -> Message:
        """A user message: text, or a list of texts and ``File``. Raises ``InvalidInputError``."""
        if isinstance(content, str):
            return cls(role="user", parts=(TextPart(text=content),), id=id, by=by)
        from .files import build_content_parts

        return cls(role="user", parts=build_content_parts(content), id=id, by=by)

    @classmethod
    def assistant(cls, text: str = "", *calls: ToolCallPart) -> Message:
        """An assistant message with text, calls or both."""
        return cls(role="assistant", parts=((TextPart(text=text),) if text else ()) + calls)

    @property
    def text(self) -> str:
        """All its text parts joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls it asks for."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def tool_results(self) -> tuple[ToolResultPart, ...]:
        """The results it carries."""
        return tuple(part for part in self.parts if isinstance(part, ToolResultPart))

    def wire(self, format: str) -> bytes | None:
        """Its encoding in a wire format, if :meth:`remember_wire` kept one: a transcript is encoded once."""
        private = self.__pydantic_private__  # self._wire takes 2 µs, 25 times as long, for each message of a call
        kept: dict[str, bytes] = private["_wire"] if private else {}
        return kept.get(format)

    def remember_wire(self, format: str, encoded: bytes) -> None:
        """Keep its encoding in a wire format for the next call."""
        self._wire[format] = encoded

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """See pydantic. A copy forgets the encodings: it may be another message, and would be sent as this one."""
        copy = super().model_copy(update=update, deep=deep)
        copy._wire = {}
        return copy


_messages_adapter: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


def encode_canonical(messages: Sequence[Message]) -> bytes:
    """The bytes that are hashed and stored: JSON, keys sorted, no blanks, UTF-8, defaults left out.

    Raises ``UnicodeEncodeError`` for a lone surrogate: :func:`clean_text` text before it becomes a message.
    """
    plain = [message.model_dump(exclude_defaults=True) | {"role": message.role} for message in messages]
    for dumped, message in zip(plain, messages, strict=True):
        dumped["parts"] = [
            part | {"type": whole.type} for part, whole in zip(dumped.get("parts", ()), message.parts, strict=True)
        ]
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def iter_file_parts(messages: Iterable[Message]) -> Iterator[FilePart]:
    """The files in ``messages``, those of tool results too, in order."""
    for message in messages:
        for part in message.parts:
            if part.type == "file":
                yield part
            elif part.type == "tool_result" and part.files:
                yield from part.files


def parse_messages(body: bytes) -> list[Message]:
    """The messages of canonical bytes."""
    return _messages_adapter.validate_json(body)


_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""An escaped NUL in JSON; not a backslash that is escaped itself, and digits behind it."""


def clean_text(text: str) -> str:
    """``text`` with U+FFFD in place of what cannot be carried everywhere: lone surrogates, which neither UTF-8 nor JSON
    has, and NUL, which PostgreSQL's texts and some providers refuse."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean_json_text(text: str) -> str:
    """``text``, JSON that was written without ASCII escapes, with every text in it :func:`clean_text`."""
    return clean_text(_ESCAPED_NUL.sub("\\1\ufffd", text) if "\\u0000" in text else text)
