"""Encodes a request of Gemini's ``generateContent``.

Each message is encoded once in its life, as the parts of its content; a call joins the parts of consecutive messages of
the user, and of the results of one reply's calls, into one content.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never

from ..errors import SettingsError
from ..ports.model import ModelRequest
from ..types.messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from ..types.transcript import iter_pieces
from .encoding import (
    CONTINUE_TEXT,
    MessageEncoder,
    build_body,
    build_moved_file_parts,
    encode_file_base64,
    encode_json,
    get_own_opaque,
    join_fragments,
    render_file_text,
    require_loaded_text,
    strip_parameters,
)
from .settings import check_canonical_settings, check_provider_options
from .tool_schemas import GOOGLE, WireTool, encode_name, has_arguments, translate_tools

# ---
# The canonical settings under the names of Gemini's ``generationConfig``, and their checks.


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
"""Tokens of thinking for models before Gemini 3, the same as in Google's OpenAI endpoint."""
_GEMINI_NAME = re.compile(r"gemini-(\d+(?:\.\d+)?)")
_SNAKE_CASE_LETTER = re.compile(r"_([a-z])")


def parse_gemini_version(model: str) -> float:
    """The version of a Gemini model, for instance 2.5; infinity for an alias without a version, 0 for other models."""
    match = _GEMINI_NAME.search(model)
    if match is not None:
        return float(match[1])
    return math.inf if "gemini-" in model else 0.0


def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Check the settings and options of an agent. Raises ``SettingsError``.

    Options are the fields of the request beside ``contents``; ``tools`` and ``toolConfig`` are added to the agent's,
    ``generationConfig`` to the settings.
    """
    provider = "for provider 'google'"
    given = check_canonical_settings("google", settings)
    effort = given.get("reasoning_effort", "low")
    if effort not in _THINKING_LEVELS:
        levels = ", ".join(_THINKING_LEVELS)
        raise SettingsError(f"Setting 'reasoning_effort' {provider} must be one of {levels}, not {effort!r}.")
    _check_options(provider_options, _RESERVED_GOOGLE_OPTIONS)
    for key, value in provider_options.items():
        name = _to_camel_case(key)
        shape = _MERGED_OPTION_TYPES.get(name)
        if shape is not None and key != name:
            raise SettingsError(f"provider_options[{key!r}] {provider} must be written {name!r}.")
        if shape is not None and not isinstance(value, shape):
            raise SettingsError(f"provider_options[{key!r}] {provider} must be a {shape.__name__}, not {value!r}.")
    config = provider_options.get("generationConfig", {})
    taken = {_CONFIG_NAMES[key]: f"settings[{key!r}]" for key in given if key in _CONFIG_NAMES}
    _check_options(config, {**taken, "candidateCount": "perdure"})  # one reply is read, and each would be paid for
    thinking = config.get("thinkingConfig", {})
    if not isinstance(thinking, dict):
        raise SettingsError(f"generationConfig['thinkingConfig'] of provider_options {provider} must be a dict.")
    if "reasoning_effort" in given:
        _check_options(thinking, dict.fromkeys(("thinkingLevel", "thinkingBudget"), "settings['reasoning_effort']"))
    _check_options(provider_options.get("toolConfig", {}), {"functionCallingConfig": "perdure"})


def _check_options(options: Mapping[str, Any], taken: Mapping[str, str]) -> None:
    """Refuse options that are ``taken``, in camel case or snake case: the API takes either."""
    snake = {re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name): by for name, by in taken.items()}
    check_provider_options("google", options, {**snake, **taken})


def encode_generation_config(model: str, settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``generationConfig`` from checked settings, and ``more`` of it from the provider's options."""
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
        return {}  # these models do not think, and refuse the parameter
    thinking: dict[str, Any] = {"includeThoughts": True}
    if effort is None:
        return thinking
    if version >= 3:
        return {**thinking, "thinkingLevel": _THINKING_LEVELS[effort]}
    budget = _GEMINI_THINKING_BUDGETS[effort]
    return {**thinking, "thinkingBudget": budget} if budget else {"thinkingBudget": 0}


def _to_camel_case(name: str) -> str:
    return _SNAKE_CASE_LETTER.sub(lambda match: match[1].upper(), name)


PLACEHOLDER_SIGNATURE = "skip_thought_signature_validator"
"""Google's documented signature for calls that its models did not write themselves.

From Gemini 3 on the API refuses a reply whose first call has no thought signature, and calls of other vendors have
none.
"""
_GEMINI_FILE_TYPES = re.compile(r"image/(png|jpeg|webp|heic|heif)|audio/.+|video/.+|application/pdf")
"""Types that Gemini takes as a file."""
_GEMINI_RESULT_FILE_TYPES = re.compile(r"image/(png|jpeg|webp)|application/pdf")
"""Types that may stand inside a function's response."""


def encode_request(request: ModelRequest, *, origin: str) -> bytes:
    """The body of ``POST …:streamGenerateContent`` at ``origin``."""
    options = dict(request.provider_options)
    head: dict[str, Any] = {}
    if request.system:
        head["systemInstruction"] = {"parts": [{"text": request.system}]}
    offered = translate_tools(GOOGLE, request.tools).offered
    tools = [{"functionDeclarations": [encode_tool(tool) for tool in offered]}] if offered else []
    if tools or "tools" in options:
        head["tools"] = [*tools, *options.pop("tools", ())]  # the options' tools run on Google's servers
    if request.tool_choice:
        choice = {"mode": "ANY", "allowedFunctionNames": [encode_name(GOOGLE, request.tool_choice)]}
        head["toolConfig"] = {**options.pop("toolConfig", {}), "functionCallingConfig": choice}
    if config := encode_generation_config(request.model, request.settings, options.pop("generationConfig", {})):
        head["generationConfig"] = config
    head |= options
    return build_body(head, "contents", GoogleEncoder(request, origin).encode_contents())


def encode_tool(tool: WireTool) -> dict[str, Any]:
    """A tool's declaration."""
    declaration: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if has_arguments(tool.parameters):
        declaration["parametersJsonSchema"] = tool.parameters
    return declaration


def encode_continuation(body: bytes, token: str) -> bytes:
    """The request of ``body`` again, continued where the reply was interrupted."""
    return b"".join((body[:-1], b',"continuationToken":', encode_json(token), b"}"))


Content = tuple[str, list[bytes]]
"""Kind (``user``, ``model`` or ``results``) and encoded parts of a content; "" for contents that are encoded whole."""


def _add_content(contents: list[Content], kind: str, parts: Iterable[bytes]) -> None:
    """Add those of ``parts`` that are not empty to the last of ``contents`` if that is of their kind, else as a new
    one."""
    added = [*filter(None, parts)]
    if added and kind and contents and contents[-1][0] == kind:
        contents[-1][1].extend(added)
    elif added:
        contents.append((kind, added))


def _close_contents(message_contents: list[Content]) -> list[Content]:
    """The contents of a segment: its first and its last, which its neighbours may continue, and all between as one."""
    contents: list[Content] = []
    for kind, parts in message_contents:
        _add_content(contents, kind, parts)
    if len(contents) < 4:
        return contents
    closed = b",".join(itertools.starmap(_encode_content, contents[1:-1]))
    return [contents[0], ("", [closed]), contents[-1]]


def _encode_content(kind: str, parts: list[bytes]) -> bytes:
    joined = b",".join(parts)
    return b'{"role":"%b","parts":[%b]}' % (b"model" if kind == "model" else b"user", joined) if kind else joined


class GoogleEncoder(MessageEncoder):
    """Encodes the messages of one request."""

    def __init__(self, request: ModelRequest, origin: str) -> None:
        super().__init__(request, origin)
        self._is_gemini_3 = parse_gemini_version(request.model) >= 3
        self._key = f"google:{origin}:{'3' if self._is_gemini_3 else '2'}"

    def encode_call_id(self, call_id: str) -> str:
        """The id as it is sent: Gemini takes any."""
        return self.provider_ids.get(call_id, call_id)

    def encode_contents(self) -> Iterator[bytes]:
        """The contents, in pieces of one or more JSON objects."""
        contents: list[Content] = []
        for kind, parts in self.encode_pieces(
            iter_pieces(self.messages), self._key, self._encode_piece, _close_contents
        ):
            _add_content(contents, kind, parts)
        if not contents or contents[-1][0] == "model":  # the last user message may be empty
            _add_content(contents, "user", [encode_json({"text": CONTINUE_TEXT})])
        return itertools.starmap(_encode_content, contents)

    def _encode_piece(self, messages: Sequence[Message]) -> list[Content]:
        """The contents of ``messages``, of which neighbours of one kind are to be joined."""
        contents: list[Content] = []
        moved: list[bytes] = []  # files of results wait until all results of a reply are in one content
        calling_message = self.preceding
        for message in messages:
            if message.role == "tool":
                results, files = self._encode_results(message, calling_message)
                contents.append(("results", [results]))
                moved.append(files)
                continue
            contents.append(("user", moved))
            moved = []
            calling_message = message
            contents.append(("model" if message.role == "assistant" else "user", [self._encode_message(message)]))
        return [*contents, ("user", moved)]

    def _encode_message(self, message: Message) -> bytes:
        """The parts of a user's or a model's message, joined by commas; empty if nothing of it can be sent."""
        fragment = message.wire(self._key)
        if fragment is None:
            parts = [encoded for part in message.parts if (encoded := self._encode_part(part)) is not None]
            first_call = next((part for part in parts if "functionCall" in part), None)
            if self._is_gemini_3 and first_call is not None and not first_call.get("thoughtSignature"):
                first_call["thoughtSignature"] = PLACEHOLDER_SIGNATURE
            fragment = join_fragments(message, self._key, parts)
        return fragment

    def _encode_results(self, message: Message, calling_message: Message | None) -> tuple[bytes, bytes]:
        """A message's results, and those of their files that follow as the user's. Results are in the order of the
        calls: not every server goes by ids."""
        files_key = f"{self._key}:files"
        results, files = message.wire(self._key), message.wire(files_key)
        if results is None or files is None:
            calls = calling_message.tool_calls if calling_message else ()
            order = {call.id: place for place, call in enumerate(calls)}
            parts = sorted(message.tool_results, key=lambda part: order.get(part.call_id, len(order)))
            results = join_fragments(message, self._key, map(self._encode_result, parts))
            left = []
            for part in parts:
                moved = tuple(file for file in part.files if not self._is_inner_file(file))
                left.append(part.model_copy(update={"files": moved}))
            files = join_fragments(message, files_key, map(self._encode_part, build_moved_file_parts(left)))
        return results, files

    def _encode_part(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextPart():
                text, opaque = require_loaded_text(part), self.get_opaque(part)
                return {"text": text, **opaque} if text or opaque else None
            case FilePart():
                return self._encode_file(part)
            case ThinkingPart():
                if part.provider != self.origin or not (part.text or part.opaque):
                    return None
                return {"text": part.text, "thought": True, **(part.opaque or {})}
            case ToolCallPart():
                # Malformed arguments are sent as {}: the result that follows says what was wrong.
                call = {
                    "id": self.encode_call_id(part.id),
                    "name": encode_name(GOOGLE, part.name),
                    "args": part.arguments,
                }
                return {"functionCall": call, **self.get_opaque(part)}
            case OpaquePart():
                return get_own_opaque(part, self.origin)
            case ToolResultPart():
                return None  # only in messages of its own
            case never:
                assert_never(never)

    def _encode_file(self, file: FilePart) -> dict[str, Any]:
        media_type = strip_parameters(file.media_type)
        if not _GEMINI_FILE_TYPES.fullmatch(media_type):
            return {"text": render_file_text(file, self.files)}
        data = encode_file_base64(file, self.files)
        if data is None:
            return {"fileData": {"mimeType": media_type, "fileUri": file.url}}
        return {"inlineData": {"mimeType": media_type, "data": data}}

    def _encode_result(self, part: ToolResultPart) -> dict[str, Any]:
        response = {"error" if part.is_error else "output": require_loaded_text(part)}
        name = encode_name(GOOGLE, part.name)
        result: dict[str, Any] = {"id": self.encode_call_id(part.call_id), "name": name, "response": response}
        for file in filter(self._is_inner_file, part.files):
            title = {"displayName": file.name} if file.name else {}
            inner = {"inlineData": {**self._encode_file(file)["inlineData"], **title}}
            result.setdefault("parts", []).append(inner)
        return {"functionResponse": result}

    def _is_inner_file(self, file: FilePart) -> bool:
        # Models before Gemini 3 read no files in a function's response; URLs are not allowed there.
        is_readable = _GEMINI_RESULT_FILE_TYPES.fullmatch(strip_parameters(file.media_type)) is not None
        return self._is_gemini_3 and file.url is None and is_readable
