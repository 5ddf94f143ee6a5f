"""``import_messages``: a conversation in a provider's own wire format as messages for ``history=``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from ..errors import DefinitionError, InvalidInputError
from ..types.messages import MAX_FILE_BYTES, Message
from ..types.plain_json import find_json_flaw
from ..types.validation_errors import describe_validation_error
from .conversation import Conversation, without_nulls
from .encoding import clean_json_value
from .registry import wire_format

LARGEST = 2 * MAX_FILE_BYTES
"""Characters that one message may have: a file of ``MAX_FILE_BYTES`` in base64, and room beside it."""
_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class _Format:
    field: str
    """Of a request, which has the messages."""
    module: str
    decode: str
    bytes_mode: Literal["utf8", "base64"] = "utf8"
    """What bytes in a message are: objects and dictionaries of Google's SDK have the bytes of files."""


_FORMATS = {
    "openai": _Format("messages", "openai_messages", "decode_chat"),
    "openai-responses": _Format("input", "openai_messages", "decode_responses"),
    "anthropic": _Format("messages", "anthropic_messages", "decode_messages"),
    "google": _Format("contents", "google_messages", "decode", "base64"),
}


@dataclass(frozen=True, slots=True)
class ImportedHistory:
    """A conversation that began elsewhere."""

    messages: list[Message]
    """For ``history=``."""
    system: str | None
    """The system prompt, which is not among the messages: a run is told the instructions of its agent. To keep it, make
    it those, or override them: ``override={"instructions": imported.system}``."""


def import_messages(format: str, messages: Sequence[Any], *, system: Any = None) -> ImportedHistory:
    """The conversation of a request to a model's API, for ``history=``.

    ``format`` is ``"openai"`` (chat completions), ``"openai-responses"``, ``"anthropic"`` or ``"google"``, or the name
    of a registered provider that speaks one of them; ``"openai-responses:gpt-5"`` also says which model answered, and
    its encrypted reasoning then goes back to that model alone. ``messages`` are what the request has as ``messages``,
    ``input`` or ``contents``: plain dictionaries, or objects of the provider's SDK. ``system`` is its ``system``,
    ``instructions`` or ``systemInstruction``, where the format keeps the system prompt apart. No SDK is loaded.

    Raises ``InvalidInputError`` that names the position of a message that cannot be read. A call without a result is
    refused where the run is started.
    """
    name, origin, model = _source(format)
    decoded = decode_messages(name, messages, origin=origin, model=model)
    try:
        prompts = [*_system_texts(_plain(system)), decoded.system or ""]
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"system: it cannot be read as a system prompt: {error}", hint="Give its text."
        ) from None
    return ImportedHistory(decoded.messages, "\n\n".join(filter(None, prompts)) or None)


def decode_messages(name: str, messages: Any, *, origin: str, model: str | None = None) -> ImportedHistory:
    """:func:`import_messages` for the wire format ``name``, where ``origin`` (see ``endpoint.origin``) gave the opaque
    data."""
    wire = _FORMATS[name]
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes | bytearray):
        raise InvalidInputError(
            f"messages: the list of messages of a request is expected, not {type(messages).__name__}",
            hint=f"Give what a request in the format {name} has as {wire.field!r}.",
        )
    conversation = Conversation(origin, model)
    position = -1

    def read() -> Iterator[dict[str, Any]]:
        nonlocal position
        for position, message in enumerate(messages):  # noqa: B007  # names the message that cannot be read
            plain = _plain(message, wire.bytes_mode)
            if not isinstance(plain, dict):
                raise ValueError(f"it is not an object but {type(message).__name__}")
            yield without_nulls(plain)

    decode = getattr(import_module(f".{wire.module}", __package__), wire.decode)
    try:
        decode(read(), conversation)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInputError(
            f"messages[{position}] cannot be read as {name}: {_reason(error)}",
            hint=f"It is a message of {wire.field!r} that is expected. Leave this one out, or say it as text.",
        ) from None
    return ImportedHistory(conversation.messages(), "\n\n".join(conversation.prompts) or None)


def _source(format: str) -> tuple[str, str, str | None]:
    """The wire format, who gave the opaque data, and the model."""
    if not isinstance(format, str):
        raise InvalidInputError(f"format: it is a text, not {type(format).__name__}", hint=_known())
    provider, _, model = format.partition(":")
    try:
        name, origin = wire_format(provider)
    except DefinitionError:
        raise InvalidInputError(f"format: {format!r:.100} is unknown", hint=_known()) from None
    if name not in _FORMATS:
        raise InvalidInputError(f"format: provider {provider!r:.100} has none that can be imported", hint=_known())
    return name, origin, model or None


def _known() -> str:
    return f"It is one of {', '.join(_FORMATS)}, or the name of a registered provider that speaks one of them."


def _plain(value: Any, bytes_mode: Literal["utf8", "base64"] = "utf8") -> Any:
    """``value`` as plain JSON, with U+FFFD for what texts cannot carry. Raises ``ValueError`` that says why not."""
    try:
        value = to_jsonable_python(value, by_alias=True, exclude_none=True, bytes_mode=bytes_mode)
    except UnicodeEncodeError:
        pass  # a lone surrogate, in plain data as an SDK's objects have none
    except (ValueError, RecursionError) as error:  # PydanticSerializationError
        raise ValueError(f"it cannot be written as JSON: {error}") from None
    try:
        value = clean_json_value(value)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if why := find_json_flaw(value, LARGEST):
        raise ValueError(f"it must be plain JSON: {why}")
    return value


def _reason(error: Exception) -> str:
    match error:
        case ValidationError():
            return describe_validation_error(error, "it")
        case KeyError():
            return f"it has no {error.args[0]!r:.100}"
        case ValueError():
            return str(error)[:_REASON_CHARS]
        case _:
            return f"it is not of that format ({type(error).__name__}: {error})"[:_REASON_CHARS]


def _system_texts(system: Any) -> list[str]:
    """The texts of a system prompt: a text, a list of blocks of text, or an object with ``parts``."""
    if system is None:
        return []
    if isinstance(system, str):
        return [system]
    if isinstance(system, Mapping):
        return _system_texts(system.get("parts", [system]))
    if not isinstance(system, list):
        raise TypeError(f"it is {type(system).__name__}")
    given = [block.get("text") if isinstance(block, Mapping) else block for block in system]
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        raise ValueError("something in it has no text")
    return texts
