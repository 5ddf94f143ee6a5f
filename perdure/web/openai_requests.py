"""What clients of OpenAI's API send: parameters, messages and the answers in them, and how a request acts.

    model                     an agent                    conversation, X-Perdure-Session   a session
    the last user's message   what is sent                tools of the request              client tools of the turn
    Idempotency-Key           ids of message and turn     ids of calls and approvals        run, call and hash

Ids carry what the next request needs, so nothing is kept between two requests.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeGuard, cast

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from ..errors import PerdureError, SettingsError, join_sentences
from ..providers.history import import_messages
from ..providers.settings import PROVIDERS_WITH_SETTINGS, check_canonical_settings, find_setting_flaw
from ..types.approvals import COMMENT_CHARS
from ..types.messages import FilePart, Message, Part, TextPart
from ..types.run_ids import get_root_id
from .problems import NotFoundError, WebError, build_problem
from .turns import MAX_MESSAGES, parse_wait_id

SESSION_HEADER = "X-Perdure-Session"
QUESTION_TOOL = "perdure_ask"
"""Name of the function as whose call a question of a tool is shown."""
MAX_ID_CHARS = 8_000
Format = Literal["openai", "openai-responses"]


class ParameterError(WebError):
    """A parameter of the request is wrong, or would change the result and is not supported."""

    def __init__(
        self, message: str, param: str | None, *, code: str = "invalid_value", hint: str | None = None
    ) -> None:
        super().__init__(message, name="InvalidInputError", hint=hint)
        self.param, self.code = param, code


class UnknownModelError(NotFoundError):
    """There is no such agent for this caller."""


_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def convert_problem(problem: Response, error: Exception, request: HTTPRequest) -> Response:
    """Return a problem in OpenAI's envelope."""
    status = problem.status_code
    headers = {name: value for name, value in problem.headers.items() if not name.startswith("content-")}
    if request.method == "POST" and "idempotency-key" not in request.headers and (status >= 500 or status == 409):
        headers["x-should-retry"] = "false"  # the SDK would act once more
    return JSONResponse({"error": describe_error(error, problem)}, status, headers)


def describe_error(error: Exception, problem: Response | None = None) -> dict[str, Any]:
    """Return OpenAI's fields of an error, with what its problem tells of it."""
    problem = problem or build_problem(cast(PerdureError, error))
    fields = json.loads(bytes(problem.body))
    message = join_sentences(fields["detail"], fields.get("hint"))
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", fields["error"].removesuffix("Error")).lower()
    param: str | None = None
    if isinstance(error, UnknownModelError):
        code, param = "model_not_found", "model"
    elif isinstance(error, ParameterError):
        code, param = error.code, error.param
    status = problem.status_code
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": code}


def read_session_header(request: HTTPRequest) -> str | None:
    """Return the session that the header names, in UTF-8."""
    value = request.headers.get(SESSION_HEADER)
    try:
        return None if value is None else value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise ParameterError(f"{SESSION_HEADER} is a text in UTF-8", SESSION_HEADER) from None


def encode_session_header(session: str) -> dict[str, str]:
    """Return the header that names the session of an answer."""
    return {SESSION_HEADER: session.encode().decode("latin-1")}


def parse_time(text: str) -> int:
    """Return the Unix time of a time in ISO 8601; 0 for none."""
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return 0


# ---
# Ids.


def encode_id(prefix: str, *parts: str | int) -> str:
    """Return an id of letters, digits, ``-`` and ``_`` that carries ``parts``."""
    plain = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    return prefix + base64.urlsafe_b64encode(plain.encode()).rstrip(b"=").decode()


def decode_id(prefix: str, id: str) -> list[Any] | None:
    """Return the parts of an id; None for one that :func:`encode_id` has not made."""
    body = id.removeprefix(prefix)
    if body == id or len(id) > MAX_ID_CHARS or not id.isascii():
        return None
    try:
        parts = json.loads(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
        is_own = isinstance(parts, list) and encode_id(prefix, *parts) == id
    except (binascii.Error, ValueError, TypeError, RecursionError):
        return None
    return parts if is_own else None


def encode_wait_id(prefix: str, run_id: str, call_id: str, hash: str) -> str:
    """Return the id of a call that waits, as :attr:`.turns.RunWait.id` names it."""
    return encode_id(prefix, run_id, call_id, hash)


def decode_wait_id(id: str) -> tuple[str, str, str] | None:
    """Return the run, call and hash of the id of a call or an approval; None for another service's id."""
    parts = decode_id("call_", id) or decode_id("mcpr_", id)
    if parts is None or len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        return None
    root = get_root_id(parts[0])
    return parse_wait_id("|".join(parts), root)


# ---
# Parameters.


IGNORED = frozenset(
    {
        "access_programs", "context_management", "image", "include", "max_tool_calls", "metadata", "moderation",
        "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
        "service_tier", "stream_options", "user",
    }
)  # fmt: skip
"""Parameters that change no answer, and are not heeded."""
_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "audio": (), "frequency_penalty": (0,), "function_call": (), "functions": (), "logit_bias": ({},),
    "logprobs": (False,), "modalities": (["text"],), "n": (1,), "parallel_tool_calls": (True,),
    "presence_penalty": (0,), "prompt": (), "tool_choice": ("auto", "none"), "top_logprobs": (0,),
    "truncation": ("disabled", "auto"), "verbosity": ("medium",), "web_search_options": (),
}  # fmt: skip
"""Parameters that would change the answer, and the values with which they do not: others are refused."""
_SETTINGS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "temperature": ("temperature", (int, float)),
    "top_p": ("top_p", (int, float)),
    "max_tokens": ("max_tokens", (int,)),
    "max_completion_tokens": ("max_tokens", (int,)),
    "max_output_tokens": ("max_tokens", (int,)),
    "stop": ("stop", (str, list)),
    "seed": ("seed", (int,)),
    "reasoning_effort": ("reasoning_effort", (str,)),
}
"""Parameters that are settings of the model for the turn, and what they may be."""


def read_parameters(body: Mapping[str, Any], own: frozenset[str]) -> dict[str, Any]:
    """Return the settings of the request, and refuse what would change the answer and is not supported. ``own`` are the
    parameters that the caller reads. Raises ``ParameterError``."""
    settings: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in own or name in IGNORED:
            continue
        if name in _SETTINGS:
            setting, types = _SETTINGS[name]
            if not isinstance(value, types) or isinstance(value, bool):
                raise ParameterError(f"{name} has another type", name, code="invalid_type")
            if (shape := find_setting_flaw(setting, value)) is not None:
                raise ParameterError(f"{name} must be {shape}, not {value!r:.100}", name)
            settings[setting] = value
        elif name not in _DEFAULTS:
            raise ParameterError(f"Unknown parameter: {name!r:.100}", name[:100], code="unknown_parameter")
        elif value not in _DEFAULTS[name]:
            hint = f"Leave it out, or send {_DEFAULTS[name][0]!r}." if _DEFAULTS[name] else "Leave it out."
            raise ParameterError(f"Unsupported value of {name}", name, code="unsupported_parameter", hint=hint)
    return settings


def check_model_settings(settings: Mapping[str, Any], definition: Mapping[str, Any]) -> None:
    """Refuse what a provider of the agent does not have, before a stream begins; of providers that only its workers
    know, these do."""
    for model in definition.get("models") or ():
        provider = str(model).partition(":")[0]
        for name in settings if provider in PROVIDERS_WITH_SETTINGS else ():
            try:
                check_canonical_settings(provider, {name: settings[name]})
            except SettingsError as error:
                raise ParameterError(error.message, name, code="unsupported_parameter", hint=error.hint) from None


def read_tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the client tools that the request declares: functions. Raises ``ParameterError``."""
    given = body.get("tools")
    if given is None:
        return None
    if not isinstance(given, list):
        raise ParameterError("tools is a list", "tools", code="invalid_type")
    tools = []
    for index, tool in enumerate(given):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise ParameterError(
                f"tools[{index}] is not a function", f"tools[{index}]", code="unsupported_value",
                hint="Tools of other kinds belong to the agent, which the service runs.",
            )  # fmt: skip
        function = tool.get("function", tool)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ParameterError(f"tools[{index}] has no name", f"tools[{index}].name", code="missing")
        parameters = function.get("parameters")
        tools.append(
            {
                "name": function["name"],
                "description": function.get("description") or "",
                "parameters": {"type": "object"} if parameters is None else parameters,
            }
        )
    return [] if body.get("tool_choice") == "none" else tools


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a parameter that is true or false. Raises ``ParameterError``."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ParameterError(f"{name} is true or false", name, code="invalid_type")
    return bool(value)


def read_text(body: Mapping[str, Any], name: str) -> str | None:
    """Return a parameter that is a text. Raises ``ParameterError``."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ParameterError(f"{name} is a text", name, code="invalid_type")
    return value


# ---
# Messages and answers.


@dataclass(frozen=True)
class Answer:
    """The decision on a call, or its result."""

    id: str
    run_id: str
    call_id: str
    hash: str
    approve: bool | None = None
    """None for a result."""
    text: str = ""
    """The result, or the reason of the decision."""


@dataclass
class Request:
    """What a request asks for."""

    agent: str | None
    """None: that of the session."""
    session: str | None
    tools: list[dict[str, Any]] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    content: list[TextPart | FilePart] | None = None
    """What the user says, maybe nothing; None if the request says nothing: it answers calls, or its conversation ends
    with another's message and is to go on."""
    history: list[Message] = field(default_factory=list)
    """The conversation before, for a new session."""
    system: str | None = None
    """What the client wants to add to the agent's instructions."""
    answers: list[Answer] = field(default_factory=list)
    continues: str | None = None
    """The turn after which the message is to come, if it is to be the last one."""
    has_key: bool = False
    """Whether a repeat of it is known by its ``Idempotency-Key``."""
    form: tuple[Any, str] = (None, "")
    """The form of the answer that is asked for, and the name of its parameter."""


def read_messages(request: Request, format: Format, messages: Sequence[Any], *, all_new: bool) -> None:
    """Fill ``request`` with the messages of the body. Raises ``ParameterError``, ``InvalidInputError``.

    ``all_new`` treats every user message as new, as after a ``previous_response_id``; otherwise only the last one is.
    """
    name = "messages" if format == "openai" else "input"
    if len(messages) > MAX_MESSAGES:
        raise WebError(f"{name} has more than {MAX_MESSAGES:,} entries", status=413, name="BodyTooLargeError")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ParameterError(f"{name}[{index}] is not an object", f"{name}[{index}]", code="invalid_type")
    if format == "openai":
        messages = _convert_functions(messages)
    start = max((index + 1 for index, message in enumerate(messages) if _is_reply(message)), default=0)
    tail = messages[start:]
    for index, message in enumerate(tail, start):
        kind, role = message.get("type", "message"), message.get("role")
        if kind == "message" and role not in ("user", "tool", "system", "developer"):
            raise ParameterError(f"{name}[{index}] has a role that is unknown", f"{name}[{index}].role")
        if role == "user" and message.get("content") is None:
            raise ParameterError(f"{name}[{index}] has no content", f"{name}[{index}].content", code="missing")
    is_new = request.session is None and not all_new
    past_calls = _list_past_calls(messages[:start]) if is_new else frozenset()
    request.answers = [answer for message in tail if (answer := _read_answer(message, past_calls)) is not None]
    users = [index for index, message in enumerate(tail) if message.get("role") == "user"]
    is_spoken = _find_last_role(tail) == "user"
    if request.answers and past_calls:  # of a conversation of this service: no call of it is another's
        for message in tail:
            _read_answer(message)
    elif not is_spoken and not request.answers:
        if not is_new:
            raise ParameterError(
                f"The last of {name} is neither the user's nor the result of a call of this service", name,
                hint="The session has the messages before: send what is new.",
            )  # fmt: skip
        users = []
    wanted = users if all_new else users[-1:]
    if wanted:
        imported = import_messages(format, [tail[index] for index in wanted])
        parts = [part for message in imported.messages for part in message.parts]
        request.content = [part for part in parts if isinstance(part, FilePart) or _is_text(part)]
    if request.answers:
        request.content = request.content or None
    system = [message for message in messages if message.get("role") in ("system", "developer")]
    if system:
        prompt = import_messages(format, system).system
        request.system = "\n\n".join(text for text in (request.system, prompt) if text) or None
    if not request.answers and request.session is None:
        end = start + wanted[0] if wanted else len(messages)
        before = [item for item in messages[:end] if item.get("role") not in ("system", "developer")]
        request.history = import_messages(format, list(_convert_items(before))).messages


def _find_last_role(messages: Sequence[Mapping[str, Any]]) -> str | None:
    roles = [message.get("role") or message.get("type") for message in messages]
    return next((role for role in reversed(roles) if role not in ("system", "developer")), None)


def _list_past_calls(messages: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the ids of the calls in messages of an earlier conversation, which need not have been this service's."""
    calls = [message.get("call_id") for message in messages if message.get("type") == "function_call"]
    for message in messages:
        entries = message.get("tool_calls") if message.get("role") == "assistant" else None
        calls += [entry.get("id") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return frozenset(call for call in calls if isinstance(call, str) and decode_wait_id(call) is None)


def _convert_functions(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose calls of functions, as the API had them before tools, are calls of tools."""
    converted: list[dict[str, Any]] = []
    call_id: str | None = None
    for index, message in enumerate(messages):
        given = message.get("function_call")
        if message.get("role") == "assistant" and isinstance(given, dict) and not message.get("tool_calls"):
            call_id = f"function_{index}"
            call = {"id": call_id, "type": "function", "function": given}
            converted.append({**message, "function_call": None, "tool_calls": [call]})
        elif message.get("role") == "function":
            converted.append({"role": "tool", "tool_call_id": call_id, "content": message.get("content")})
            call_id = None
        else:
            converted.append(message)
    return converted


def _is_text(part: Part) -> TypeGuard[TextPart]:
    return isinstance(part, TextPart) and bool(part.text)


def _is_reply(message: Mapping[str, Any]) -> bool:
    """Whether a message or an item is the agent's own: what the client adds stands behind the last one."""
    kind = message.get("type", "message")
    if kind == "message":
        return message.get("role") == "assistant"
    return kind not in ("function_call_output", "mcp_approval_response")


def _convert_items(items: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield items of an earlier conversation as the importer knows them: calls of an agent's own tools with their
    results, and no approvals."""
    for item in items:
        kind = item.get("type")
        if kind == "mcp_call":
            output = item.get("output")
            call = {"call_id": item.get("id"), "name": item.get("name"), "arguments": item.get("arguments")}
            yield {"type": "function_call", **call}
            text = output if isinstance(output, str) else _read_error(item.get("error"))
            yield {"type": "function_call_output", "call_id": item.get("id"), "output": text}
        elif kind not in ("mcp_approval_request", "mcp_approval_response"):
            yield item


def _read_error(error: Any) -> str:
    """Return the text of a failed call; of one whose result was too long for its item, that."""
    return _join_texts(error.get("content")) if isinstance(error, dict) else "(left out: it is long)"


def _read_answer(message: Mapping[str, Any], past_calls: frozenset[str] = frozenset()) -> Answer | None:
    """Return the answer in a message, if it has one. A result of one of the ``past_calls`` is a part of the history."""
    kind, role = message.get("type"), message.get("role")
    if kind == "mcp_approval_response":
        given, approve = message.get("approval_request_id"), message.get("approve")
        if not isinstance(approve, bool):
            raise ParameterError("approve is true or false", "input", code="invalid_type")
        reason = message.get("reason")
        text = reason if isinstance(reason, str) else ""
    elif kind == "function_call_output" or role == "tool":
        given = message.get("call_id") if kind == "function_call_output" else message.get("tool_call_id")
        approve, text = None, _join_texts(message.get("output" if kind == "function_call_output" else "content"))
    else:
        return None
    found = decode_wait_id(given) if isinstance(given, str) else None
    if found is None and approve is None and given in past_calls:
        return None
    if found is None:
        raise build_unknown_call_error(str(given))
    return Answer(str(given), *found, approve=approve, text=text[:COMMENT_CHARS] if approve is not None else text)


def build_unknown_call_error(id: str) -> ParameterError:
    return ParameterError(
        f"No call of this conversation has the id {id!r:.100}", "input", code="unknown_call",
        hint="Send ids of calls and approvals as they were received.",
    )  # fmt: skip


def _join_texts(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)
