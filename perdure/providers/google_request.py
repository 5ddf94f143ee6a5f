"""A request in the format of Gemini's ``generateContent``, as bytes.

Each message is encoded once in its life, as the parts of its content; a call joins them, and puts what belongs into
one content together: messages of the user that follow each other, and the results of one reply's calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, assert_never

from ..ports import ModelRequest, ToolSpec
from ..types.messages import (
    FilePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from .encoding import encode_json
from .foreign import file_base64, loaded, moved_files, own, provider_ids, rendered
from .google_schema import translate_schema
from .google_settings import encode_config, generation

UNSIGNED = "skip_thought_signature_validator"
"""Google's documented signature for calls that its models did not write themselves.

From Gemini 3 on the API refuses a reply whose first call has no thought signature. A conversation that another vendor
began has none to give.
"""
_FILES = re.compile(r"image/(png|jpeg|webp|heic|heif)|audio/.+|video/.+|application/pdf")
"""What Gemini reads as a file."""
_RESULT_FILES = re.compile(r"image/(png|jpeg|webp)|application/pdf")
"""What may stand inside a function's response."""

Content = tuple[str, list[bytes]]
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
    if config := encode_config(request.model, request.settings, options.pop("generationConfig", {})):
        head["generationConfig"] = config
    head |= options
    contents = (
        b'{"role":"%b","parts":[%b]}' % (b"model" if kind == "model" else b"user", b",".join(parts))
        for kind, parts in _contents(request, origin)
    )
    start = encode_json(head)[:-1]
    return b"".join((start, b"," if head else b"", b'"contents":[', b",".join(contents), b"]}"))


def encode_tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool's declaration."""
    declaration: dict[str, Any] = {"name": spec.name, "description": spec.description}
    if (schema := translate_schema(spec.parameters)) is not None:
        declaration["parametersJsonSchema"] = schema
    return declaration


def continued(body: bytes, token: str) -> bytes:
    """The request again, going on where the reply was interrupted."""
    return b"".join((body[:-1], b',"continuationToken":', encode_json(token), b"}"))


def _contents(request: ModelRequest, origin: str) -> Iterable[Content]:
    encoder = Encoder(request, origin)
    contents: list[Content] = []
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
            results, files = encoder.results(message, asked)
            add("results", results)
            moved.append(files)
            continue
        for files in moved:
            add("user", files)
        moved.clear()
        asked = message
        add("model" if message.role == "assistant" else "user", encoder.parts(message))
    for files in moved:
        add("user", files)
    return contents


class Encoder:
    """Encodes the messages of one request."""

    def __init__(self, request: ModelRequest, origin: str) -> None:
        self._files = request.files
        self._origin = origin
        self._ids = provider_ids(request.messages, origin)
        self._third = generation(request.model) >= 3
        self._format = f"google:{origin}:{'3' if self._third else '2'}"

    def parts(self, message: Message) -> bytes:
        """The parts of a user's or a model's message, joined by commas; empty where nothing is left of it."""
        fragment = message.wire(self._format)
        if fragment is None:
            plain = [encoded for part in message.parts if (encoded := self._part(part)) is not None]
            if self._third:
                _sign(plain)
            fragment = b",".join(map(encode_json, plain))
            message.remember_wire(self._format, fragment)
        return fragment

    def results(self, message: Message, asked: Message | None) -> tuple[bytes, bytes]:
        """A message's results, and what of their files has to follow as the user's. ``asked`` has the calls, in whose
        order the results are put: not every server goes by ids."""
        beside = f"{self._format}:files"
        results, files = message.wire(self._format), message.wire(beside)
        if results is None or files is None:
            order = {call.id: place for place, call in enumerate(asked.tool_calls)} if asked else {}
            parts = sorted(message.tool_results, key=lambda part: order.get(part.call_id, len(order)))
            left = [part.model_copy(update={"files": self._left(part)}) for part in parts]
            results = b",".join(encode_json(self._result(part)) for part in parts)
            files = b",".join(encode_json(self._part(part)) for part in moved_files(left))
            message.remember_wire(self._format, results)
            message.remember_wire(beside, files)
        return results, files

    def _part(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextPart():
                text, opaque = loaded(part.text, part), own(part, self._origin)
                return {"text": text, **(opaque or {})} if text or opaque else None
            case FilePart():
                return self._file(part)
            case ThinkingPart():
                if part.provider != self._origin or not (part.text or part.opaque):
                    return None
                return {"text": part.text, "thought": True, **(part.opaque or {})}
            case ToolCallPart():
                # Malformed arguments go back as {}: the result that follows says what was wrong.
                call = {"id": self._ids.get(part.id, part.id), "name": part.name, "args": part.arguments}
                return {"functionCall": call, **(own(part, self._origin) or {})}
            case OpaquePart():
                return own(part, self._origin)
            case ToolResultPart():
                return None  # results have their place
            case never:
                assert_never(never)

    def _file(self, file: FilePart) -> dict[str, Any]:
        if not _FILES.fullmatch(file.media_type):
            return {"text": rendered(file, self._files)}
        data = file_base64(file, self._files)
        if data is None:
            return {"fileData": {"mimeType": file.media_type, "fileUri": file.url}}
        return {"inlineData": {"mimeType": file.media_type, "data": data}}

    def _result(self, part: ToolResultPart) -> dict[str, Any]:
        said = {"error" if part.is_error else "output": loaded(part.content, part)}
        call_id = self._ids.get(part.call_id, part.call_id)
        response: dict[str, Any] = {"id": call_id, "name": part.name, "response": said}
        if inside := list(self._inside(part)):
            response["parts"] = inside
        return {"functionResponse": response}

    def _inside(self, part: ToolResultPart) -> Iterator[dict[str, Any]]:
        for file in part.files:
            if self._fits(file):
                named = {"displayName": file.name} if file.name else {}
                data = file_base64(file, self._files)
                yield {"inlineData": {"mimeType": file.media_type, "data": data, **named}}

    def _left(self, part: ToolResultPart) -> tuple[FilePart, ...]:
        return tuple(file for file in part.files if not self._fits(file))

    def _fits(self, file: FilePart) -> bool:
        # Models before Gemini 3 read no files in a function's response; addresses are for contents alone.
        return self._third and file.url is None and _RESULT_FILES.fullmatch(file.media_type) is not None


def _sign(parts: list[dict[str, Any]]) -> None:
    first: Mapping[str, Any] | None = next((part for part in parts if "functionCall" in part), None)
    if first is not None and not first.get("thoughtSignature"):
        first["thoughtSignature"] = UNSIGNED  # type: ignore[index]  # it is one of parts
