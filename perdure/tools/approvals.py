"""Which calls wait for a person: ``Approval``, the terms; ``allow``, ``ask`` and ``deny``, the rules of an agent."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args, get_type_hints

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from ..errors import DefinitionError
from ..types.approvals import OnExpiry
from ..types.limits import parse_seconds
from ..types.plain_json import EXACT_INTEGERS

MIN_REMIND_SECONDS = 1.0
"""Seconds between two reminders."""


@dataclass(frozen=True, slots=True)
class Approval:
    """On what terms a call waits: ``needs_approval=Approval(expires="7d")``.

    ``expires`` is seconds, or text like ``"7d"``; without it the call waits for as long as it takes. ``on_expiry`` says
    what a call comes to that nobody decided on. ``separate``: whoever wrote to the run in this turn cannot approve it.
    ``remind``, of the same kind: so often the hook ``on_approval`` runs again while the call waits; at least 1 s.
    """

    expires: float | str | timedelta | None = None
    on_expiry: OnExpiry = "deny"
    separate: bool = False
    remind: float | str | timedelta | None = None

    def __post_init__(self) -> None:
        if self.on_expiry not in get_args(OnExpiry):
            raise DefinitionError(f"Approval: on_expiry is 'deny' or 'approve', not {self.on_expiry!r:.100}")
        if not isinstance(self.separate, bool):
            raise DefinitionError(f"Approval: separate is True or False, not {self.separate!r:.100}")
        if self.expires is None and self.on_expiry == "approve":
            raise DefinitionError(
                "Approval: on_expiry='approve' without expires", hint="Say when: Approval(expires='1h', …)."
            )
        expires, remind = self._normalise_seconds("expires"), self._normalise_seconds("remind")
        if remind is None:
            return
        if remind < MIN_REMIND_SECONDS:
            raise DefinitionError(f"Approval: remind is at least {MIN_REMIND_SECONDS:g} s, not {remind:g} s")
        if expires is not None and remind >= expires:
            raise DefinitionError(
                f"Approval: remind ({remind:g} s) is not shorter than expires ({expires:g} s)",
                hint="Nobody would be reminded: remind more often, or leave it out.",
            )

    def _normalise_seconds(self, name: Literal["expires", "remind"]) -> float | None:
        given = getattr(self, name)
        if given is None:
            return None
        try:
            found = parse_seconds(given)
        except ValueError as error:
            raise DefinitionError(f"Approval: {name}: {error}") from None
        object.__setattr__(self, name, found)
        return found


def takes_call_and_context(policy: Callable[..., Any]) -> bool:
    """Whether it can be a policy: it would be asked in the middle of a run, and a person in its place."""
    try:
        inspect.signature(policy).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # built in: nobody can say
        return True
    return True


def combine_approvals(one: Approval | None, other: Approval) -> Approval:
    """Terms that hold where a call is asked for on two: times of the first that has some, and nobody decides less."""
    if one is None:
        return other
    timed = one if one.expires is not None or one.remind is not None else other
    on_expiry: OnExpiry = "approve" if one.on_expiry == other.on_expiry == "approve" else "deny"
    return replace(timed, on_expiry=on_expiry, separate=one.separate or other.separate)


UNKNOWN_ARGUMENT = object()
"""In the place of an argument that cannot be compared."""


class NamedFields(dict[str, Any]):
    """The fields of a model or a dataclass. In rules each may have any of its names."""

    aliases: Mapping[str, str] = {}
    """Other names of fields: which is the key here."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of a call as rules see them: plain data."""

    arguments: Mapping[str, Any]
    """What the tool's function is called with; in the place of a value that is no data, ``UNKNOWN_ARGUMENT``."""
    is_unvalidated: bool = False
    """They are what the model said, and are read where the call is run: a text may become a number there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of ``Agent(approvals=[…])``. Made by :func:`allow`, :func:`ask` and :func:`deny`."""

    action: Literal["allow", "ask", "deny"]
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    approval: Approval | None = None
    is_uncertain: bool = False
    """It cannot be told whether it matches: ``approval`` adds to the terms of the tool's own."""

    def matches(self, name: str, seen: CallArguments) -> bool | None:
        """Whether it is for this call; None where that cannot be told."""
        if not fnmatchcase(name, self.tool):
            return False
        given = seen.arguments
        return _all_match(
            argument in given and self._matches_pattern(pattern, given[argument], loose=seen.is_unvalidated)
            for argument, pattern in self.arguments.items()
        )

    def _matches_pattern(self, pattern: Any, value: Any, *, loose: bool) -> bool | None:
        if value is UNKNOWN_ARGUMENT:
            return None
        if isinstance(value, list) and not isinstance(pattern, list):
            # One dangerous item is enough to be asked for; what is allowed must be so in all of them.
            of_items = [self._matches_pattern(pattern, item, loose=loose) for item in value]
            return bool(of_items) and _all_match(of_items) if self.action == "allow" else _any_matches(of_items)
        if isinstance(pattern, str):
            if any(fnmatchcase(text, pattern) for text in _iterate_glob_texts(value)):
                return True
            meant = _parse_pattern_scalar(pattern) if loose else None
            return False if meant is None else self._equals(meant, value, loose=loose)
        return self._equals(pattern, value, loose=loose)

    def _equals(self, pattern: Any, value: Any, *, loose: bool) -> bool | None:
        """``loose``: a value of another kind may become the pattern where the call is run."""
        if isinstance(pattern, list) and isinstance(value, list):
            pairs = zip(pattern, value, strict=False)
            return len(pattern) == len(value) and _all_match(self._equals(a, b, loose=loose) for a, b in pairs)
        if isinstance(pattern, dict) and isinstance(value, dict):
            if isinstance(value, NamedFields):
                pattern = {key if key in value else value.aliases.get(key, key): of for key, of in pattern.items()}
            if self.action == "allow" and pattern.keys() != value.keys():
                return False
            return _all_match(key in value and self._equals(pattern[key], value[key], loose=loose) for key in pattern)
        if _get_comparison_type(pattern) is _get_comparison_type(value):
            return bool(pattern == value)
        return None if loose and value is not None and not isinstance(value, list | dict) else False


def allow(tool: str, /, **arguments: Any) -> Rule:
    """Calls of tools whose name matches the glob ``tool`` run unasked.

    ``arguments`` narrow it down: a text is a glob (``path="/tmp/*"``; other values than text are matched as JSON),
    any other value must be equal; of an object, :func:`ask` and :func:`deny` compare the fields that they name. They
    are matched against what the tool's function is called with, defaults included: ``"500"`` for an ``int`` is 500. An
    argument that the call does not have matches nothing.

    Tools that are run elsewhere (MCP and other toolsets, remote and callback tools, subagents) read their arguments
    there: a rule sees what the model said, and where it may become what :func:`deny` names, a person is asked.
    """
    return _build_rule("allow", tool, arguments, None)


def ask(tool: str, approval: Approval | None = None, /, **arguments: Any) -> Rule:
    """Such calls wait for a person; on the terms of ``approval``, else of the tool's own. See :func:`allow`."""
    if approval is not None and not isinstance(approval, Approval):
        raise DefinitionError(f"ask({tool!r:.100}, …): the second is an Approval, not {approval!r:.100}")
    return _build_rule("ask", tool, arguments, approval)


def deny(tool: str, /, **arguments: Any) -> Rule:
    """Such calls do not run; the model is told so. See :func:`allow`."""
    return _build_rule("deny", tool, arguments, None)


def validate_rules(name: str, rules: Any) -> tuple[Rule, ...]:
    """The ``approvals`` of agent ``name``. Raises ``DefinitionError``."""
    if isinstance(rules, str | Mapping | Rule) or not isinstance(rules, Iterable):
        raise DefinitionError(
            f"agent {name!r}: approvals must be a list of rules, not {rules!r:.100}",
            hint='For instance approvals=[allow("read_*"), ask("*")].',
        )
    listed = tuple(rules)
    for one in listed:
        if not isinstance(one, Rule):
            raise DefinitionError(
                f"agent {name!r}: {one!r:.100} is no rule", hint="Rules are made by allow(), ask() and deny()."
            )
    return listed


def find_rule(rules: Iterable[Rule], name: str, seen: CallArguments) -> Rule | None:
    """The rule that decides: the first that matches. Where that cannot be told of one that denies or asks, the call is
    asked for, unless the rules behind it deny it; on the terms of all that may match."""
    doubtful: Rule | None = None
    for rule in rules:
        matches = rule.matches(name, seen)
        if matches:
            if doubtful is None or rule.action == "deny":
                return rule
            return _add_approval_terms(doubtful, rule.approval)
        if matches is None and rule.action != "allow":
            doubtful = _add_approval_terms(doubtful or replace(rule, action="ask", is_uncertain=True), rule.approval)
    return doubtful


def _add_approval_terms(doubtful: Rule, terms: Approval | None) -> Rule:
    return doubtful if terms is None else replace(doubtful, approval=combine_approvals(doubtful.approval, terms))


def to_plain_data(value: Any) -> Any:
    """``value`` that a function is called with, as plain data to compare. Raises for what is none."""
    match value:
        case Decimal():
            whole = value.is_finite() and abs(value.adjusted()) < 400 and value == value.to_integral_value()
            return int(value) if whole else float(value)
        case Enum():
            return to_plain_data(value.value)
        case None | bool() | int() | float() | str():
            return value
        case SecretStr() | SecretBytes():
            return to_plain_data(value.get_secret_value())
        case RootModel():
            return to_plain_data(value.root)
        case BaseModel():
            names = {name: _get_json_field_name(value, name) for name, _ in value}
            found = NamedFields({names[name]: to_plain_data(of) for name, of in value})
            found.aliases = {
                also: names.get(name, name) for also, name in _iterate_field_aliases(type(value).model_fields)
            } | names
            return found
        case Mapping():
            return {
                key if isinstance(key, str) else _dump_sorted_json(to_plain_data(key)): to_plain_data(of)
                for key, of in value.items()
            }
        case _ if is_dataclass(value) and not isinstance(value, type):
            found = NamedFields({one.name: to_plain_data(getattr(value, one.name)) for one in fields(value)})
            found.aliases = dict(_iterate_field_aliases(_get_field_infos(type(value))))
            return found
        case Collection() if not isinstance(value, type | bytes | bytearray | memoryview):
            return [to_plain_data(one) for one in value]
    return to_jsonable_python(value)


def _build_rule(
    action: Literal["allow", "ask", "deny"], tool: Any, arguments: dict[str, Any], how: Approval | None
) -> Rule:
    if not isinstance(tool, str) or not tool:
        raise DefinitionError(
            f"{action}({tool!r:.100}): a rule names tools by text", hint='A glob may stand there: "read_*".'
        )
    try:
        return Rule(action, tool, {name: to_plain_data(pattern) for name, pattern in arguments.items()}, how)
    except Exception as error:
        raise DefinitionError(
            f"{action}({tool!r:.100}, …): its arguments cannot be compared: {error}", hint="Give texts, numbers, data."
        ) from error


def _get_json_field_name(model: BaseModel, name: str) -> str:
    """As the model's JSON has it."""
    known = type(model).model_fields.get(name)
    alias = known.validation_alias if known is not None else None
    return alias if isinstance(alias, str) else name


def _iterate_field_aliases(known: Mapping[str, FieldInfo]) -> Iterator[tuple[str, str]]:
    """Every alias of a field, and the field's name."""
    for name, info in known.items():
        given = info.validation_alias
        choices = given.choices if isinstance(given, AliasChoices) else [given]
        paths = [one.path for one in choices if isinstance(one, AliasPath)]
        for alias in (info.alias, info.serialization_alias, *choices, *(path[0] for path in paths if len(path) == 1)):
            if isinstance(alias, str):
                yield alias, name


def _get_field_infos(cls: type) -> dict[str, FieldInfo]:
    """What pydantic is told of a dataclass's fields."""
    if (known := getattr(cls, "__pydantic_fields__", None)) is not None:
        return dict(known)
    hints = get_type_hints(cls, include_extras=True)
    return {one.name: FieldInfo.from_annotation(hints[one.name]) for one in fields(cls)}


def _all_match(found: Iterable[bool | None]) -> bool | None:
    verdicts = set(found)
    return False if False in verdicts else None if None in verdicts else True


def _any_matches(found: Iterable[bool | None]) -> bool | None:
    verdicts = set(found)
    return True if True in verdicts else None if None in verdicts else False


def _get_comparison_type(value: Any) -> type:
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _iterate_glob_texts(value: Any) -> Iterator[str]:
    """What a glob may match: a whole number also without its fraction."""
    yield value if isinstance(value, str) else _dump_sorted_json(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_INTEGERS:
        yield str(int(value))


def _parse_pattern_scalar(pattern: str) -> bool | float | None:
    """The truth value or number that a text stands for."""
    try:
        found = json.loads(pattern)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, bool | int | float) else None


def _dump_sorted_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def parse_rule(values: Mapping[str, Any]) -> Rule:
    """The rule that plain data says: ``{"ask": "refund", "arguments": {"amount": 5}, "expires": "7d"}``.

    Raises ``DefinitionError``.
    """
    terms = {field.name: values[field.name] for field in fields(Approval) if field.name in values}
    actions = [action for action in ("allow", "ask", "deny") if action in values]
    arguments = values.get("arguments", {})
    if len(actions) != 1:
        raise DefinitionError(f"{dict(values)!r:.200} is no rule", hint='It has one of "allow", "ask" and "deny".')
    if unknown := sorted(values.keys() - {*actions, *terms, "arguments"}):
        known = ", ".join(field.name for field in fields(Approval))
        raise DefinitionError(f"a rule has no {unknown[0]!r}", hint=f"It has arguments; to ask for, also {known}.")
    if not isinstance(arguments, Mapping):
        raise DefinitionError(f"arguments: an object of names and patterns, not {arguments!r:.100}")
    if terms and actions != ["ask"]:
        raise DefinitionError(f"{actions[0]}: nobody is asked, so there is no {next(iter(terms))!r}")
    approval = Approval(**terms) if terms else None
    made: Literal["allow", "ask", "deny"] = actions[0]  # type: ignore[assignment]  # one of them
    return _build_rule(made, values[actions[0]], dict(arguments), approval)
