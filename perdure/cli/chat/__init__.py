"""``perdure chat``: a conversation with an agent, on a terminal or through a pipe."""

from __future__ import annotations

import asyncio
import shlex
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InvalidInputError
from ...terminal import print_line
from ..connection import ConnectionOptions
from ..options import (
    AgentArgument,
    AttachOption,
    ByOption,
    ContextOption,
    FileOption,
    IdleOption,
    OutputFormat,
    OutputOptions,
    StoreOptions,
    TaskQueueOption,
    complete_runs,
    parse_json_object,
    read_attachments,
)
from ..output import INTERRUPTED

if TYPE_CHECKING:
    from ...types.messages import File
    from .conversation import ChatSession


@dataclass(frozen=True)
class ChatOptions:
    """What was asked for."""

    agent: str
    first_message: str | None
    id: str
    file: str | None
    task_queue: str | None
    by: str | None
    conversation_options: dict[str, Any]
    server: ConnectionOptions
    output: OutputFormat
    files: Sequence[File] = ()
    """What goes with the first message."""

    @property
    def resume_command(self) -> str:
        """The command that goes on with it."""
        words = ["perdure", "chat", self.agent, "--id", self.id]
        place = {
            "--file": self.file,
            "--task-queue": self.task_queue,
            "--address": self.server.address,
            "--namespace": self.server.namespace,
            "--profile": self.server.profile,
            "--store-url": self.server.store_url,
        }
        for option, value in place.items():
            words += [option, value] if value is not None else []
        return shlex.join(words)


def chat(
    agent: AgentArgument,
    message: Annotated[
        str | None,
        typer.Argument(help="What to say first; - is all of standard input, as one message.", show_default=False),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            help="Id of the conversation: a known one goes on, else it is made up.",
            autocompletion=complete_runs,
            show_default=False,
        ),
    ] = None,
    file: FileOption = None,
    attach: AttachOption = None,
    idle_timeout: IdleOption = None,
    context: ContextOption = None,
    by: ByOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Talk with an agent. Ctrl-C interrupts a reply, Ctrl-D leaves; the conversation stays, and goes on with --id.

    Enter sends, Alt-Enter or Ctrl-J begins a new line; what is attached goes with the first message. Without a
    terminal each line of standard input is a message, and the answers are printed.
    """
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and message != "-"
    if terminal and output is not OutputFormat.TEXT:
        raise InvalidInputError(f"-o {output.value} is for messages from a pipe", hint='echo "Hi" | perdure chat …')
    opening = {"context": parse_json_object(context), "idle_timeout": idle_timeout}
    known = id or f"{agent}-{uuid.uuid4().hex[:12]}"
    asked = ChatOptions(agent, message, known, file, task_queue, by, opening, server, output, read_attachments(attach))
    begun: list[ChatSession] = []
    try:
        code = asyncio.run(_run_chat(asked, begun, terminal=terminal))
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        if terminal and any(talk.has_messages for talk in begun):
            print_line(f"conversation {asked.id} stays open:", error=True)
            print_line(f"  {asked.resume_command}", error=True)
    if code:
        raise typer.Exit(code)


async def _run_chat(asked: ChatOptions, begun: list[ChatSession], *, terminal: bool) -> int:
    """Until there is nothing more to say; the exit code. ``begun`` is given the conversation."""
    from contextlib import nullcontext

    from ..worker import open_client_for_agent
    from .conversation import ChatSession, run_piped_chat

    def place() -> Any:
        """Whatever the author's code prints must not garble the line that is being written."""
        if not terminal:
            return nullcontext()
        from prompt_toolkit.patch_stdout import patch_stdout

        return patch_stdout(raw=True)

    with place():
        serving = open_client_for_agent(
            asked.server, asked.agent, file=asked.file, task_queue=asked.task_queue, actor=asked.by
        )
        async with serving as (client, agent):
            talk = ChatSession(client, agent, asked.id, asked.conversation_options, asked.files)
            begun.append(talk)
            past = await talk.load_run_details()
            if not terminal:
                return await run_piped_chat(talk, asked.first_message, asked.output)
            from .terminal import ChatTerminal

            return await ChatTerminal(talk, past).run(asked.first_message)
