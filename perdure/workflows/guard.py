"""Prevent a fault of the engine from failing workflow tasks again and again: its change is undone, and the run pauses.

The fault is marked in history. A worker whose code is fixed replays the run as it happened: at the marker it skips the
change that failed, and makes it when the run is resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

from ..errors import EngineError, NewerStateError
from ..loop.lifecycle import pause_run
from ..types.messages import clean_text
from ..types.state import RunState, StatePart
from ..types.subagents import BackgroundRun
from .host import get_host, get_logger, has_marker, is_replaying, record_marker

P = ParamSpec("P")
T = TypeVar("T")
FAULT_CHARS = 500
MUTABLE_TYPES = (StatePart, BackgroundRun)
"""Types in a state that change in place; everything else in it is frozen."""


class Guard:
    """Makes changes to the state of one execution, each completely or not at all."""

    def __init__(self) -> None:
        self._change_count = 0
        self._version = 0
        """Counts every change of the state, also those that were made without the guard."""

    def change_or_raise(self, state: RunState, what: str, change: Callable[[], T], *refusals: type[Exception]) -> T:
        """Call ``change``, which may alter ``state``, and return its result. ``what`` names the change in errors.

        Raises an error of ``refusals`` or ``NewerStateError`` unchanged, any other as ``EngineError``; the state is
        then as it was before.
        """
        self._change_count += 1
        self._version += 1
        mark = f"perdure-fault-{self._change_count}"
        before, failed_then = Savepoint(state), has_marker(mark)
        try:
            result = change()
        except Exception as error:
            before.restore()
            if isinstance(error, (NewerStateError, *refusals)):
                raise
            if is_replaying() and not failed_then:
                raise  # it succeeded at first: only an engine without this fault can go on with the run
            record_marker(mark)
            get_logger().exception("%s failed in run %s", what, state.context_id)
            raise EngineError(clean_text(f"{what} failed: {type(error).__name__}: {error}")[:FAULT_CHARS]) from None
        if failed_then:
            before.restore()
            raise EngineError(f"{what} failed in an earlier version of the engine")
        return result

    def change_or_pause(
        self,
        state: RunState,
        what: str,
        change: Callable[Concatenate[RunState, P], T],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T | None:
        """Call ``change`` with ``state`` and the arguments, and return its result; if it fails, pause the run and
        return None."""
        try:
            return self.change_or_raise(state, what, partial(change, state, *arguments, **options))
        except EngineError as error:
            reason = f"{error.message}. Resume the run when its workers have a mended engine."
            pause_run(state, reason, get_host().now().isoformat(), fault=True)
            return None

    def note_change(self) -> None:
        """Record that the state was changed without the guard, so that waits look at it again."""
        self._version += 1

    def once_per_change(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        """Return a condition for one wait that evaluates ``condition``, which depends on the state alone, only after a
        change of the state; False if it raises.

        A host evaluates the conditions of all waits again and again, ten times in an iteration.
        """
        evaluated = -1

        def is_met() -> bool:
            nonlocal evaluated
            if evaluated == self._version:
                return False
            evaluated = self._version
            try:
                return condition()
            except Exception:
                get_logger().exception("a condition of the workflow failed")
                return False

        return is_met


@cache
def _find_mutable_kind(kind: type[object]) -> type | None:
    """Return what a value of the type ``kind`` is saved as: a list, a dict or a model; None for one that does not
    change. Remembered: ``isinstance`` of a pydantic class is slow."""
    if issubclass(kind, MUTABLE_TYPES):
        return BaseModel
    return next((container for container in (list, dict) if issubclass(kind, container)), None)


@cache
def _list_mutable_fields(kind: type[BaseModel]) -> list[str]:
    """List the fields of the model ``kind`` whose values may change in place: a quarter of all."""
    return [name for name, field in kind.model_fields.items() if _may_be_mutable(field.annotation)]


def _may_be_mutable(annotation: Any) -> bool:
    """Whether a value of that type may change in place: True unless it is known not to."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType, tuple):
        return any(map(_may_be_mutable, get_args(annotation)))
    if origin is Literal or annotation in (Ellipsis, str, int, float, bool, NoneType):
        return False
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return not is_model or issubclass(annotation, MUTABLE_TYPES)


class Savepoint:
    """A copy of a state at one moment. It is restored in place: calls in flight refer to parts of the state."""

    def __init__(self, state: RunState) -> None:
        self._fields: list[tuple[BaseModel, dict[str, Any]]] = []
        self._save_fields(state)

    def _save_fields(self, part: BaseModel) -> None:
        fields: dict[str, Any] = dict(part.__dict__)
        self._fields.append((part, fields))
        for name in _list_mutable_fields(part.__class__):
            value = fields[name]
            kind = _find_mutable_kind(value.__class__)
            if kind is list:
                fields[name] = list(value)
                if value and _find_mutable_kind(value[0].__class__) is BaseModel:  # the items of a list are of one kind
                    for item in value:
                        self._save_fields(item)
            elif kind is dict:
                fields[name] = dict(value)
            elif kind is BaseModel:
                self._save_fields(value)

    def restore(self) -> None:
        """Undo all changes since the savepoint."""
        for part, fields in self._fields:
            part.__dict__.clear()
            part.__dict__.update(fields)
