"""What clients send to a run, parsed and checked without its state: starts, messages, overrides, limits, pauses,
decisions and answers.

Clients check with it what they send, and the run what it gets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError, PerdureError
from ..types.approvals import (
    CHANGED_ARGUMENTS_BYTES,
    ApprovalDecision,
    DecidedApproval,
    DecisionState,
    hash_arguments,
    hash_name,
)
from ..types.client_tools import INLINE_CLIENT_TOOLS_BYTES, find_client_tools_problem
from ..types.engine_texts import ENGINE_ID_PREFIX
from ..types.interface import CallerRequest, Override, PauseRequest, Start, UserMessage
from ..types.limits import RunLimits
from ..types.messages import BlobRef, ContentPart, FilePart, TextPart, clean_text, find_file_flaw
from ..types.plain_json import measure_json
from ..types.tool_calls import CallAnswer
from ..types.validation_errors import describe_validation_error
from .payload_limits import CONTEXT_BYTES, MESSAGE_BYTES, MESSAGE_ID_BYTES, OVERRIDE_BYTES, measure_model

# ---
# Starts.


def parse_start(raw: Any) -> Start:
    """Parse the input of a run. Raises ``InvalidInputError`` that names the wrong field and what is expected."""
    expected = 'Start it with {"agent": "<name>", "message": "<text>"}.'
    if not isinstance(raw, dict):
        raise InvalidInputError(f"the input must be one JSON object, not {type(raw).__name__}", hint=expected)
    try:
        start = Start.model_validate(raw)
    except ValidationError as error:
        problems = describe_validation_error(error, "input", max_problems=10, content=True)
        raise InvalidInputError(f"the input does not fit: {problems[:1000]}", hint=expected) from None
    _check_start_sizes(start)
    return start


def _check_start_sizes(start: Start) -> None:
    """Refuse a start that is too large: input may be three times as large on its way out, and a run that cannot be
    continued as new must not begin."""
    if (size := measure_json(start.context)) > CONTEXT_BYTES:
        raise InvalidInputError(
            f"the context has {size:,} bytes as JSON; it may have {CONTEXT_BYTES:,}",
            hint="Every step of the run is sent all of it: keep large data elsewhere, and give a tool its key.",
        )
    problem = find_override_problem(start.override) or find_override_problem(start.caller_request)
    if problem is None and start.message is not None:
        problem = find_message_problem(build_start_message(start.message))
    if problem is not None:
        raise InvalidInputError(problem)


def build_start_message(message: str | UserMessage) -> UserMessage:
    """Return the first message of a start in the form that a run keeps."""
    return UserMessage(content=message) if isinstance(message, str) else convert_message_input(message)


# ---
# Messages: their content is text, or parts, each a text or a file.


def parse_message(raw: Any) -> UserMessage:
    """Parse a message: a string, or an object. Raises ``InvalidInputError`` that names what is wrong."""
    try:
        message = UserMessage(content=raw) if isinstance(raw, str) else UserMessage.model_validate(raw)
        message = convert_message_input(message)
        problem = find_message_problem(message)
    except ValidationError as error:
        problem = describe_validation_error(error, "message", content=True)
    if problem is not None:
        raise InvalidInputError(f"{problem}: {redact_message(raw)[:80]}")
    return message


def redact_message(raw: Any) -> str:
    """Format a refused message for an error text, without its auth context, which may have been sent in the clear."""
    has_auth = isinstance(raw, Mapping) and raw.get("auth_context") is not None
    try:
        return str({**raw, "auth_context": "…"} if has_auth else raw)
    except (RecursionError, ValueError):  # nested thousands of times, or with an integer of thousands of digits
        return f"a {type(raw).__name__}"


def convert_message_input(message: UserMessage) -> UserMessage:
    """Return ``message`` in the form that a run keeps: an ``input`` becomes its JSON as the content."""
    if message.input is None:
        return message
    text = json.dumps(message.input, ensure_ascii=False)
    return message.model_copy(update={"content": text, "input": None, "typed": True})


def find_message_problem(message: UserMessage) -> str | None:
    """Return why ``message`` cannot be accepted (its sizes, override, client tools or content); None if it can."""
    if message.id is not None and clean_text(message.id).startswith(ENGINE_ID_PREFIX):
        return f"id: ids that begin with {ENGINE_ID_PREFIX!r} are those of the engine's own messages; choose another"
    for name in ("id", "task_id", "by"):
        if (size := measure_json(getattr(message, name))) > MESSAGE_ID_BYTES:
            return f"{name}: it has {size:,} bytes as JSON and may have {MESSAGE_ID_BYTES:,}"
    if (
        problem := find_override_problem(message.override)
        or find_override_problem(message.caller_request)
        or find_client_tools_problem(message.client_tools, INLINE_CLIENT_TOOLS_BYTES)
        or find_content_problem(message.content)
    ):
        return problem
    if (size := measure_model(message)) <= MESSAGE_BYTES:
        return None
    return (
        f"message: it has {size:,} bytes as JSON and may have {MESSAGE_BYTES:,}; "
        "send it with perdure's client, which puts a long one into the store"
    )


MessageContent = str | BlobRef | tuple[ContentPart, ...]


def find_content_problem(content: MessageContent | None) -> str | None:
    """Return why ``content`` cannot be given to a model; None if it can."""
    if content is None or isinstance(content, str | BlobRef):
        return None
    if not content:
        return "content: a list of parts has at least one"
    for index, part in enumerate(content):
        if problem := find_file_flaw(part) if isinstance(part, FilePart) else _find_text_problem(part):
            return f"content.{index}: {problem}"
    return None


def _find_text_problem(part: TextPart) -> str | None:
    if (part.blob is None) == (part.text == ""):
        return "a text has exactly one of text and blob"
    if part.provider is not None or part.opaque is not None:
        return "opaque: provider data belongs in a provider's replies, not in a message"
    return None


# ---
# Overrides.


OverrideFields = dict[str, Any]
"""Plain JSON of a ``StepOverride``, without the fields that it does not change."""

_MERGED_FIELDS = ("settings", "provider_options", "limits")
"""Fields that are merged key by key."""


def find_override_problem(override: Override | CallerRequest | None) -> str | None:
    """Return why ``override`` is too large to be given to every model call; None if it is not."""
    if override is None or (size := measure_model(override)) <= OVERRIDE_BYTES:
        return None
    return f"override: it has {size:,} bytes as JSON and may have {OVERRIDE_BYTES:,}; put the rest into a message"


def merge_overrides(base: OverrideFields, override: OverrideFields) -> OverrideFields:
    """Merge ``override`` over ``base``: settings, provider options and limits by key, tools by name."""
    merged = {**base, **override}
    for name in _MERGED_FIELDS:
        if isinstance(base.get(name), dict) and isinstance(override.get(name), dict):
            merged[name] = {**base[name], **override[name]}
            if name == "limits":
                turn, turn_override = base[name].get("turn") or {}, override[name].get("turn") or {}
                merged[name]["turn"] = {**turn, **turn_override}
    for name, other in (("add_tools", "remove_tools"), ("remove_tools", "add_tools")):
        if name in base:
            reverted = override.get(other) or ()
            tools = [tool for tool in base[name] if tool not in reverted]
            merged[name] = list(dict.fromkeys([*tools, *(override.get(name) or ())]))
    return {name: value for name, value in merged.items() if value or name not in ("add_tools", "remove_tools")}


def replace_caller_overrides(before: OverrideFields | None, asked: OverrideFields) -> OverrideFields:
    """Return what a caller asks for, in the place of what callers of the same turn have asked for ``before``: but for
    the limits that they have lowered, which stay."""
    limits = lower_limits((before or {}).get("limits") or {}, asked.get("limits") or {})
    iterations = [one["max_iterations"] for one in (before or {}, asked) if one.get("max_iterations") is not None]
    lowered = {"limits": limits or None, "max_iterations": min(iterations, default=None)}
    return {**asked, **{name: value for name, value in lowered.items() if value is not None}}


def lower_limits(limits: OverrideFields, asked: OverrideFields) -> OverrideFields:
    """Return ``limits``, plain JSON of a ``RunLimits``, with the lower ones of ``asked``."""
    lowered = dict(limits)
    for name, value in asked.items():
        before = limits.get(name)
        if isinstance(value, dict):
            lowered[name] = lower_limits(before or {}, value)
        elif value is not None:
            lowered[name] = value if before is None else min(before, value)
    return lowered


def merge_caller_overrides(run: OverrideFields | None, turn: OverrideFields | None) -> OverrideFields | None:
    """Merge what callers ask for in a turn over what the run's first caller has asked for."""
    if not run or not turn:
        return run or turn or None
    settings = {**(run.get("settings") or {}), **(turn.get("settings") or {})}
    merged = {**run, **replace_caller_overrides(run, turn)}
    return {**merged, "settings": settings} if settings else merged


# ---
# Raised limits, and pauses.


def parse_run_limits(raw: Any) -> RunLimits:
    """Parse limits that a client sent. Raises ``InvalidInputError`` that names the wrong field."""
    try:
        return RunLimits.model_validate(raw)
    except ValidationError as error:
        names = ", ".join(("max_iterations", *RunLimits.model_fields))
        problem = describe_validation_error(error, "limits", prefix="limits")
        raise InvalidInputError(problem, hint=f"There are: {names}.") from None


def parse_pause_request(raw: Any) -> PauseRequest:
    """Parse a client's request to pause a run; None, or an empty text, is one without fields. Raises
    ``InvalidInputError``."""
    try:
        return PauseRequest.model_validate({} if raw in (None, "") else raw)
    except ValidationError as error:
        hint = 'Send {"by": "<name>", "reason": "<text>"}, or nothing.'
        raise InvalidInputError(describe_validation_error(error, "pause"), hint=hint) from None


# ---
# Decisions and answers. A repeated one returns the outcome of the first.


DECISION = 'Send {"call_id": "<id>", "hash": "<as status has it>", "decision": "approve" or "deny", "by": "<name>"}.'
ANSWER = 'Send {"call_id": "<id>", "value": <JSON>, "by": "<name>"}, or "error" in the place of "value".'
DECISION_OUTCOMES: dict[str, DecisionState] = {"approve": "approved", "deny": "denied"}

Model = TypeVar("Model", bound=BaseModel)


def parse_request(model: type[Model], raw: Any, whole: str, hint: str | None) -> Model:
    """Parse ``raw`` as ``model``. Raises ``InvalidInputError`` with the first problem; ``whole`` names ``raw``."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, whole), hint=hint) from None


def read_decision(raw: Any, hint: str | None = DECISION) -> ApprovalDecision:
    """Parse the argument of ``decide_approval``. Raises ``InvalidInputError`` if it is valid for no call at all."""
    decision = parse_request(ApprovalDecision, raw, "the decision", hint)
    if decision.always and decision.decision == "deny":
        raise InvalidInputError("always: only an approval can stand", hint="A rule of the agent denies every call.")
    if decision.arguments is not None:
        if decision.decision == "deny":
            raise InvalidInputError("arguments: a call that is denied has none", hint="Leave them out.")
        if (size := measure_json(decision.arguments)) > CHANGED_ARGUMENTS_BYTES:
            raise InvalidInputError(
                f"arguments: they have {size:,} bytes as JSON and may have {CHANGED_ARGUMENTS_BYTES:,}"
            )
    return decision


def read_answer(raw: Any, hint: str | None = ANSWER) -> CallAnswer:
    """Parse the argument of ``answer_call``. Raises ``InvalidInputError``."""
    return parse_request(CallAnswer, raw, "the answer", hint)


def find_repeated(decided: Sequence[DecidedApproval], update: ApprovalDecision | CallAnswer) -> DecidedApproval | None:
    """Return the latest record in ``decided`` (the latest last) that ``update`` repeats; None if there is none."""
    return next((past for past in reversed(decided) if _is_repeated(update, past)), None)


def _is_repeated(update: ApprovalDecision | CallAnswer, past: DecidedApproval) -> bool:
    """Whether ``update`` repeats the decision or answer recorded in ``past``, from the same sender."""
    by = hash_name(update.by)
    if (past.call_id, hash_name(past.by)) != (update.call_id, by):
        return False
    if isinstance(update, CallAnswer):
        return (past.state, past.hash) == ("answered", hash_answer(update))
    comment = clean_text(update.comment) if update.comment else None
    always = update.always and not past.standing  # under a standing approval, `always` came with another call
    if by is None or (DECISION_OUTCOMES[update.decision], comment, always) != (past.state, past.comment, past.always):
        return False
    if update.arguments is not None:
        return hash_arguments(past.call_id, past.tool, update.arguments) == past.hash
    return not past.changed and update.hash in (None, past.hash)


def build_late_error(
    decided: Sequence[DecidedApproval], update: ApprovalDecision | CallAnswer, hint: str | None = None
) -> PerdureError | None:
    """Build the error for a decision or answer that comes too late, which names who decided first; None if the call is
    undecided. A call that was approved may still be answered."""
    past = next((past for past in reversed(decided) if past.call_id == update.call_id), None)
    if past is None or (isinstance(update, CallAnswer) and past.state == "approved"):
        return None
    if past.state == "expired":
        return ApprovalExpiredError(f"call {past.call_id!r} has {past}")
    return ApprovalDecidedError(f"call {past.call_id!r} is already {past}", hint=hint)


def hash_answer(answer: CallAnswer) -> str:
    """Hash value, error and blob of an answer, without its sender: 32 hexadecimal digits."""
    hashed = answer.model_dump(mode="json", include={"value", "error", "blob"})
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:32]


def as_text(value: Any) -> str:
    """Format the value of a callback's answer as the model gets it: a string as it is, else its JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
