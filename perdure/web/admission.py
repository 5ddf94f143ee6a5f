"""What of a request reaches a run, and from whom: one table, and the function that every start and message passes.

    anyone      every caller who may start the run or write to it
    allowed     callers with the verb `operate`; others where the agent names it (caller_overrides, caller_claims)
    operator    callers with the verb `operate`
    service     set by the service itself, from the authenticated request; no field of a request names it
    never       not over HTTP

What a table does not name is refused. The worker checks what `allowed` says once more, by the code of the agent.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from ..agent.overrides import list_override_fields
from ..errors import InvalidInputError, PerdureError
from ..types.interface import CallerOverride, Override
from ..types.validation_errors import describe_validation_error
from .auth import AgentTerms, Caller, Resource
from .operations import Call, Web
from .problems import ForbiddenError, WebError

logger = logging.getLogger("perdure.web")

OverrideT = TypeVar("OverrideT", Override, CallerOverride)
Reach = Literal["anyone", "allowed", "operator", "service", "never"]

START_FIELDS: Mapping[str, Reach] = {
    "agent": "anyone",
    "by": "service",
    "message": "anyone",
    "mode": "anyone",
    "context": "allowed",
    "history": "service",  # written of messages that the caller sends: a head would be another's conversation
    "resume": "service",
    "idle_timeout": "anyone",
    "override": "operator",
    "caller_request": "service",
    "store_id": "service",
    "max_history_events": "never",
    "auth_context": "allowed",
    "auth_ref": "allowed",
    "parent": "never",
    "tenant": "anyone",  # one of the caller's own: the authorizer says whether
    "user": "allowed",
}
MESSAGE_FIELDS: Mapping[str, Reach] = {
    "content": "anyone",
    "input": "anyone",
    "typed": "service",
    "id": "anyone",
    "by": "service",
    "asked_by": "never",
    "on_behalf_of": "never",
    "caller_request": "service",
    "task_id": "anyone",
    "override": "operator",
    "client_tools": "anyone",  # for an agent with client_tools=True
    "store_id": "service",
    "auth_context": "allowed",
    "auth_ref": "allowed",
    "tenant": "service",
    "user": "service",
}
OVERRIDE_FIELDS: Mapping[str, Reach] = {
    "model": "allowed",
    "instructions": "allowed",
    "tools": "allowed",
    "settings": "allowed",
    "provider_options": "operator",
    "finish": "operator",
    "max_iterations": "allowed",
    "on_limit": "operator",
    "limits": "allowed",
}


class FieldForbiddenError(ForbiddenError):
    """The caller may not set a field; ``field`` names it as ``Agent(caller_overrides=…)`` does."""

    def __init__(self, field: str, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.field = field


async def admit_start(call: Call, new: Resource, **given: Any) -> dict[str, Any]:
    """Return the options of a start of ``new``, for the client: what the caller has ``given`` as far as it may, and
    what the service says. Raises ``ForbiddenError`` for what it may not."""
    options = await _admit(call, new, START_FIELDS, given, "start")
    service = await build_service_context(call.web, call.caller)
    if service is not None:
        options["context"] = {**(options.get("context") or {}), **service}
    return options | {"tenant": new.tenant, "user": new.user, "by": call.by}


async def admit_message(call: Call, session: Resource, **given: Any) -> dict[str, Any]:
    """The same of a message to ``session``, which exists."""
    return await _admit(call, session, MESSAGE_FIELDS, given, "send") | {"by": call.by}


async def _admit(
    call: Call, resource: Resource, table: Mapping[str, Reach], given: Mapping[str, Any], action: str
) -> dict[str, Any]:
    terms = await call.web.terms.find(call.client, resource.agent or "")
    try:
        if terms.internal:
            raise ForbiddenError(
                f"agent {resource.agent!r:.200} is internal", hint="Only other agents call it: start one of these."
            )
        fields = {name: value for name, value in given.items() if value is not None}
        operates = await call.may("operate", resource)
        override = fields.pop("override", None)
        for name in fields:
            _check_field(table.get(name, "never"), name, name in terms.claims, operates, "caller_claims")
        if override is not None:
            fields["override"] = _admit_override(override, terms, operates)
    except PerdureError as error:
        await call.record_refusal(action, resource.id or resource.kind, error)
        raise
    return fields


def _check_field(reach: Reach, field: str, is_named: bool, operates: bool, where: str) -> None:
    if reach == "anyone" or (reach == "allowed" and (operates or is_named)) or (reach == "operator" and operates):
        return
    hint = "Leave it out."
    if reach == "allowed":
        hint = f"It needs the verb 'operate', or an agent that names it: Agent(…, {where}=[{field!r:.100}])."
    elif reach == "operator":
        hint = "It needs the verb 'operate'."
    raise FieldForbiddenError(field, f"{field}: this caller may not set it", hint=hint)


def _admit_override(
    override: BaseModel | Mapping[str, Any], terms: AgentTerms.Terms, operates: bool
) -> Override | CallerOverride:
    """Return the override of an operator, or what another caller asks for, of which the agent has named each field."""
    model = override if isinstance(override, BaseModel) else _validate_override(Override, override)
    plain = model.model_dump(mode="json", exclude_unset=True)
    if operates:
        for name in plain:
            _check_field(OVERRIDE_FIELDS.get(name, "never"), name, False, operates, "caller_overrides")
        return _validate_override(Override, plain)
    asked = {name: value for name, value in plain.items() if value is not None}
    for name in asked:
        if OVERRIDE_FIELDS.get(name) != "allowed":
            _check_field(OVERRIDE_FIELDS.get(name, "never"), f"override.{name}", False, operates, "caller_overrides")
    for field in list_override_fields(asked):
        _check_field("allowed", field, field in terms.overrides, operates, "caller_overrides")
    return _validate_override(CallerOverride, asked)


def _validate_override(model: type[OverrideT], plain: Mapping[str, Any]) -> OverrideT:
    """Validate an override that a caller has sent. Raises ``InvalidInputError``."""
    try:
        return model.model_validate(dict(plain))
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "override", prefix="override")) from None


async def build_service_context(web: Web, caller: Caller) -> dict[str, Any] | None:
    """Return the context that the service gives the runs of a caller; None without such a function. Raises ``WebError``
    if it fails: without it the agent would not know whose run it is."""
    if web.context is None:
        return None
    try:
        context = web.context(caller)
        if inspect.isawaitable(context):
            context = await context
        plain = to_jsonable_python(context)
    except PerdureError:
        raise
    except Exception:  # its text may be a secret
        logger.exception("the context of caller %r cannot be built", caller.name)
        raise WebError("the service could not build the context of the run", status=500) from None
    if plain is not None and not isinstance(plain, dict):
        logger.error("context=… of the service returned %s for a caller, not a mapping", type(context).__name__)
        raise WebError("the service could not build the context of the run", status=500)
    return plain
