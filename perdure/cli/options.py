"""Options that many commands share, named as the ``temporal`` CLI names them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer


class Output(StrEnum):
    """How a command prints its answer."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print the answer.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
AddressOption = Annotated[str | None, typer.Option(help="host:port of the Temporal server.")]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Temporal namespace.")]
ProfileOption = Annotated[str | None, typer.Option(help="Profile of Temporal's configuration file.")]
StoreOption = Annotated[
    str | None, typer.Option("--store-url", help="Where the transcripts are; PERDURE_STORE_URL.", show_default=False)
]
QueueOption = Annotated[
    str | None, typer.Option("--task-queue", help="Task queue; PERDURE_TASK_QUEUE, else perdure.", show_default=False)
]
RunArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the run, or as much of it as is unique.")]


def chosen(output: Output, as_json: bool) -> Output:
    """What ``-o`` and ``--json`` come to."""
    return Output.JSON if as_json else output


def print_json(value: Any, *, output: Output) -> None:
    """Print ``value`` as JSON; with ``jsonl``, each item of a list on a line of its own."""
    if output is Output.JSONL:
        items: Iterable[Any] = value if isinstance(value, list) else [value]
        for item in items:
            print(json.dumps(item, ensure_ascii=False, default=str))
    else:
        print(json.dumps(value, indent=2, ensure_ascii=False, default=str))
