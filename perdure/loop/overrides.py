"""What a run, a turn and a step change of their agent, put together."""

from __future__ import annotations

from typing import Any

from ..types.state import RunState
from ..types.step import Kept

Changes = dict[str, Any]
"""Plain JSON of a ``StepOverride``, without what it leaves as it is."""

_EACH = ("settings", "provider_options", "limits")
"""Fields of which each piece counts for itself."""


def overrides(state: RunState) -> Changes | None:
    """The run's and the turn's, which counts more."""
    return merged(state.overrides or {}, (state.turn.overrides if state.turn else None) or {}) or None


def merged(first: Changes, then: Changes) -> Changes:
    """``then`` over ``first``; settings, provider options and limits one by one, and so tools that came and went."""
    both = {
        name: {**first[name], **then[name]}
        for name in _EACH
        if isinstance(first.get(name), dict) and isinstance(then.get(name), dict)
    }
    if "limits" in both:
        both["limits"]["turn"] = {**(first["limits"].get("turn") or {}), **(then["limits"].get("turn") or {})}
    whole = {**first, **then, **both}
    for name, other in (("add_tools", "remove_tools"), ("remove_tools", "add_tools")):
        if name in first:
            undone = then.get(other) or ()
            whole[name] = _united([tool for tool in first[name] if tool not in undone], then.get(name) or ())
    return {name: value for name, value in whole.items() if value or name not in ("add_tools", "remove_tools")}


def keep(state: RunState, kept: Kept) -> None:
    """From now on the run, and its turn, have what the step policy keeps."""
    turn = state.turn
    if kept.run:
        state.overrides = merged(state.overrides or {}, kept.run)
        if turn is not None and turn.overrides:  # what the turn changes counts more, and the step came later
            turn.overrides = merged(turn.overrides, kept.run)
    if kept.turn and turn is not None:
        turn.overrides = merged(turn.overrides or {}, kept.turn)


def _united(names: list[str], more: Any) -> list[str]:
    return list(dict.fromkeys([*names, *more]))
