"""Options that many commands share, named as the ``temporal`` CLI names them."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import printing
from ..errors import InvalidInputError
from .completion import complete_agents, complete_runs
from .connection import Server
from .depends import Depends

if TYPE_CHECKING:
    from ..types.files import Content, File


class Output(StrEnum):
    """How a command prints its answer."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


AddressOption = Annotated[str | None, typer.Option(help="host:port of the Temporal server.")]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Temporal namespace.")]
ProfileOption = Annotated[str | None, typer.Option(help="Profile of Temporal's configuration file.")]


def _output(
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print the answer.")] = Output.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> Output:
    return Output.JSON if as_json else output


def _server(address: AddressOption = None, namespace: NamespaceOption = None, profile: ProfileOption = None) -> Server:
    return Server(address, namespace, profile)


def _server_and_store(
    address: AddressOption = None,
    namespace: NamespaceOption = None,
    profile: ProfileOption = None,
    store_url: Annotated[
        str | None, typer.Option(help="Where the transcripts are; PERDURE_STORE_URL.", show_default=False)
    ] = None,
) -> Server:
    return Server(address, namespace, profile, store_url)


OutputOptions = Annotated[Output, Depends(_output)]
"""``-o`` and ``--json``."""
ServerOptions = Annotated[Server, Depends(_server)]
"""``--address``, ``--namespace`` and ``--profile``."""
StoreOptions = Annotated[Server, Depends(_server_and_store)]
"""Those, and ``--store-url``."""
AgentsOption = Annotated[
    Path | None,
    typer.Option("--agents", metavar="DIR", help="A folder of agent files (JSON, TOML, YAML) to serve as they are."),
]
QueueOption = Annotated[
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


def message_of(argument: str) -> str:
    """A message as it was given: ``-`` stands for the standard input."""
    return sys.stdin.read() if argument == "-" else argument


def attached(paths: list[str] | None) -> list[File]:
    """The files of ``--attach``. Raises ``InvalidInputError`` for one that cannot be read."""
    from ..types.files import File

    return [File.read(path) for path in paths or ()]


def with_files(text: str, files: list[File]) -> Content:
    """A message of ``text`` and what is attached to it."""
    return [text, *files] if files else text


def asked(message: str | None, input: str | None, attach: list[str] | None) -> Content | dict[str, Any]:
    """What the run is asked: a message, or the value of an input type. Raises ``InvalidInputError``."""
    if (message is None) == (input is None):
        raise InvalidInputError(
            "a run is asked a message, or an --input", hint="For instance: perdure run support 'Where is order 7?'"
        )
    if message is not None:
        return with_files(message_of(message), attached(attach))
    if attach:
        raise InvalidInputError("an --input has no files beside it", hint="Say --attach with a message.")
    assert input is not None, "one of the two is given"
    return json_object(message_of(input), "--input") or {}


def json_value(text: str, what: str, hint: str = """For instance: '{"amount": 3}'""") -> Any:
    """What ``text`` says. Raises ``InvalidInputError``."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{what} is not JSON: {error}", hint=hint) from None


def json_object(
    text: str | None, option: str = "--context", hint: str = """For instance: '{"user": "7"}'"""
) -> dict[str, Any] | None:
    """What ``option`` says. Raises ``InvalidInputError``."""
    if text is None:
        return None
    value = json_value(text, option, hint)
    if not isinstance(value, dict):
        raise InvalidInputError(f"{option} must be a JSON object", hint=hint)
    return value


def print_json(value: Any, *, output: Output) -> None:
    """Print ``value`` as JSON; with ``jsonl``, each item of a list on a line of its own."""
    printing.print_json(value, lines=output is Output.JSONL)
