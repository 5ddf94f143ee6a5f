"""Approvals of tool calls: ``Approval``, the terms; ``allow``, ``ask`` and ``deny``, the rules of an agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args, get_type_hints

from pydantic import AliasChoices, AliasPath, BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from ..errors import DefinitionError
from ..hooks.hook import evaluate_signature
from ..types.approvals import ApprovalTerms, OnExpiry, hash_arguments
from ..types.limits import Definition, Duration, parse_seconds
from ..types.plain_json import EXACT_INTEGERS
from .context_type import takes_context

RuleAction = Literal["allow", "ask", "deny"]

MIN_REMIND_SECONDS = 1.0
"""Least number of seconds between two reminders."""


class Approval(Definition):
    """The terms on which a call waits: ``needs_approval=Approval(expires="7d")``. Raises ``DefinitionError``."""

    expires: Duration | None = None
    """Seconds, or text like ``"7d"``; without it the call waits without a limit."""
    on_expiry: OnExpiry = "deny"
    """The decision on a call that expires."""
    separate: bool = False
    """The people whose input led to the call cannot approve it."""
    remind: Duration | None = None
    """The interval at which the hook ``on_approval`` runs again while the call waits: at least 1 s, given as
    ``expires`` is."""

    def model_post_init(self, context: Any) -> None:
        if self.expires is None and self.on_expiry == "approve":
            raise ValueError("on_expiry='approve' needs expires, for instance expires='1h'")
        if self.remind is not None and (interval := parse_seconds(self.remind)) < MIN_REMIND_SECONDS:
            raise ValueError(f"remind is at least {MIN_REMIND_SECONDS:g} s, not {interval:g} s")
        if self.remind is not None and self.expires is not None and interval >= parse_seconds(self.expires):
            raise ValueError(f"remind ({interval:g} s) is not shorter than expires: no reminder would be sent")

    def build_terms(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> ApprovalTerms:
        """Build the terms that are recorded with a call."""
        return ApprovalTerms(
            hash=hash_arguments(call_id, name, arguments),
            expires=None if self.expires is None else parse_seconds(self.expires),
            on_expiry=self.on_expiry,
            separate=self.separate,
            remind=None if self.remind is None else parse_seconds(self.remind),
        )


def takes_call_and_context(policy: Callable[..., Any]) -> bool:
    """Whether ``policy`` accepts a call and a context. Checked at definition, since a failure in a run would ask a
    person instead. Raises ``DefinitionError`` for an annotation that cannot be resolved."""
    signature = evaluate_signature(f"needs_approval={policy!r:.100}", policy)
    if signature is None:
        return True
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    second = list(signature.parameters.values())[1:2]
    return all(takes_context(policy, parameter) for parameter in second)  # not for a default of the author's


def combine_approvals(first: Approval | None, second: Approval) -> Approval:
    """Combine two terms of one call: the durations of the first that has any, and the stricter of the other fields."""
    if first is None:
        return second
    timed = first if first.expires is not None or first.remind is not None else second
    on_expiry: OnExpiry = "approve" if first.on_expiry == second.on_expiry == "approve" else "deny"
    return timed.model_copy(update={"on_expiry": on_expiry, "separate": first.separate or second.separate})


UNKNOWN_ARGUMENT = object()
"""Stands for an argument that cannot be compared."""


class NamedFields(dict[str, Any]):
    """The fields of a model or a dataclass. A rule may use any name of a field."""

    aliases: Mapping[str, str] = {}
    """The key of each other name of a field."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of a call as rules compare them: plain data."""

    arguments: Mapping[str, Any]
    """The arguments of the tool's function, with ``UNKNOWN_ARGUMENT`` for a value that is not plain data."""
    is_unvalidated: bool = False
    """They are as the model gave them, and are converted where the call runs: a text may become a number there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of ``Agent(approvals=[…])``. Made by :func:`allow`, :func:`ask` and :func:`deny`."""

    action: RuleAction
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    approval: Approval | None = None
    is_uncertain: bool = False
    """Whether the rule matches is unknown: ``approval`` is combined with the tool's own terms."""

    def matches(self, name: str, call_arguments: CallArguments) -> bool | None:
        """Whether the rule matches this call; None if that is unknown."""
        if not fnmatchcase(name, self.tool):
            return False
        arguments, loose = call_arguments.arguments, call_arguments.is_unvalidated
        return _all_match(
            argument in arguments and self._matches_pattern(pattern, arguments[argument], loose=loose)
            for argument, pattern in self.arguments.items()
        )

    def _matches_pattern(self, pattern: Any, value: Any, *, loose: bool) -> bool | None:
        if value is UNKNOWN_ARGUMENT:
            return None
        if isinstance(value, list) and not isinstance(pattern, list):
            # One item is enough for ask and deny; allow must match all items.
            of_items = [self._matches_pattern(pattern, item, loose=loose) for item in value]
            return bool(of_items) and _all_match(of_items) if self.action == "allow" else _any_matches(of_items)
        if isinstance(pattern, str):
            if any(fnmatchcase(text, pattern) for text in _iterate_glob_texts(value)):
                return True
            scalar = _parse_pattern_scalar(pattern) if loose else None
            return False if scalar is None else self._equals(scalar, value, loose=loose)
        return self._equals(pattern, value, loose=loose)

    def _equals(self, pattern: Any, value: Any, *, loose: bool) -> bool | None:
        """``loose``: a value of another kind may become equal to the pattern where the call runs."""
        if isinstance(pattern, list) and isinstance(value, list):
            pairs = zip(pattern, value, strict=False)
            return len(pattern) == len(value) and _all_match(self._equals(a, b, loose=loose) for a, b in pairs)
        if isinstance(pattern, dict) and isinstance(value, dict):
            if isinstance(value, NamedFields):
                pattern = {key if key in value else value.aliases.get(key, key): item for key, item in pattern.items()}
            if self.action == "allow" and pattern.keys() != value.keys():
                return False
            return _all_match(key in value and self._equals(pattern[key], value[key], loose=loose) for key in pattern)
        if _get_comparison_type(pattern) is _get_comparison_type(value):
            return bool(pattern == value)
        return None if loose and value is not None and not isinstance(value, list | dict) else False


def allow(tool: str, /, **arguments: Any) -> Rule:
    """Let calls of tools whose name matches the glob ``tool`` run without approval.

    ``arguments`` restrict the rule: a text is a glob (``path="/tmp/*"``; other values than text are matched as JSON),
    any other value must be equal; of an object, :func:`ask` and :func:`deny` compare the fields that they name. They
    are compared with the arguments of the tool's function, defaults included: ``"500"`` for an ``int`` is 500. An
    argument that the call does not have matches nothing.

    Tools that run elsewhere (MCP and other toolsets, remote and callback tools, subagents) convert their arguments
    there. A rule sees the arguments as the model gave them; if they may become what :func:`deny` names, the call waits
    for approval.
    """
    return _build_rule("allow", tool, arguments, None)


def ask(tool: str, approval: Approval | None = None, /, **arguments: Any) -> Rule:
    """Let such calls wait for approval, on the terms of ``approval`` or else the tool's own. See :func:`allow`."""
    if approval is not None and not isinstance(approval, Approval):
        raise DefinitionError(f"ask({tool!r:.100}, …): the second argument is an Approval, not {approval!r:.100}")
    return _build_rule("ask", tool, arguments, approval)


def deny(tool: str, /, **arguments: Any) -> Rule:
    """Refuse such calls, with an error for the model. See :func:`allow`."""
    return _build_rule("deny", tool, arguments, None)


def find_rule(rules: Iterable[Rule], name: str, call_arguments: CallArguments) -> Rule | None:
    """Find the rule that decides: the first that matches. If it is unknown whether an ask or deny rule matches, the
    call waits for approval, on the terms of all rules that may match, unless a later rule denies it."""
    uncertain: Rule | None = None
    for rule in rules:
        matches = rule.matches(name, call_arguments)
        if matches:
            if uncertain is None or rule.action == "deny":
                return rule
            return _add_approval_terms(uncertain, rule.approval)
        if matches is None and rule.action != "allow":
            uncertain = _add_approval_terms(uncertain or replace(rule, action="ask", is_uncertain=True), rule.approval)
    return uncertain


def _add_approval_terms(uncertain: Rule, terms: Approval | None) -> Rule:
    return uncertain if terms is None else replace(uncertain, approval=combine_approvals(uncertain.approval, terms))


def to_plain_data(value: Any) -> Any:
    """Convert an argument of a function to plain data. Raises if it cannot be converted."""
    match value:
        case Decimal():
            is_whole = value.is_finite() and abs(value.adjusted()) < 400 and value == value.to_integral_value()
            return int(value) if is_whole else float(value)
        case Enum():
            return to_plain_data(value.value)
        case None | bool() | int() | float() | str():
            return value
        case SecretStr() | SecretBytes():
            return to_plain_data(value.get_secret_value())
        case BaseModel() if value.__pydantic_root_model__:
            [(_, root)] = value
            return to_plain_data(root)
        case BaseModel():
            names = {name: _get_json_field_name(value, name) for name, _ in value}
            named = NamedFields({names[name]: to_plain_data(item) for name, item in value})
            aliases = _iterate_field_aliases(type(value).model_fields)
            named.aliases = {alias: names.get(name, name) for alias, name in aliases} | names
            return named
        case Mapping():
            keys = (key if isinstance(key, str) else _dump_sorted_json(to_plain_data(key)) for key in value)
            return dict(zip(keys, map(to_plain_data, value.values()), strict=True))
        case _ if is_dataclass(value) and not isinstance(value, type):
            named = NamedFields({field.name: to_plain_data(getattr(value, field.name)) for field in fields(value)})
            named.aliases = dict(_iterate_field_aliases(_get_field_infos(type(value))))
            return named
        case Collection() if not isinstance(value, type | bytes | bytearray | memoryview):
            return [to_plain_data(item) for item in value]
    return to_jsonable_python(value)


def _build_rule(action: RuleAction, tool: Any, arguments: dict[str, Any], approval: Approval | None) -> Rule:
    owner = f"{action}({tool!r:.100}"
    if not isinstance(tool, str) or not tool:
        raise DefinitionError(f"{owner}): a rule names tools by text", hint='The text may be a glob: "read_*".')
    try:
        return Rule(action, tool, {name: to_plain_data(pattern) for name, pattern in arguments.items()}, approval)
    except Exception as error:
        reason = f"{owner}, …): its arguments cannot be compared: {error}"
        raise DefinitionError(reason, hint="Give texts, numbers, data.") from error


def _get_json_field_name(model: BaseModel, name: str) -> str:
    """Return the name of a field in the model's JSON."""
    info = type(model).model_fields.get(name)
    alias = info.validation_alias if info is not None else None
    return alias if isinstance(alias, str) else name


def _iterate_field_aliases(infos: Mapping[str, FieldInfo]) -> Iterator[tuple[str, str]]:
    """Yield every alias of every field, and the field's name."""
    for name, info in infos.items():
        alias = info.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
        steps = [choice.path[0] for choice in choices if isinstance(choice, AliasPath) and len(choice.path) == 1]
        for other in (info.alias, info.serialization_alias, *choices, *steps):
            if isinstance(other, str):
                yield other, name


def _get_field_infos(cls: type) -> dict[str, FieldInfo]:
    """Return pydantic's information on the fields of a dataclass."""
    if (infos := getattr(cls, "__pydantic_fields__", None)) is not None:
        return dict(infos)
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: FieldInfo.from_annotation(hints[field.name]) for field in fields(cls)}


def _all_match(results: Iterable[bool | None]) -> bool | None:
    verdicts = set(results)
    return False if False in verdicts else None if None in verdicts else True


def _any_matches(results: Iterable[bool | None]) -> bool | None:
    verdicts = set(results)
    return True if True in verdicts else None if None in verdicts else False


def _get_comparison_type(value: Any) -> type:
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _iterate_glob_texts(value: Any) -> Iterator[str]:
    """Yield the texts of a value that a glob may match: a whole number also without its fraction."""
    yield value if isinstance(value, str) else _dump_sorted_json(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_INTEGERS:
        yield str(int(value))


def _parse_pattern_scalar(pattern: str) -> bool | float | None:
    """Return the boolean or number that a text stands for, if any."""
    try:
        scalar = json.loads(pattern)
    except (ValueError, RecursionError):
        return None
    return scalar if isinstance(scalar, bool | int | float) else None


def _dump_sorted_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def parse_rule(values: Mapping[str, Any]) -> Rule:
    """Build a rule from plain data: ``{"ask": "refund", "arguments": {"amount": 5}, "expires": "7d"}``.

    Raises ``DefinitionError``.
    """
    terms = {name: values[name] for name in Approval.model_fields if name in values}
    actions = [action for action in get_args(RuleAction) if action in values]
    arguments = values.get("arguments", {})
    if len(actions) != 1:
        raise DefinitionError(f"{dict(values)!r:.200} is not a rule", hint='It has one of "allow", "ask" and "deny".')
    if unknown := sorted(values.keys() - {*actions, *terms, "arguments"}):
        known = ", ".join(Approval.model_fields)
        raise DefinitionError(f"a rule has no {unknown[0]!r}", hint=f"It has arguments, and with ask also {known}.")
    if not isinstance(arguments, Mapping):
        raise DefinitionError(f"arguments: must be an object of names and patterns, not {arguments!r:.100}")
    if terms and actions != ["ask"]:
        raise DefinitionError(f"{actions[0]} takes no {next(iter(terms))!r}: only ask has terms")
    return _build_rule(actions[0], values[actions[0]], dict(arguments), Approval(**terms) if terms else None)
