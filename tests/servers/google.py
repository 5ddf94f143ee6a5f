"""Gemini's ``streamGenerateContent``: what the API refuses, with its own messages, and what a reply is in the format.

What a reply of its own carried is known: a signature that comes back changed, or on another part, is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.servers.http import Request
from tests.servers.tool_schemas import find_flaws
from tests.servers.wire import (
    CORRUPT,
    MISLABELLED,
    RefusedError,
    Reply,
    WireFormat,
    check,
    check_json,
    fresh,
    in_range,
    is_text,
    pieces,
    read_json,
    sse,
    words,
    written,
)

SKIPPED = "skip_thought_signature_validator"
_STATUSES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
_STATUSES |= {400: "INVALID_ARGUMENT", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}
_FIELDS = words("""
    contents systemInstruction tools toolConfig generationConfig safetySettings cachedContent labels serviceTier store
    continuationToken""")
_CONFIG = words("""
    temperature topP topK maxOutputTokens stopSequences seed thinkingConfig candidateCount responseMimeType
    responseJsonSchema responseModalities presencePenalty frequencyPenalty mediaResolution speechConfig imageConfig
    responseLogprobs logprobs""")
_SCHEMA = words("""
    $id $anchor $ref $defs type format title description enum items prefixItems minItems maxItems minimum maximum anyOf
    oneOf properties additionalProperties required propertyOrdering""")
_TYPES = words("date-time date time enum int32 int64 float double")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}\Z")
_KINDS = words("text inlineData fileData functionCall functionResponse executableCode codeExecutionResult")
_BESIDE = words("thought thoughtSignature videoMetadata mediaResolution")
_OF_MODEL = words("functionCall executableCode codeExecutionResult")
_MEDIA = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "application/pdf", "audio/", "video/")
_INSIDE = ("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain")


class GenerateContent(WireFormat):
    """The format."""

    name = "google"
    path = re.compile(r"/(v\d+\w*)/(models|tunedModels)/(?P<model>[^:?/]+):streamGenerateContent\?alt=sse")
    ends = ("MAX_TOKENS", "SAFETY")

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        """Signatures that went out, and the part that each went with."""

    def authenticate(self, headers: Mapping[str, str], right: str | None) -> None:
        key = headers.get("x-goog-api-key")
        check(key, "Method doesn't allow unregistered callers.", status=403, kind="PERMISSION_DENIED")
        said = "API key not valid. Please pass a valid API key."
        check(right in (None, key), said, details=[reason("API_KEY_INVALID")])
        check_json(headers)

    def parse(self, request: Request, model: str | None) -> dict[str, Any]:
        asked = parse(request.body, str(model))
        for part in (part for content in asked["contents"] for part in content["parts"]):
            signature = part.get("thoughtSignature", SKIPPED)
            if signature != SKIPPED:
                check(signature in self._given, "Thought signature is not valid.")
                check(self._given[signature] == _essence(part), "Thought signature is not valid for this part.")
        return asked

    def error_body(self, error: RefusedError) -> dict[str, Any]:
        label = error.kind or _STATUSES.get(error.status, "INTERNAL")
        return error_body(error.status, error.message, label, *error.details)

    def stream(self, reply: Reply, asked: dict[str, Any], size: int) -> Iterator[bytes]:
        for value in self._chunks(reply, asked["model"], size) if reply.chunks is None else reply.chunks:
            for candidate in value.get("candidates", ()) if isinstance(value, dict) else ():
                content = candidate.get("content")
                for part in content.get("parts", ()) if isinstance(content, dict) else ():
                    self._given[part.get("thoughtSignature", "")] = _essence(part)
            yield sse(value, b"\r\n\r\n")

    def _chunks(self, reply: Reply, model: str, size: int) -> Iterator[dict[str, Any]]:
        more = {"modelVersion": model, "responseId": fresh("r")}
        yield from (chunk(part, **more) for part in _parts(reply))
        if reply.done:
            usage = _usage(reply, size) if reply.usage is None else reply.usage
            yield chunk({"text": ""}, finish=self.finish_reason(reply, "STOP"), usageMetadata=usage, **more)


def _essence(part: dict[str, Any]) -> str:
    """What a signature signs: the part without it. An id may have been added to a call that had none."""
    bare = {key: value for key, value in part.items() if key != "thoughtSignature"}
    if "functionCall" in bare:
        bare["functionCall"] = {key: bare["functionCall"].get(key) for key in ("name", "args")}
    return json.dumps(bare, sort_keys=True)


def error_body(status: int, message: str, label: str, *details: Mapping[str, Any]) -> dict[str, Any]:
    """Google's error object."""
    error = {"code": status, "message": message, "status": label}
    return {"error": error | ({"details": list(details)} if details else {})}


def reason(value: str) -> dict[str, Any]:
    """An ErrorInfo detail."""
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": value, "domain": "googleapis.com"}


def retry_info(delay: str) -> dict[str, Any]:
    """A RetryInfo detail."""
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


def chunk(*parts: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk with ``parts``; ``more`` stands beside the candidates."""
    content = {"content": {"role": "model", "parts": list(parts)}} if parts else {}
    return {"candidates": [{"index": 0} | content | ({"finishReason": finish} if finish else {})], **more}


def _parts(reply: Reply) -> Iterator[dict[str, Any]]:
    thinking = "".join(reply.thinking)
    sealed = base64.b64encode(f"google {thinking}".encode()).decode() if thinking and reply.opaque else None
    yield from ({"text": piece, "thought": True} for piece in pieces(thinking))
    yield from ({"text": piece} for piece in pieces(reply.text))
    signature = reply.signature or (None if reply.calls else sealed)
    if signature is not None:
        yield {"text": "", "thoughtSignature": signature}
    for number, call in enumerate(reply.calls):
        args = dict(call.arguments) if isinstance(call.arguments, Mapping) else {}
        made = {"name": call.name, "args": args} | ({} if call.id is None else {"id": call.id or fresh("fc")})
        signature = call.signature or (None if number else sealed)
        yield {"functionCall": made} | ({"thoughtSignature": signature} if signature else {})


def _usage(reply: Reply, size: int) -> dict[str, int]:
    thoughts, wrote, read = len(pieces("".join(reply.thinking))), written(reply), size // 4
    counted = {"promptTokenCount": read, "candidatesTokenCount": wrote, "thoughtsTokenCount": thoughts}
    return counted | {"totalTokenCount": read + wrote + thoughts}


def parse(body: bytes, model: str) -> dict[str, Any]:
    """The request's JSON, checked whole for ``model``."""
    request = read_json(body, "Invalid JSON payload received.")
    _known(request, _FIELDS, "")
    _config(request.get("generationConfig", {}), model)
    _choice(request.get("toolConfig", {}), _tools(request))
    if "systemInstruction" in request:
        parts = request["systemInstruction"].get("parts", [])
        check(parts and all(set(part) == {"text"} and part["text"] for part in parts), "system_instruction: only text.")
    check(isinstance(request.get("contents"), list) and request["contents"], "* contents: contents is not specified")
    check_contents(request["contents"], third=not re.search(r"gemini-[12]|gemma", model))
    return request


def _known(value: dict[str, Any], names: set[str], where: str) -> None:
    for key in value:
        at = f" at '{where}'" if where else ""
        check(key in names, f'Invalid JSON payload received. Unknown name "{key}"{at}: Cannot find field.')


def _config(config: dict[str, Any], model: str) -> None:
    _known(config, _CONFIG, "generation_config")
    for key, high in (("temperature", 2), ("topP", 1)):
        fits = in_range(config.get(key, 0), 0, high)
        check(fits, f"* GenerateContentRequest.generation_config.{key}: out of range")
    for key in ("topK", "maxOutputTokens", "seed", "candidateCount"):
        check(isinstance(config.get(key, 1), int), f"Invalid value at 'generation_config.{key}' (TYPE_INT32)")
    check(config.get("maxOutputTokens", 1) > 0, "max_output_tokens must be positive")
    stop = config.get("stopSequences", [])
    check(isinstance(stop, list) and len(stop) <= 5 and all(stop), "at most 5 stop_sequences, none of them empty")
    if "thinkingConfig" not in config:
        return
    thinking = config["thinkingConfig"]
    _known(thinking, words("includeThoughts thinkingBudget thinkingLevel"), "generation_config.thinking_config")
    check(re.search(r"gemini-(2\.5|[3-9]|[a-z])", model), "Thinking is not enabled for this model")
    check(not {"thinkingBudget", "thinkingLevel"} <= set(thinking), "You can only set only one of thinking budget and")
    leveled = "thinkingLevel" not in thinking or not re.search(r"gemini-2", model)
    check(leveled, "Thinking level is not supported for this model.")
    level = thinking.get("thinkingLevel", "LOW")
    check(level in words("MINIMAL LOW MEDIUM HIGH XHIGH"), f"Invalid value at 'thinking_level': {level}")


def _tools(request: dict[str, Any]) -> list[str]:
    names: list[str] = []
    for tool in request.get("tools", ()):
        _known(tool, words("functionDeclarations googleSearch codeExecution urlContext"), "tools")
        check(tool.get("functionDeclarations", True), "tools.function_declarations must not be empty")
        for declaration in tool.get("functionDeclarations", ()):
            _known(declaration, words("name description parametersJsonSchema behavior"), "function_declarations")
            name = declaration.get("name")
            check(is_text(name) and _NAME.match(name), f"Invalid function name: {name}. Must start with a letter")
            check(name not in names, f"Duplicate function declaration found: {name}")
            check(declaration.get("description"), f"{name}: description must not be empty")
            if "parametersJsonSchema" in declaration:
                schema = declaration["parametersJsonSchema"]
                check(schema.get("type") == "object", f"{name}: parameters schema should be of type OBJECT.")
                check_schema(schema, f"{name}.parameters", schema.get("$defs", {}))
                for flaw in find_flaws("google", schema):
                    check(False, f"* {name}.parameters: {flaw}")
            names.append(name)
    return names


def check_schema(schema: Any, where: str, definitions: dict[str, Any]) -> None:
    """A schema as far as the API looks into it."""
    check(isinstance(schema, dict), f"{where}: not a schema")
    _known(schema, _SCHEMA, where)
    if "$ref" in schema:
        beside = [key for key in schema if not key.startswith("$")]
        check(not beside, f"{where}: $ref stands with {beside}")
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        check(name in definitions, f"{where}: reference to an undefined schema {schema['$ref']}")
    check(schema.get("format", "date") in _TYPES, f"{where}: format {schema.get('format')} is not supported")
    values = schema.get("enum", ["x"])
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    check(values and (all(map(is_text, values)) or numbers), f"{where}.enum: only texts or only numbers")
    if schema.get("type") == "array":
        check("items" in schema or "prefixItems" in schema, f"{where}.items: missing field.")
    for name in schema.get("required", ()):
        check(name in schema.get("properties", {}), f"{where}.required: property is not defined: {name}")
    for key in ("properties", "$defs"):
        for name, inner in schema.get(key, {}).items():
            check_schema(inner, f"{where}.{key}[{name}]", definitions)
    for key in ("anyOf", "oneOf", "prefixItems"):
        for inner in schema.get(key, ()):
            check_schema(inner, f"{where}.{key}", definitions)
    for key in ("items", "additionalProperties"):
        if not isinstance(schema.get(key, True), bool):
            check_schema(schema[key], f"{where}.{key}", definitions)


def _choice(config: dict[str, Any], names: list[str]) -> None:
    _known(config, words("functionCallingConfig includeServerSideToolInvocations retrievalConfig"), "tool_config")
    choice = config.get("functionCallingConfig", {"mode": "AUTO"})
    check(choice.get("mode") in ("AUTO", "ANY", "NONE", "VALIDATED"), "Invalid value at 'mode'")
    allowed = choice.get("allowedFunctionNames", [])
    check(not allowed or choice["mode"] in ("ANY", "VALIDATED"), "allowed_function_names: only with mode ANY")
    for name in allowed:
        check(name in names, f"allowed_function_names contains {name}, which is not declared")


def check_contents(contents: list[Any], *, third: bool) -> None:
    """Roles, parts, and that a turn of calls is answered whole, directly after it. ``third``: a model from Gemini 3 on,
    which wants signatures and takes files in responses."""
    asked: list[dict[str, Any]] = []
    for index, content in enumerate(contents):
        where = f"contents[{index}]"
        check(isinstance(content, dict) and set(content) <= {"role", "parts"}, f"Unknown name at '{where}'")
        role, parts = content.get("role"), content.get("parts")
        check(role in ("user", "model"), "Please use a valid role: user, model.")
        said = f"* GenerateContentRequest.{where}.parts: contents.parts must not be empty."
        check(isinstance(parts, list) and parts, said)
        kinds = [_part(part, role, f"{where}.parts[{number}]", third) for number, part in enumerate(parts)]
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if asked or answers:
            _answered(asked, answers, kinds)
        asked = [part["functionCall"] for part in parts if "functionCall" in part]
        if asked:
            said = "Please ensure that function call turn comes immediately after a user turn"
            follows = index > 0 and contents[index - 1]["role"] == "user"
            check(follows, f"{said} or after a function response turn.")
            first = next(part for part in parts if "functionCall" in part)
            said = (
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to work"
            )
            said += f" correctly, function call `default_api:{asked[0]['name']}`, position {index}."
            check(not third or first.get("thoughtSignature"), said)
    check(contents[-1]["role"] == "user", "Please ensure that the last content is a user's.")
    check(not asked, "Please ensure that function response turn comes immediately after a function call turn.")


def _part(part: Any, role: Any, where: str, third: bool) -> str:
    check(isinstance(part, dict) and set(part) <= _KINDS | _BESIDE, f"Unknown name at '{where}': {list(part)}")
    kinds = set(part) & _KINDS
    check(len(kinds) == 1 or set(part) == {"thoughtSignature"}, f"{where}: oneof field 'data' must be set once.")
    kind = next(iter(kinds), "text")
    check(role == "model" or kind not in _OF_MODEL, f"{where}: {kind} is for role model.")
    check(role == "user" or kind != "functionResponse", f"{where}: function response is for role user.")
    check(role == "model" or not {"thought", "thoughtSignature"} & set(part), f"{where}: thoughts are the model's.")
    if "thoughtSignature" in part:
        _base64(part["thoughtSignature"], f"{where}.thought_signature")
    match kind, part.get(kind):
        case "text", text:
            check(is_text(text or ""), f"Invalid value at '{where}.text' (TYPE_STRING)")
            said = f"Unable to submit request because {where} has an empty text."
            check(text or "thoughtSignature" in part, said)
        case "inlineData", blob:
            _blob(blob, where, _MEDIA, set())
        case "fileData", file:
            check(set(file) == {"mimeType", "fileUri"}, f"Unknown name at '{where}.file_data'")
        case "functionCall", call:
            check(set(call) <= {"id", "name", "args"} and call.get("name"), f"{where}.function_call.name: must be set.")
            check(isinstance(call.get("args", {}), dict), f"{where}.function_call.args: must be a struct.")
        case "functionResponse", response:
            _response(response, where, third)
    return kind


def _response(response: dict[str, Any], where: str, third: bool) -> None:
    check(set(response) <= {"id", "name", "response", "parts"}, f"Unknown name at '{where}.function_response'")
    check(response.get("name"), f"* GenerateContentRequest.{where}.function_response.name: Name cannot be empty.")
    check(isinstance(response.get("response"), dict), f"Invalid value at '{where}.function_response.response' (Struct)")
    check(third or "parts" not in response, "Multimodal function response is not supported for this model.")
    for inner in response.get("parts", ()):
        check(set(inner) == {"inlineData"}, f"Unknown name at '{where}.function_response.parts'")
        _blob(inner["inlineData"], where, _INSIDE, {"displayName"})


def _blob(blob: dict[str, Any], where: str, media: tuple[str, ...], more: set[str]) -> None:
    check({"mimeType", "data"} <= set(blob) <= {"mimeType", "data"} | more, f"Unknown name at '{where}.inline_data'")
    check(blob["mimeType"].startswith(media), f"Unsupported MIME type: {blob['mimeType']}")
    _base64(blob["data"], f"{where}.inline_data.data")


def _base64(text: Any, where: str) -> None:
    try:
        plain = str(text).replace("-", "+").replace("_", "/")
        data = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        data = MISLABELLED
    where_to = "https://developers.generativeai.google/guide/troubleshooting"
    check(not data.endswith(CORRUPT), f"Unable to process input image. Please retry or report in {where_to}")
    said = f"Invalid value at '{where}' (TYPE_BYTES), Base64 decoding failed"
    violation = {"field": where, "description": said}
    detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}
    check(not data.endswith(MISLABELLED), said, details=[detail])


def _answered(asked: list[dict[str, Any]], answers: list[dict[str, Any]], kinds: list[str]) -> None:
    check(asked, "Please ensure that function response turn comes immediately after a function call turn.")
    said = "Please ensure that the number of function response parts is equal to the number of function call parts"
    check(len(asked) == len(answers), f"{said} of the function call turn.")
    check(set(kinds) == {"functionResponse"}, "A function response turn has function responses alone.")
    check([call["name"] for call in asked] == [answer["name"] for answer in answers], "Function names do not match.")
    for call, answer in zip(asked, answers, strict=True):
        check(call.get("id") == answer.get("id"), f"Function response id {answer.get('id')} does not match its call.")
