"""Arguments and options that several commands share, named as the ``temporal`` CLI names them."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from .._terminal import escape_line
from ..errors import InvalidInputError
from .connection import StoreOptions, open_client

if TYPE_CHECKING:
    from ..client.run_states import RunSummary
    from ..types.messages import Content, File


# ---
# Shell completion of run ids and agent names. It gives up after one second and prints no error: Tab must neither hang
# nor disturb the prompt.

_COMPLETION_SECONDS = 1.0
"""Seconds for the server and the store together."""
_COMPLETION_RUNS = 200


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids that begin with ``incomplete``, the newest first."""
    return _complete(incomplete, [run.id for run in _list_completion_runs(ctx)])


def complete_agents(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of agents that begin with ``incomplete``: the agents in ``--file``, or else those that have runs."""
    file = ctx.params.get("file")
    names = _parse_agent_names(file) if file else [run.agent for run in _list_completion_runs(ctx)]
    return sorted(set(_complete(incomplete, names)))


def _complete(incomplete: str, words: list[str]) -> list[str]:
    return [word for word in words if word and word.startswith(incomplete) and word == escape_line(word)]


def _list_completion_runs(ctx: typer.Context) -> list[RunSummary]:
    import asyncio

    # Imported before the time is counted: that may take a second on a slow machine, and only answers have a deadline.
    from ..client.client import Client  # noqa: F401
    from ..store.sqlite import SqliteStore  # noqa: F401

    server = StoreOptions(**{name: ctx.params.get(name) for name in ("address", "namespace", "profile", "store_url")})

    async def list_runs() -> list[RunSummary]:
        async with asyncio.timeout(_COMPLETION_SECONDS), open_client(server) as client:
            return await client.list(limit=_COMPLETION_RUNS)

    with contextlib.suppress(Exception):  # completion prints no errors
        return asyncio.run(list_runs())
    return []


def _parse_agent_names(file: str) -> list[str]:
    """The names in ``Agent("name", …)``, read without running the file."""
    names = []
    with contextlib.suppress(OSError, ValueError, SyntaxError):
        for node in ast.walk(ast.parse(Path(file).read_bytes())):
            match node:
                case ast.Call(func=ast.Name("Agent") | ast.Attribute(attr="Agent"), args=[ast.Constant(str(name)), *_]):
                    names.append(name)
    return names


# ---
# Groups of options: a command's parameter whose type is a dataclass, such as ``StoreOptions``.


class Commands(typer.Typer):
    """Commands whose parameters may be dataclasses with options as fields. Typer itself has no such groups."""

    def add(self, *commands: Callable[..., Any], name: str | None = None) -> None:
        """Register commands, under the names of their functions or under ``name``. The functions stay as they are."""
        for command in commands:
            self.command(name)(expand_option_groups(command))


def expand_option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command`` with each dataclass among its parameters replaced by the fields of it, for Typer to read."""
    parameters: dict[str, inspect.Parameter] = {}
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for name, parameter in _read_parameters(command).items():
        if is_dataclass(parameter.annotation):
            group: Any = parameter.annotation
            fields = _read_parameters(group)
            groups[name] = (group, list(fields))
            parameters |= fields
        else:
            parameters[name] = parameter

    @functools.wraps(command)
    def call_command(**values: Any) -> Any:
        for name, (group, fields) in groups.items():
            values[name] = group(**{field: values.pop(field) for field in fields})
        return command(**values)

    call_command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]  # inspect reads it
    call_command.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return call_command


def _read_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Parameters by name, in order, with evaluated annotations. They are keyword-only, as Typer calls them."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    }


AgentsOption = Annotated[
    Path | None,
    typer.Option("--agents", metavar="DIR", help="Folder of agent files (JSON, TOML, YAML) to serve in addition."),
]
TaskQueueOption = Annotated[
    str | None, typer.Option("--task-queue", help="Task queue; PERDURE_TASK_QUEUE, else perdure.")
]
FileOption = Annotated[
    str | None, typer.Option("--file", "-f", help="Also serve the agents of this file, in this process.")
]
MessageArgument = Annotated[
    str | None, typer.Argument(metavar="MESSAGE", help="The message to the agent; - reads standard input.")
]
InputOption = Annotated[
    str | None,
    typer.Option(help="For an agent with an input type, instead of the message: a JSON object; - reads stdin."),
]
ContextOption = Annotated[str | None, typer.Option(help="The run's context: a JSON object.")]
TenantOption = Annotated[str | None, typer.Option(help="The tenant whose run it is: a label for lists and usage.")]
UserOption = Annotated[str | None, typer.Option(help="The user whose run it is; --by and PERDURE_USER are who acts.")]
IdleOption = Annotated[
    str | None, typer.Option(help="Close the session after this time without a message: 90, 30s, 15m, 1h.")
]
MessageIdOption = Annotated[
    str | None, typer.Option(help="Id of the message; repeated with the same id it counts once.")
]
AttachOption = Annotated[
    list[str] | None,
    typer.Option("--attach", metavar="PATH", help="An image or another file to send with the text; repeatable."),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the run, or a unique beginning of it.", autocompletion=complete_runs)
]
OptionalRunArgument = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Id of the run, or a unique beginning of it.", autocompletion=complete_runs),
]
AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="Name of the agent.", autocompletion=complete_agents)
]


def read_text_argument(argument: str) -> str:
    """The text of an argument: ``-`` stands for standard input."""
    return sys.stdin.read() if argument == "-" else argument


def read_attachments(paths: list[str] | None) -> list[File]:
    """The files of ``--attach``. Raises ``InvalidInputError`` for one that cannot be read."""
    from ..types.messages import File

    return [File.read(path) for path in paths or ()]


def build_content(text: str, files: list[File]) -> Content:
    """A message of ``text`` and the attached files."""
    return [text, *files] if files else text


def read_message(message: str, attach: list[str] | None) -> Content:
    """A message with its attachments. Raises ``InvalidInputError``."""
    return build_content(read_text_argument(message), read_attachments(attach))


def read_optional_message(message: str | None, attach: list[str] | None, command: str) -> Content | None:
    """As :func:`read_message`, for a ``command`` that can do without. Raises ``InvalidInputError``."""
    if message is not None:
        return read_message(message, attach)
    if attach:
        raise InvalidInputError("--attach needs a message", hint=f'perdure {command} ID "Look at this." …')
    return None


def read_run_input(message: str | None, input: str | None, attach: list[str] | None) -> Content | dict[str, Any]:
    """The message of a run, or the value for its agent's input type. Raises ``InvalidInputError``."""
    if (message is None) == (input is None):
        hint = "For instance: perdure run support 'Where is order 7?'"
        raise InvalidInputError("give either MESSAGE or --input", hint=hint)
    if message is not None:
        return read_message(message, attach)
    if attach:
        raise InvalidInputError("--attach cannot be combined with --input", hint="Give the text as MESSAGE.")
    assert input is not None, "one of the two is given"
    return parse_json_object(read_text_argument(input), "--input") or {}


def parse_json_value(text: str, option: str, hint: str = """For instance: '{"amount": 3}'""") -> Any:
    """The value of ``text``. Raises ``InvalidInputError``."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{option} is not JSON: {error}", hint=hint) from None


def parse_json_object(
    text: str | None, option: str = "--context", hint: str = """For instance: '{"user": "7"}'"""
) -> dict[str, Any] | None:
    """The object of ``text``, if there is one. Raises ``InvalidInputError``."""
    if text is None:
        return None
    value = parse_json_value(text, option, hint)
    if not isinstance(value, dict):
        raise InvalidInputError(f"{option} must be a JSON object", hint=hint)
    return value
