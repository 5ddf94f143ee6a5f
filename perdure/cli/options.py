"""Options that many commands share, named as the ``temporal`` CLI names them."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from .. import terminal
from ..errors import InvalidInputError
from ..terminal import escape_line
from .connection import ConnectionOptions

if TYPE_CHECKING:
    from ..client.visibility import RunSummary
    from ..types.messages import Content, File


# ---
# What the shell completes besides commands and options: ids of runs, names of agents.
#
# Server and store answer within a second, or it says nothing: a Tab must neither hang nor print an error over
# somebody's
# line.


_COMPLETION_SECONDS = 1.0
"""Seconds for the server and the store together."""
_COMPLETION_RUNS = 200


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids that begin so, the newest first."""
    return [
        run.id for run in _list_completion_runs(ctx) if run.id.startswith(incomplete) and run.id == escape_line(run.id)
    ]


def complete_agents(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of agents that begin so: those that ``--file`` defines, else those that there are runs of."""
    file = ctx.params.get("file")
    names = _parse_agent_names(file) if file else [run.agent for run in _list_completion_runs(ctx)]
    return sorted({name for name in names if name and name.startswith(incomplete) and name == escape_line(name)})


def _list_completion_runs(ctx: typer.Context) -> list[RunSummary]:
    # What takes a machine a second to load is loaded before the time is counted, in which others answer.
    from ..client.client import Client  # noqa: F401
    from ..store.sqlite import SqliteStore  # noqa: F401
    from .connection import ConnectionOptions, open_client

    given = {name: ctx.params.get(name) for name in ("address", "namespace", "profile", "store_url")}

    async def ask() -> list[RunSummary]:
        async with asyncio.timeout(_COMPLETION_SECONDS), open_client(ConnectionOptions(**given)) as client:
            return await client.list(limit=_COMPLETION_RUNS)

    with contextlib.suppress(Exception):  # whatever it is, this is not the place to say it
        return asyncio.run(ask())
    return []


def _parse_agent_names(file: str) -> list[str]:
    """The names in ``Agent("name", …)``, read without running the file."""
    with contextlib.suppress(OSError, ValueError, SyntaxError):
        calls = (node for node in ast.walk(ast.parse(Path(file).read_bytes())) if isinstance(node, ast.Call))
        return [
            call.args[0].value
            for call in calls
            if ast.unparse(call.func).rpartition(".")[2] == "Agent"
            and call.args
            and isinstance(call.args[0], ast.Constant)
            and isinstance(call.args[0].value, str)
        ]
    return []


# ---
# Parameters of commands that several options make together: :class:`Depends`, as FastAPI has it.


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
            register(expand_dependencies(command))
            return command

        return add


def expand_dependencies(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command`` as Typer is to read it: where it depends on something, the options of that stand."""
    parameters: dict[str, inspect.Parameter] = {}
    made: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for name, parameter in _read_parameters(command).items():
        if (depends := _find_depends(parameter.annotation)) is None:
            parameters[name] = parameter
        else:
            options = _read_parameters(depends.make)
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


def _read_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """By name, in order, with annotations that are no strings. Typer calls by keyword."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    }


def _find_depends(annotation: Any) -> Depends | None:
    found = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((one for one in found if isinstance(one, Depends)), None)


class OutputFormat(StrEnum):
    """How a command prints its answer."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


AddressOption = Annotated[str | None, typer.Option(help="host:port of the Temporal server.")]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Temporal namespace.")]
ProfileOption = Annotated[str | None, typer.Option(help="Profile of Temporal's configuration file.")]


def _read_output_options(
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="How to print the answer.")
    ] = OutputFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> OutputFormat:
    return OutputFormat.JSON if as_json else output


def _read_server_options(
    address: AddressOption = None, namespace: NamespaceOption = None, profile: ProfileOption = None
) -> ConnectionOptions:
    return ConnectionOptions(address, namespace, profile)


def _read_store_options(
    address: AddressOption = None,
    namespace: NamespaceOption = None,
    profile: ProfileOption = None,
    store_url: Annotated[
        str | None, typer.Option(help="Where the transcripts are; PERDURE_STORE_URL.", show_default=False)
    ] = None,
) -> ConnectionOptions:
    return ConnectionOptions(address, namespace, profile, store_url)


OutputOptions = Annotated[OutputFormat, Depends(_read_output_options)]
"""``-o`` and ``--json``."""
ServerOptions = Annotated[ConnectionOptions, Depends(_read_server_options)]
"""``--address``, ``--namespace`` and ``--profile``."""
StoreOptions = Annotated[ConnectionOptions, Depends(_read_store_options)]
"""Those, and ``--store-url``."""
AgentsOption = Annotated[
    Path | None,
    typer.Option("--agents", metavar="DIR", help="A folder of agent files (JSON, TOML, YAML) to serve as they are."),
]
TaskQueueOption = Annotated[
    str | None, typer.Option("--task-queue", help="Task queue; PERDURE_TASK_QUEUE, else perdure.", show_default=False)
]
FileOption = Annotated[
    str | None, typer.Option("--file", "-f", help="Serve the agents of this file too, here.", show_default=False)
]
MessageArgument = Annotated[
    str | None,
    typer.Argument(metavar="MESSAGE", help="What to say to it; - reads standard input.", show_default=False),
]
InputOption = Annotated[
    str | None,
    typer.Option(help="Of an agent with an input type, in place of the message: a JSON object; - as above."),
]
ContextOption = Annotated[str | None, typer.Option(help="The author's data: a JSON object.", show_default=False)]
IdleOption = Annotated[
    str | None,
    typer.Option(help="It closes when no message comes for so long: 90, 30s, 15m, 1h.", show_default=False),
]
ByOption = Annotated[
    str | None, typer.Option("--by", help="Who does it; PERDURE_USER, else the user here.", show_default=False)
]
MessageIdOption = Annotated[str | None, typer.Option(help="The same id twice counts once.", show_default=False)]
AttachOption = Annotated[
    list[str] | None,
    typer.Option("--attach", metavar="PATH", help="An image or another file beside the text; again for more."),
]
RunArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="Id of the run, or as much of it as is unique.", autocompletion=complete_runs),
]
AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="Name of the agent.", autocompletion=complete_agents)
]


def read_message_argument(argument: str) -> str:
    """A message as it was given: ``-`` stands for the standard input."""
    return sys.stdin.read() if argument == "-" else argument


def read_attachments(paths: list[str] | None) -> list[File]:
    """The files of ``--attach``. Raises ``InvalidInputError`` for one that cannot be read."""
    from ..types.messages import File

    return [File.read(path) for path in paths or ()]


def build_content(text: str, files: list[File]) -> Content:
    """A message of ``text`` and what is attached to it."""
    return [text, *files] if files else text


def read_run_input(message: str | None, input: str | None, attach: list[str] | None) -> Content | dict[str, Any]:
    """What the run is asked: a message, or the value of an input type. Raises ``InvalidInputError``."""
    if (message is None) == (input is None):
        raise InvalidInputError(
            "a run is asked a message, or an --input", hint="For instance: perdure run support 'Where is order 7?'"
        )
    if message is not None:
        return build_content(read_message_argument(message), read_attachments(attach))
    if attach:
        raise InvalidInputError("an --input has no files beside it", hint="Say --attach with a message.")
    assert input is not None, "one of the two is given"
    return parse_json_object(read_message_argument(input), "--input") or {}


def parse_json_value(text: str, what: str, hint: str = """For instance: '{"amount": 3}'""") -> Any:
    """What ``text`` says. Raises ``InvalidInputError``."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{what} is not JSON: {error}", hint=hint) from None


def parse_json_object(
    text: str | None, option: str = "--context", hint: str = """For instance: '{"user": "7"}'"""
) -> dict[str, Any] | None:
    """What ``option`` says. Raises ``InvalidInputError``."""
    if text is None:
        return None
    value = parse_json_value(text, option, hint)
    if not isinstance(value, dict):
        raise InvalidInputError(f"{option} must be a JSON object", hint=hint)
    return value


def print_json(value: Any, *, output: OutputFormat) -> None:
    """Print ``value`` as JSON; with ``jsonl``, each item of a list on a line of its own."""
    terminal.print_json(value, lines=output is OutputFormat.JSONL)
