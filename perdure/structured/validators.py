"""Output validators: functions of the author's that look at an answer before it is one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import DefinitionError

_TAKES = "It takes the output, or the output and a RunContext: def check(output, ctx): …"


@dataclass(frozen=True, slots=True)
class OutputValidator:
    """A function, sync or async. It gives the answer, changed or not (None is as it was), or raises ``ModelRetry``."""

    fn: Callable[..., Any]
    name: str
    takes_context: bool

    def arguments(self, output: Any, context: Any) -> tuple[Any, ...]:
        """What ``fn`` is called with."""
        return (output, context) if self.takes_context else (output,)


def checked_validators(agent: str, validators: Any) -> tuple[OutputValidator, ...]:
    """``validators`` of ``agent``. Raises ``DefinitionError`` for what is none."""
    if callable(validators) or isinstance(validators, str) or not isinstance(validators, Iterable):
        raise DefinitionError(
            f"agent {agent!r}: output_validators must be a list, not {validators!r:.100}",
            hint="For instance output_validators=[check].",
        )
    return tuple(checked_validator(agent, one) for one in validators)


def checked_validator(agent: str, fn: Any) -> OutputValidator:
    """One of them. Raises ``DefinitionError``."""
    if isinstance(fn, OutputValidator):
        return fn
    if not callable(fn):
        raise DefinitionError(f"agent {agent!r}: {fn!r:.100} is no output validator", hint=_TAKES)
    name = str(getattr(fn, "__name__", type(fn).__name__))
    places = [
        parameter
        for parameter in inspect.signature(fn).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    needed = [
        parameter
        for parameter in inspect.signature(fn).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if not places or len(needed) > 2 or any(one.kind is one.KEYWORD_ONLY for one in needed):
        raise DefinitionError(f"agent {agent!r}: {name!r} cannot be called as an output validator", hint=_TAKES)
    return OutputValidator(fn, name, len(places) > 1)
