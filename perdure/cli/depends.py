"""Parameters of commands that several options make together: :class:`Depends`, as FastAPI has it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Depends:
    """``Annotated[T, Depends(make)]``: the value is what ``make`` returns; its parameters are the command's options."""

    make: Callable[..., Any]


class Commands(typer.Typer):
    """Commands whose parameters may be :class:`Depends`. Typer has nothing of the kind."""

    def command(self, *args: Any, **settings: Any) -> Callable[[Command], Command]:
        """As Typer's; the function itself stays as it is."""
        register = super().command(*args, **settings)

        def add(command: Command) -> Command:
            register(flat(command))
            return command

        return add


def flat(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command`` as Typer is to read it: where it depends on something, the options of that stand."""
    parameters: dict[str, inspect.Parameter] = {}
    made: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for name, parameter in _parameters(command).items():
        if (depends := _depends(parameter.annotation)) is None:
            parameters[name] = parameter
        else:
            options = _parameters(depends.make)
            made[name] = (depends.make, list(options))
            parameters |= options

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        own = {name: make(**{option: given[option] for option in options}) for name, (make, options) in made.items()}
        taken = {option for _, options in made.values() for option in options}
        return command(**{name: value for name, value in given.items() if name not in taken}, **own)

    called.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]  # inspect reads it
    called.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return called


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """By name, in order, with annotations that are no strings. Typer calls by keyword."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    }


def _depends(annotation: Any) -> Depends | None:
    found = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((one for one in found if isinstance(one, Depends)), None)
