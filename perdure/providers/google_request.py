"""A request in the format of Gemini's ``generateContent``, as bytes.

Each message is encoded once in its life, as the parts of its content; a call joins them, and puts what belongs into
one content together: messages of the user that follow each other, and the results of one reply's calls.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, assert_never

from ..errors import SettingsError
from ..ports import ModelRequest, ToolSpec
from ..types.messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from .encoding import (
    build_moved_file_parts,
    encode_file_base64,
    encode_json,
    get_own_opaque,
    map_provider_ids,
    render_file_text,
    require_loaded_text,
)
from .settings import check_canonical_settings, check_provider_options

# ---
# A tool's JSON Schema in the dialect that Gemini's ``parametersJsonSchema`` takes.
#
# The API knows a part of JSON Schema. Where a keyword has a twin there, it becomes that; what has none is said in the
# description, so that the model knows it all the same (the engine checks the arguments against the whole schema).


SCHEMA_KEYWORDS = {
    *("$id", "$anchor", "$ref", "$defs", "type", "format", "title", "description", "enum", "items", "prefixItems"),
    *("minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties"),
    *("required", "propertyOrdering"),
}
"""Keywords that the API documents."""
SCHEMA_FORMATS = frozenset(["date-time", "date", "time", "enum", "int32", "int64", "float", "double"])
_DROPPED_KEYWORDS = frozenset(("$schema", "$comment", "discriminator", "deprecated", "readOnly", "writeOnly", "title"))
"""What says nothing that a model needs."""
_SCHEMA_MAP_KEYWORDS = ("properties", "$defs")
_SCHEMA_LIST_KEYWORDS = ("anyOf", "oneOf", "prefixItems")


def translate_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """``schema`` of a tool's arguments as Gemini takes it; None for a tool without arguments."""
    translated = _translate_subschema(schema)
    if translated.keys() <= {"type", "properties", "required", "additionalProperties"} and not (
        translated.get("properties") or translated.get("additionalProperties")
    ):
        return None
    return translated


def _translate_subschema(schema: object) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        return {}  # true, which allows everything; false has no twin
    schema = _inline_single_all_of(dict(schema))
    if "definitions" in schema:
        schema["$defs"] = {**schema.pop("definitions"), **schema.get("$defs", {})}
    if "$ref" in schema:
        return _translate_reference(schema)
    out: dict[str, Any] = {}
    said: list[str] = []
    for key, value in schema.items():
        if key == "const":
            _translate_enum([value], out, said)
        elif key == "enum":
            _translate_enum(list(value), out, said)
        elif key == "format" and value not in SCHEMA_FORMATS:
            said.append(f"format: {value}")
        elif key in ("exclusiveMinimum", "exclusiveMaximum") and schema.get("type") == "integer":
            out[key.replace("exclusiveM", "m")] = value + (1 if key.endswith("Minimum") else -1)
        elif key in _DROPPED_KEYWORDS:
            pass
        elif key in SCHEMA_KEYWORDS:
            out[key] = _translate_keyword_value(key, value)
        else:
            said.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    if said:
        out["description"] = " ".join(filter(None, (out.get("description", ""), f"({'; '.join(said)})")))
    return out


def _translate_keyword_value(key: str, value: Any) -> Any:
    if key in _SCHEMA_MAP_KEYWORDS:
        return {name: _translate_subschema(inner) for name, inner in value.items()}
    if key in _SCHEMA_LIST_KEYWORDS:
        return [_translate_subschema(inner) for inner in value]
    if key == "items" or (key == "additionalProperties" and not isinstance(value, bool)):
        return _translate_subschema(value)
    return value


def _inline_single_all_of(schema: dict[str, Any]) -> dict[str, Any]:
    """``allOf`` of one schema, which generators write beside a reference, is that schema."""
    every = schema.get("allOf")
    if isinstance(every, list) and len(every) == 1 and isinstance(every[0], Mapping):
        del schema["allOf"]
        return {**every[0], **schema}
    return schema


def _translate_reference(schema: dict[str, Any]) -> dict[str, Any]:
    """A reference: nothing may stand beside it but other ``$`` keywords."""
    target = str(schema["$ref"]).replace("#/definitions/", "#/$defs/")
    out: dict[str, Any] = {"$ref": target}
    if "$defs" in schema:
        out["$defs"] = _translate_keyword_value("$defs", schema["$defs"])
    beside = {key: schema[key] for key in ("description",) if schema.get(key)}
    if not beside:
        return out
    wrapped = {"anyOf": [{"$ref": target}], **beside}
    return {**wrapped, "$defs": out["$defs"]} if "$defs" in out else wrapped


def _translate_enum(values: list[Any], out: dict[str, Any], said: list[str]) -> None:
    """Texts and numbers may be listed; other values are said."""
    texts = all(isinstance(value, str) for value in values)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if values and (texts or numbers):
        out["enum"] = values
        whole = all(isinstance(value, int) for value in values)
        out.setdefault("type", "string" if texts else "integer" if whole else "number")
        return
    if values and all(isinstance(value, bool) for value in values):
        out.setdefault("type", "boolean")
    said.append(f"one of {json.dumps(values, ensure_ascii=False)}")


# ---
# The canonical settings under the names of Gemini's ``generationConfig``, and what does not go together.


_CONFIG_NAMES = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_tokens": "maxOutputTokens",
    "top_k": "topK",
    "stop": "stopSequences",
    "seed": "seed",
}
_RESERVED_GOOGLE_OPTIONS = {
    "model": "perdure",
    "contents": "perdure",
    "systemInstruction": "the agent's instructions",
    "continuationToken": "perdure",
}
_MERGED_OPTION_TYPES: dict[str, type] = {"generationConfig": dict, "toolConfig": dict, "tools": list}
"""Options that are added to what perdure sends."""
_THINKING_LEVELS = {
    "none": "MINIMAL",  # these models always think
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "XHIGH",
}
_GEMINI_THINKING_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576}
"""Tokens of thinking for models before Gemini 3, as Google's own OpenAI endpoint counts them."""
_GEMINI_NAME = re.compile(r"gemini-(\d+(?:\.\d+)?)")
_SNAKE_CASE_LETTER = re.compile(r"_([a-z])")


def parse_gemini_version(model: str) -> float:
    """Of a Gemini model, for instance 2.5: the newest where its name does not say (an alias); 0 for other models."""
    found = _GEMINI_NAME.search(model)
    if found is not None:
        return float(found[1])
    return math.inf if "gemini-" in model else 0.0


def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Whether Gemini has these ``settings``, and ``provider_options`` do not meet them.

    Options are the fields of the request beside ``contents``; ``tools`` and ``toolConfig`` are added to the agent's,
    ``generationConfig`` to the settings. Needs no SDK. Raises ``SettingsError``.
    """
    given = check_canonical_settings("google", settings)
    effort = given.get("reasoning_effort", "low")
    if effort not in _THINKING_LEVELS:
        raise SettingsError(
            f"Setting 'reasoning_effort' for provider 'google' is one of {', '.join(_THINKING_LEVELS)}, not {effort!r}."
        )
    check_provider_options("google", provider_options, _add_snake_case_names(_RESERVED_GOOGLE_OPTIONS))
    for key, value in provider_options.items():
        shape = _MERGED_OPTION_TYPES.get(_to_camel_case(key))
        if shape is not None and key != _to_camel_case(key):
            raise SettingsError(f"provider_options[{key!r}] for provider 'google' is written {_to_camel_case(key)!r}.")
        if shape is not None and not isinstance(value, shape):
            raise SettingsError(
                f"provider_options[{key!r}] for provider 'google' is a {shape.__name__}, not {value!r}."
            )
    taken = {_CONFIG_NAMES[key]: f"settings[{key!r}]" for key in given if key in _CONFIG_NAMES}
    config = provider_options.get("generationConfig", {})
    taken["candidateCount"] = "perdure"  # one reply is read, and each would be paid for
    check_provider_options("google", config, _add_snake_case_names(taken))
    if not isinstance(config.get("thinkingConfig", {}), dict):
        raise SettingsError("generationConfig['thinkingConfig'] of provider_options for provider 'google' is a dict.")
    if "reasoning_effort" in given:
        thinking = config.get("thinkingConfig", {})
        taken = dict.fromkeys(("thinkingLevel", "thinkingBudget"), "settings['reasoning_effort']")
        check_provider_options("google", thinking, _add_snake_case_names(taken))
    check_provider_options(
        "google", provider_options.get("toolConfig", {}), _add_snake_case_names({"functionCallingConfig": "perdure"})
    )


def encode_generation_config(model: str, settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``generationConfig`` from settings that were checked, and ``more`` of it from the provider's options."""
    config = {
        _CONFIG_NAMES[key]: value for key, value in settings.items() if key in _CONFIG_NAMES and value is not None
    }
    if isinstance(stop := config.get("stopSequences"), str):
        config["stopSequences"] = [stop]
    thinking = _build_thinking_config(model, settings.get("reasoning_effort"))
    if thinking or "thinkingConfig" in more:
        config["thinkingConfig"] = {**thinking, **more.get("thinkingConfig", {})}
    return {**config, **{key: value for key, value in more.items() if key != "thinkingConfig"}}


def _build_thinking_config(model: str, effort: str | None) -> dict[str, Any]:
    version = parse_gemini_version(model)
    if version < 2.5:
        return {}  # they do not think, and refuse to be told how
    thinking: dict[str, Any] = {"includeThoughts": True}
    if effort is None:
        return thinking
    if version >= 3:
        return {**thinking, "thinkingLevel": _THINKING_LEVELS[effort]}
    budget = _GEMINI_THINKING_BUDGETS[effort]
    if budget == 0:
        return {"thinkingBudget": 0}
    return {**thinking, "thinkingBudget": budget}


def _to_camel_case(name: str) -> str:
    return _SNAKE_CASE_LETTER.sub(lambda found: found[1].upper(), name)


def _add_snake_case_names(taken: Mapping[str, str]) -> dict[str, str]:
    """The names in both spellings: the API takes either."""
    snake = {re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name): by for name, by in taken.items()}
    return {**snake, **taken}


PLACEHOLDER_SIGNATURE = "skip_thought_signature_validator"
"""Google's documented signature for calls that its models did not write themselves.

From Gemini 3 on the API refuses a reply whose first call has no thought signature. A conversation that another vendor
began has none to give.
"""
_GEMINI_FILE_TYPES = re.compile(r"image/(png|jpeg|webp|heic|heif)|audio/.+|video/.+|application/pdf")
"""What Gemini reads as a file."""
_GEMINI_RESULT_FILE_TYPES = re.compile(r"image/(png|jpeg|webp)|application/pdf")
"""What may stand inside a function's response."""

EncodedContent = tuple[str, list[bytes]]
"""Kind (``user``, ``model`` or ``results``) and encoded parts."""


def encode_request(request: ModelRequest, *, origin: str) -> bytes:
    """The body of ``POST …:streamGenerateContent``. ``origin``: whose opaque data may go out."""
    options = dict(request.provider_options)
    head: dict[str, Any] = {}
    if request.system:
        head["systemInstruction"] = {"parts": [{"text": request.system}]}
    tools = [{"functionDeclarations": [encode_tool(spec) for spec in request.tools]}] if request.tools else []
    if tools or "tools" in options:
        head["tools"] = [*tools, *options.pop("tools", ())]  # theirs run on Google's servers, ours here
    if request.tool_choice:
        choice = {"mode": "ANY", "allowedFunctionNames": [request.tool_choice]}
        head["toolConfig"] = {**options.pop("toolConfig", {}), "functionCallingConfig": choice}
    if config := encode_generation_config(request.model, request.settings, options.pop("generationConfig", {})):
        head["generationConfig"] = config
    head |= options
    contents = (
        b'{"role":"%b","parts":[%b]}' % (b"model" if kind == "model" else b"user", b",".join(parts))
        for kind, parts in _encode_contents(request, origin)
    )
    start = encode_json(head)[:-1]
    return b"".join((start, b"," if head else b"", b'"contents":[', b",".join(contents), b"]}"))


def encode_tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool's declaration."""
    declaration: dict[str, Any] = {"name": spec.name, "description": spec.description}
    if (schema := translate_schema(spec.parameters)) is not None:
        declaration["parametersJsonSchema"] = schema
    return declaration


def encode_continuation(body: bytes, token: str) -> bytes:
    """The request again, going on where the reply was interrupted."""
    return b"".join((body[:-1], b',"continuationToken":', encode_json(token), b"}"))


def _encode_contents(request: ModelRequest, origin: str) -> Iterable[EncodedContent]:
    encoder = GoogleEncoder(request, origin)
    contents: list[EncodedContent] = []
    moved: list[bytes] = []  # results of one reply stand in one content: their files wait until all are there

    def add(kind: str, part: bytes) -> None:
        if not part:
            return  # nothing of the message is for this model
        if not contents or contents[-1][0] != kind:
            contents.append((kind, []))
        contents[-1][1].append(part)

    asked: Message | None = None
    for message in request.messages:
        if message.role == "tool":
            results, files = encoder.encode_results(message, asked)
            add("results", results)
            moved.append(files)
            continue
        for files in moved:
            add("user", files)
        moved.clear()
        asked = message
        add("model" if message.role == "assistant" else "user", encoder.encode_parts(message))
    for files in moved:
        add("user", files)
    return contents


class GoogleEncoder:
    """Encodes the messages of one request."""

    def __init__(self, request: ModelRequest, origin: str) -> None:
        self._files = request.files
        self._origin = origin
        self._ids = map_provider_ids(request.messages, origin)
        self._is_gemini_3 = parse_gemini_version(request.model) >= 3
        self._format = f"google:{origin}:{'3' if self._is_gemini_3 else '2'}"

    def encode_parts(self, message: Message) -> bytes:
        """The parts of a user's or a model's message, joined by commas; empty where nothing is left of it."""
        fragment = message.wire(self._format)
        if fragment is None:
            plain = [encoded for part in message.parts if (encoded := self._encode_part(part)) is not None]
            if self._is_gemini_3:
                _add_missing_signature(plain)
            fragment = b",".join(map(encode_json, plain))
            message.remember_wire(self._format, fragment)
        return fragment

    def encode_results(self, message: Message, asked: Message | None) -> tuple[bytes, bytes]:
        """A message's results, and what of their files has to follow as the user's. ``asked`` has the calls, in whose
        order the results are put: not every server goes by ids."""
        beside = f"{self._format}:files"
        results, files = message.wire(self._format), message.wire(beside)
        if results is None or files is None:
            order = {call.id: place for place, call in enumerate(asked.tool_calls)} if asked else {}
            parts = sorted(message.tool_results, key=lambda part: order.get(part.call_id, len(order)))
            left = [part.model_copy(update={"files": self._list_moved_files(part)}) for part in parts]
            results = b",".join(encode_json(self._encode_result(part)) for part in parts)
            files = b",".join(encode_json(self._encode_part(part)) for part in build_moved_file_parts(left))
            message.remember_wire(self._format, results)
            message.remember_wire(beside, files)
        return results, files

    def _encode_part(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextPart():
                text, opaque = require_loaded_text(part.text, part), get_own_opaque(part, self._origin)
                return {"text": text, **(opaque or {})} if text or opaque else None
            case FilePart():
                return self._encode_file(part)
            case ThinkingPart():
                if part.provider != self._origin or not (part.text or part.opaque):
                    return None
                return {"text": part.text, "thought": True, **(part.opaque or {})}
            case ToolCallPart():
                # Malformed arguments go back as {}: the result that follows says what was wrong.
                call = {"id": self._ids.get(part.id, part.id), "name": part.name, "args": part.arguments}
                return {"functionCall": call, **(get_own_opaque(part, self._origin) or {})}
            case OpaquePart():
                return get_own_opaque(part, self._origin)
            case ToolResultPart():
                return None  # results have their place
            case never:
                assert_never(never)

    def _encode_file(self, file: FilePart) -> dict[str, Any]:
        if not _GEMINI_FILE_TYPES.fullmatch(file.media_type):
            return {"text": render_file_text(file, self._files)}
        data = encode_file_base64(file, self._files)
        if data is None:
            return {"fileData": {"mimeType": file.media_type, "fileUri": file.url}}
        return {"inlineData": {"mimeType": file.media_type, "data": data}}

    def _encode_result(self, part: ToolResultPart) -> dict[str, Any]:
        said = {"error" if part.is_error else "output": require_loaded_text(part.content, part)}
        call_id = self._ids.get(part.call_id, part.call_id)
        response: dict[str, Any] = {"id": call_id, "name": part.name, "response": said}
        if inside := list(self._encode_inner_files(part)):
            response["parts"] = inside
        return {"functionResponse": response}

    def _encode_inner_files(self, part: ToolResultPart) -> Iterator[dict[str, Any]]:
        for file in part.files:
            if self._is_inner_file(file):
                named = {"displayName": file.name} if file.name else {}
                data = encode_file_base64(file, self._files)
                yield {"inlineData": {"mimeType": file.media_type, "data": data, **named}}

    def _list_moved_files(self, part: ToolResultPart) -> tuple[FilePart, ...]:
        return tuple(file for file in part.files if not self._is_inner_file(file))

    def _is_inner_file(self, file: FilePart) -> bool:
        # Models before Gemini 3 read no files in a function's response; addresses are for contents alone.
        return (
            self._is_gemini_3 and file.url is None and _GEMINI_RESULT_FILE_TYPES.fullmatch(file.media_type) is not None
        )


def _add_missing_signature(parts: list[dict[str, Any]]) -> None:
    first: Mapping[str, Any] | None = next((part for part in parts if "functionCall" in part), None)
    if first is not None and not first.get("thoughtSignature"):
        first["thoughtSignature"] = PLACEHOLDER_SIGNATURE  # type: ignore[index]  # it is one of parts
