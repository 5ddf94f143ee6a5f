"""The rules on a conversation: roles, parts, and that a turn of calls is answered whole, directly after it."""

from __future__ import annotations

import base64
import binascii
from typing import Any, NoReturn

from tests.servers.google_wire import error_body
from tests.servers.http import CORRUPT, MISLABELLED

SKIPPED = "skip_thought_signature_validator"
_KINDS = {"text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult"}
_BESIDE = {"thought", "thoughtSignature", "videoMetadata", "mediaResolution"}
_OF_MODEL = {"functionCall", "executableCode", "codeExecutionResult"}
_MEDIA = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "application/pdf", "audio/", "video/")
_INSIDE = ("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain")


class RefusedError(Exception):
    """The API refuses the request: status and the body of the answer."""

    def __init__(self, status: int, message: str, label: str, *details: dict[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, label, *details)


def refuse(message: str) -> NoReturn:
    """Answer 400."""
    raise RefusedError(400, message, "INVALID_ARGUMENT")


def check(condition: object, message: str) -> None:
    """Answer 400 unless ``condition``."""
    if not condition:
        refuse(message)


def check_contents(contents: list[Any], *, third: bool) -> None:
    """``third``: a model from Gemini 3 on, which wants signatures and takes files in responses."""
    asked: list[dict[str, Any]] = []
    for index, content in enumerate(contents):
        where = f"contents[{index}]"
        check(isinstance(content, dict) and set(content) <= {"role", "parts"}, f"Unknown name at '{where}'")
        role, parts = content.get("role"), content.get("parts")
        check(role in ("user", "model"), "Please use a valid role: user, model.")
        check(
            isinstance(parts, list) and parts,
            f"* GenerateContentRequest.{where}.parts: contents.parts must not be empty.",
        )
        kinds = [_part(part, role, f"{where}.parts[{number}]", third) for number, part in enumerate(parts)]
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if asked or answers:
            _answered(asked, answers, kinds)
        asked = [part["functionCall"] for part in parts if "functionCall" in part]
        if asked:
            said = "Please ensure that function call turn comes immediately after a user turn"
            follows = index > 0 and contents[index - 1]["role"] == "user"
            check(follows, f"{said} or after a function response turn.")
            if third:
                _signed(parts, index)
    check(contents[-1]["role"] == "user", "Please ensure that the last content is a user's.")
    check(not asked, "Please ensure that function response turn comes immediately after a function call turn.")


def _part(part: Any, role: str, where: str, third: bool) -> str:
    check(isinstance(part, dict) and set(part) <= _KINDS | _BESIDE, f"Unknown name at '{where}': {list(part)}")
    kinds = set(part) & _KINDS
    check(len(kinds) == 1 or set(part) == {"thoughtSignature"}, f"{where}: oneof field 'data' must be set once.")
    kind = next(iter(kinds), "text")
    check(role == "model" or kind not in _OF_MODEL, f"{where}: {kind} is for role model.")
    check(role == "user" or kind != "functionResponse", f"{where}: function response is for role user.")
    check(role == "model" or not {"thought", "thoughtSignature"} & set(part), f"{where}: thoughts are the model's.")
    if kind == "text" and "text" in part:
        check(isinstance(part["text"], str), f"Invalid value at '{where}.text' (TYPE_STRING)")
        check(
            part["text"] or "thoughtSignature" in part, f"Unable to submit request because {where} has an empty text."
        )
    if "thoughtSignature" in part:
        _base64(part["thoughtSignature"], f"{where}.thought_signature")
    if kind == "inlineData":
        _blob(part["inlineData"], where, _MEDIA, set())
    if kind == "fileData":
        check(set(part["fileData"]) == {"mimeType", "fileUri"}, f"Unknown name at '{where}.file_data'")
    if kind == "functionCall":
        call = part["functionCall"]
        check(set(call) <= {"id", "name", "args"} and call.get("name"), f"{where}.function_call.name: must be set.")
        check(isinstance(call.get("args", {}), dict), f"{where}.function_call.args: must be a struct.")
    if kind == "functionResponse":
        _response(part["functionResponse"], where, third)
    return kind


def _response(response: dict[str, Any], where: str, third: bool) -> None:
    check(set(response) <= {"id", "name", "response", "parts"}, f"Unknown name at '{where}.function_response'")
    check(response.get("name"), f"* GenerateContentRequest.{where}.function_response.name: Name cannot be empty.")
    check(isinstance(response.get("response"), dict), f"Invalid value at '{where}.function_response.response' (Struct)")
    if "parts" in response:
        check(third, "Multimodal function response is not supported for this model.")
        for inner in response["parts"]:
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
    if data.endswith(MISLABELLED):
        said = f"Invalid value at '{where}' (TYPE_BYTES), Base64 decoding failed"
        violation = {"field": where, "description": said}
        detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}
        raise RefusedError(400, said, "INVALID_ARGUMENT", detail)


def _answered(asked: list[dict[str, Any]], answers: list[dict[str, Any]], kinds: list[str]) -> None:
    check(asked, "Please ensure that function response turn comes immediately after a function call turn.")
    said = "Please ensure that the number of function response parts is equal to the number of function call parts"
    check(len(asked) == len(answers), f"{said} of the function call turn.")
    check(set(kinds) == {"functionResponse"}, "A function response turn has function responses alone.")
    check([call["name"] for call in asked] == [answer["name"] for answer in answers], "Function names do not match.")
    for call, answer in zip(asked, answers, strict=True):
        check(call.get("id") == answer.get("id"), f"Function response id {answer.get('id')} does not match its call.")


def _signed(parts: list[dict[str, Any]], index: int) -> None:
    first = next(part for part in parts if "functionCall" in part)
    name = first["functionCall"]["name"]
    said = "Function call is missing a thought_signature in functionCall parts. This is required for tools to work"
    check(first.get("thoughtSignature"), f"{said} correctly, function call `default_api:{name}`, position {index}.")
