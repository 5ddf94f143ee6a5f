"""Which calls wait for a person: ``Approval``, the terms; ``allow``, ``ask`` and ``deny``, the rules of an agent."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from perdure.errors import DefinitionError
from perdure.types.approval import OnExpiry
from perdure.types.duration import seconds

REMIND_LEAST = 1.0
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
        expires, remind = self._seconds("expires"), self._seconds("remind")
        if remind is None:
            return
        if remind < REMIND_LEAST:
            raise DefinitionError(f"Approval: remind is at least {REMIND_LEAST:g} s, not {remind:g} s")
        if expires is not None and remind >= expires:
            raise DefinitionError(
                f"Approval: remind ({remind:g} s) is not shorter than expires ({expires:g} s)",
                hint="Nobody would be reminded: remind more often, or leave it out.",
            )

    def _seconds(self, name: Literal["expires", "remind"]) -> float | None:
        given = getattr(self, name)
        if given is None:
            return None
        try:
            found = seconds(given)
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


def stricter(one: Approval | None, other: Approval) -> Approval:
    """Terms that hold where a call is asked for on two: times of the first that has some, and nobody decides less."""
    if one is None:
        return other
    timed = one if one.expires is not None or one.remind is not None else other
    on_expiry: OnExpiry = "approve" if one.on_expiry == other.on_expiry == "approve" else "deny"
    return replace(timed, on_expiry=on_expiry, separate=one.separate or other.separate)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of ``Agent(approvals=[…])``. Made by :func:`allow`, :func:`ask` and :func:`deny`."""

    action: Literal["allow", "ask", "deny"]
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    approval: Approval | None = None

    def matches(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether it is for this call."""
        return fnmatchcase(name, self.tool) and all(
            argument in arguments and self._fits(pattern, arguments[argument])
            for argument, pattern in self.arguments.items()
        )

    def _fits(self, pattern: Any, value: Any) -> bool:
        if isinstance(value, list) and not isinstance(pattern, list):
            # One dangerous item is enough to be asked for; what is allowed must be so in all of them.
            of_items = [self._fits(pattern, item) for item in value]
            return bool(of_items) and all(of_items) if self.action == "allow" else any(of_items)
        if isinstance(pattern, str):
            return fnmatchcase(value if isinstance(value, str) else _text(value), pattern)
        return type(pattern) is type(value) and bool(pattern == value)


def allow(tool: str, /, **arguments: Any) -> Rule:
    """Calls of tools whose name matches the glob ``tool`` run unasked.

    ``arguments`` narrow it down: a text is a glob (``path="/tmp/*"``; other values than text are matched as JSON),
    any other value must be equal. An argument that the call does not have matches nothing.
    """
    return _rule("allow", tool, arguments, None)


def ask(tool: str, approval: Approval | None = None, /, **arguments: Any) -> Rule:
    """Such calls wait for a person; on the terms of ``approval``, else of the tool's own. See :func:`allow`."""
    if approval is not None and not isinstance(approval, Approval):
        raise DefinitionError(f"ask({tool!r:.100}, …): the second is an Approval, not {approval!r:.100}")
    return _rule("ask", tool, arguments, approval)


def deny(tool: str, /, **arguments: Any) -> Rule:
    """Such calls do not run; the model is told so. See :func:`allow`."""
    return _rule("deny", tool, arguments, None)


def checked_rules(name: str, rules: Any) -> tuple[Rule, ...]:
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


def first_rule(rules: Iterable[Rule], name: str, arguments: Mapping[str, Any]) -> Rule | None:
    """The rule that decides: the first that matches."""
    return next((rule for rule in rules if rule.matches(name, arguments)), None)


def _rule(action: Literal["allow", "ask", "deny"], tool: Any, arguments: dict[str, Any], how: Approval | None) -> Rule:
    if not isinstance(tool, str) or not tool:
        raise DefinitionError(
            f"{action}({tool!r:.100}): a rule names tools by text", hint='A glob may stand there: "read_*".'
        )
    return Rule(action, tool, arguments, how)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def rule_from(values: Mapping[str, Any]) -> Rule:
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
    return _rule(made, values[actions[0]], dict(arguments), approval)
