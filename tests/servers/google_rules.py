"""The rules that the Gemini API enforces on a request, with its own status codes and messages."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from tests.servers.google_contents import RefusedError, check, check_contents, refuse

_FIELDS = {
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "cachedContent",
}
_FIELDS |= {"labels", "serviceTier", "store", "continuationToken"}
_CONFIG = {
    "temperature",
    "topP",
    "topK",
    "maxOutputTokens",
    "stopSequences",
    "seed",
    "thinkingConfig",
    "candidateCount",
}
_CONFIG |= {"responseMimeType", "responseJsonSchema", "responseModalities", "presencePenalty", "frequencyPenalty"}
_CONFIG |= {"mediaResolution", "speechConfig", "imageConfig", "responseLogprobs", "logprobs"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}\Z")
_SCHEMA = {"$id", "$anchor", "$ref", "$defs", "type", "format", "title", "description", "enum", "items", "prefixItems"}
_SCHEMA |= {"minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties"}
_SCHEMA |= {"required", "propertyOrdering"}
_FORMATS = {"date-time", "date", "time", "enum", "int32", "int64", "float", "double"}


def parse(body: bytes, model: str) -> dict[str, Any]:
    """The request's JSON, checked whole for ``model``. Raises ``RefusedError``."""
    try:
        request = json.loads(body.decode("utf-8", "strict"), parse_constant=_no_constant, object_pairs_hook=_once)
    except ValueError as error:
        refuse(f"Invalid JSON payload received. {error}")
    check(isinstance(request, dict), "Invalid JSON payload received. Root element must be a message.")
    known(request, _FIELDS, "")
    _config(request.get("generationConfig", {}), model)
    names = _tools(request)
    _choice(request, names)
    if "systemInstruction" in request:
        parts = request["systemInstruction"].get("parts", [])
        check(parts and all(set(part) == {"text"} and part["text"] for part in parts), "system_instruction: only text.")
    check(isinstance(request.get("contents"), list) and request["contents"], "* contents: contents is not specified")
    check_contents(request["contents"], third=not re.search(r"gemini-[12]|gemma", model))
    return request


def known(value: dict[str, Any], names: set[str], where: str) -> None:
    """Answer 400 for a field that the message does not have."""
    for key in value:
        at = f" at '{where}'" if where else ""
        check(key in names, f'Invalid JSON payload received. Unknown name "{key}"{at}: Cannot find field.')


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"Unexpected token: {name}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("Duplicate field")
    return dict(pairs)


def _config(config: dict[str, Any], model: str) -> None:
    known(config, _CONFIG, "generation_config")
    for key, low, high in (("temperature", 0, 2), ("topP", 0, 1)):
        value = config.get(key, low)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        check(number and low <= value <= high, f"* GenerateContentRequest.generation_config.{key}: out of range")
    for key in ("topK", "maxOutputTokens", "seed", "candidateCount"):
        check(isinstance(config.get(key, 1), int), f"Invalid value at 'generation_config.{key}' (TYPE_INT32)")
    check(config.get("maxOutputTokens", 1) > 0, "max_output_tokens must be positive")
    stop = config.get("stopSequences", [])
    check(isinstance(stop, list) and len(stop) <= 5 and all(stop), "at most 5 stop_sequences, none of them empty")
    if "thinkingConfig" not in config:
        return
    thinking = config["thinkingConfig"]
    known(thinking, {"includeThoughts", "thinkingBudget", "thinkingLevel"}, "generation_config.thinking_config")
    check(re.search(r"gemini-(2\.5|[3-9]|[a-z])", model), "Thinking is not enabled for this model")
    check(not {"thinkingBudget", "thinkingLevel"} <= set(thinking), "You can only set only one of thinking budget and")
    if re.search(r"gemini-2", model):
        check("thinkingLevel" not in thinking, "Thinking level is not supported for this model.")
    level = thinking.get("thinkingLevel", "LOW")
    check(level in ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH"), f"Invalid value at 'thinking_level': {level}")


def _tools(request: dict[str, Any]) -> list[str]:
    names: list[str] = []
    for tool in request.get("tools", ()):
        known(tool, {"functionDeclarations", "googleSearch", "codeExecution", "urlContext"}, "tools")
        if "functionDeclarations" not in tool:
            continue
        check(tool["functionDeclarations"], "tools.function_declarations must not be empty")
        for declaration in tool["functionDeclarations"]:
            known(declaration, {"name", "description", "parametersJsonSchema", "behavior"}, "function_declarations")
            name = declaration.get("name")
            check(
                isinstance(name, str) and _NAME.match(name), f"Invalid function name: {name}. Must start with a letter"
            )
            check(name not in names, f"Duplicate function declaration found: {name}")
            check(declaration.get("description"), f"{name}: description must not be empty")
            if "parametersJsonSchema" in declaration:
                schema = declaration["parametersJsonSchema"]
                check(schema.get("type") == "object", f"{name}: parameters schema should be of type OBJECT.")
                _schema(schema, f"{name}.parameters", schema.get("$defs", {}))
            names.append(name)
    return names


def _schema(schema: Any, where: str, definitions: dict[str, Any]) -> None:
    check(isinstance(schema, dict), f"{where}: not a schema")
    known(schema, _SCHEMA, where)
    if "$ref" in schema:
        beside = [key for key in schema if not key.startswith("$")]
        check(not beside, f"{where}: $ref stands with {beside}")
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        check(name in definitions, f"{where}: reference to an undefined schema {schema['$ref']}")
    check(schema.get("format", "date") in _FORMATS, f"{where}: format {schema.get('format')} is not supported")
    values = schema.get("enum", ["x"])
    texts = all(isinstance(value, str) for value in values)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    check(values and (texts or numbers), f"{where}.enum: only texts or only numbers")
    if schema.get("type") == "array":
        check("items" in schema or "prefixItems" in schema, f"{where}.items: missing field.")
    for name in schema.get("required", ()):
        check(name in schema.get("properties", {}), f"{where}.required: property is not defined: {name}")
    for key in ("properties", "$defs"):
        for name, inner in schema.get(key, {}).items():
            _schema(inner, f"{where}.{key}[{name}]", definitions)
    for key in ("anyOf", "oneOf", "prefixItems"):
        for inner in schema.get(key, ()):
            _schema(inner, f"{where}.{key}", definitions)
    for key in ("items", "additionalProperties"):
        if key in schema and not isinstance(schema[key], bool):
            _schema(schema[key], f"{where}.{key}", definitions)


def _choice(request: dict[str, Any], names: list[str]) -> None:
    config = request.get("toolConfig", {})
    known(config, {"functionCallingConfig", "includeServerSideToolInvocations", "retrievalConfig"}, "tool_config")
    choice = config.get("functionCallingConfig", {"mode": "AUTO"})
    check(choice.get("mode") in ("AUTO", "ANY", "NONE", "VALIDATED"), "Invalid value at 'mode'")
    allowed = choice.get("allowedFunctionNames", [])
    check(not allowed or choice["mode"] in ("ANY", "VALIDATED"), "allowed_function_names: only with mode ANY")
    for name in allowed:
        check(name in names, f"allowed_function_names contains {name}, which is not declared")


__all__ = ["RefusedError", "parse"]
