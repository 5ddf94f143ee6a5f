"""``import_messages``: imports a conversation in a provider's wire format, for ``history=``."""

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
from .conversation import Conversation, drop_nulls
from .encoding import clean_json_value
from .registry import get_wire_format

MAX_MESSAGE_CHARS = 2 * MAX_FILE_BYTES
"""Characters of one message: a file of ``MAX_FILE_BYTES`` in base64, and room for more."""
_MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class _Format:
    field: str
    """The field of a request that has the messages."""
    module: str
    decoder: str
    bytes_mode: Literal["utf8", "base64"] = "utf8"
    """How bytes in a message are encoded: objects and dictionaries of Google's SDK have the bytes of files."""


_FORMATS = {
    "openai": _Format("messages", "openai_messages", "decode_chat_messages"),
    "openai-responses": _Format("input", "openai_messages", "decode_responses_items"),
    "anthropic": _Format("messages", "anthropic_messages", "decode_messages"),
    "google": _Format("contents", "google_messages", "decode_contents", "base64"),
}


@dataclass(frozen=True, slots=True)
class ImportedHistory:
    """An imported conversation."""

    messages: list[Message]
    """For ``history=``."""
    system: str | None
    """The system prompt, which is not among the messages: a run uses the instructions of its agent. To keep the prompt,
    make it those, or override them: ``override={"instructions": imported.system}``."""


def import_messages(format: str, messages: Sequence[Any], *, system: Any = None) -> ImportedHistory:
    """Import the conversation of a request to a model's API, for ``history=``.

    ``format`` is ``"openai"`` (chat completions), ``"openai-responses"``, ``"anthropic"`` or ``"google"``, or the name
    of a registered provider that speaks one of them; ``"openai-responses:gpt-5"`` also says which model answered, and
    its encrypted reasoning is then sent back only to that model. ``messages`` are what the request has as ``messages``,
    ``input`` or ``contents``: plain dictionaries, or objects of the provider's SDK. ``system`` is its ``system``,
    ``instructions`` or ``systemInstruction``, if the format has the system prompt there. No SDK is loaded.

    Raises ``InvalidInputError`` that names the position of a message that cannot be read. A call without a result is
    refused when the run is started.
    """
    name, origin, model = _parse_format(format)
    decoded = decode_messages(name, messages, origin=origin, model=model)
    try:
        prompts = [*_list_prompt_texts(_convert_to_json(system)), decoded.system or ""]
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"system: it is not a system prompt: {error}", hint="Give its text.") from None
    return ImportedHistory(decoded.messages, "\n\n".join(filter(None, prompts)) or None)


def decode_messages(name: str, messages: Any, *, origin: str, model: str | None = None) -> ImportedHistory:
    """:func:`import_messages` for the wire format ``name``; ``origin`` (see ``endpoint.build_origin``) gave the opaque
    data."""
    wire_format = _FORMATS[name]
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes | bytearray):
        problem = f"messages: it must be the list of messages of a request, not {type(messages).__name__}"
        raise InvalidInputError(problem, hint=f"Give what a request in the format {name} has as {wire_format.field!r}.")
    conversation = Conversation(origin, model)
    position = -1

    def read_messages() -> Iterator[dict[str, Any]]:
        nonlocal position
        for position, message in enumerate(messages):  # noqa: B007  # names the message that cannot be read
            value = _convert_to_json(message, wire_format.bytes_mode)
            if not isinstance(value, dict):
                raise ValueError(f"it must be an object, not {type(message).__name__}")
            yield drop_nulls(value)

    decode = getattr(import_module(f".{wire_format.module}", __package__), wire_format.decoder)
    try:
        decode(read_messages(), conversation)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInputError(
            f"messages[{position}] cannot be read as {name}: {_describe_flaw(error)}",
            hint=f"It must be a message of {wire_format.field!r}. Leave it out, or give it as text.",
        ) from None
    return ImportedHistory(conversation.build_messages(), "\n\n".join(conversation.prompts) or None)


def _parse_format(format: str) -> tuple[str, str, str | None]:
    """The wire format, the origin of opaque data, and the model."""
    hint = f"It must be one of {', '.join(_FORMATS)}, or the name of a registered provider that speaks one of them."
    if not isinstance(format, str):
        raise InvalidInputError(f"format: it must be a text, not {type(format).__name__}", hint=hint)
    provider, _, model = format.partition(":")
    try:
        name, origin = get_wire_format(provider)
    except DefinitionError:
        raise InvalidInputError(f"format: {format!r:.100} is unknown", hint=hint) from None
    if name not in _FORMATS:
        raise InvalidInputError(f"format: provider {provider!r:.100} has no format that can be imported", hint=hint)
    return name, origin, model or None


def _convert_to_json(value: Any, bytes_mode: Literal["utf8", "base64"] = "utf8") -> Any:
    """``value`` as plain JSON, its texts cleaned. Raises ``ValueError`` that says why it cannot be."""
    try:
        value = to_jsonable_python(value, by_alias=True, exclude_none=True, bytes_mode=bytes_mode)
    except UnicodeEncodeError:
        pass  # a lone surrogate, in plain data: an SDK's objects have none
    except (ValueError, RecursionError) as error:  # PydanticSerializationError
        raise ValueError(f"it cannot be written as JSON: {error}") from None
    try:
        value = clean_json_value(value)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if flaw := find_json_flaw(value, MAX_MESSAGE_CHARS):
        raise ValueError(f"it must be plain JSON: {flaw}")
    return value


def _describe_flaw(error: Exception) -> str:
    match error:
        case ValidationError():
            return describe_validation_error(error, "it")
        case KeyError():
            return f"it has no {error.args[0]!r:.100}"
        case ValueError():
            return str(error)[:_MAX_REASON_CHARS]
        case _:
            return f"it is not of that format ({type(error).__name__}: {error})"[:_MAX_REASON_CHARS]


def _list_prompt_texts(system: Any) -> list[str]:
    """The texts of a system prompt: a text, a list of blocks of text, or an object with ``parts``."""
    if system is None:
        return []
    if isinstance(system, str):
        return [system]
    if isinstance(system, Mapping):
        return _list_prompt_texts(system.get("parts", [system]))
    if not isinstance(system, list):
        raise TypeError(f"it is {type(system).__name__}")
    blocks = [block.get("text") if isinstance(block, Mapping) else block for block in system]
    texts = [text for text in blocks if isinstance(text, str)]
    if len(texts) < len(blocks):
        raise ValueError("a block of it has no text")
    return texts
