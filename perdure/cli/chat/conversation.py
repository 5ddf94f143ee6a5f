"""One conversation from the side of whoever talks: what is said is delivered once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import InvalidInputError, PerdureError, RunNotFoundError
from ...terminal import print_line, print_text
from ..options import OutputFormat, build_content, print_json
from ..output import get_answer_text, print_error, wait_for_delivery
from ..run import show_activity

if TYPE_CHECKING:
    from ...agent.agent import Agent
    from ...client.client import Client
    from ...client.turn import Turn
    from ...types.interface import Response
    from ...types.messages import Content, File, Message
    from ..show import RunDetails


# ---
# ``perdure chat`` without a terminal: one message a line in, answers out.


async def run_piped_chat(talk: ChatSession, first: str | None, output: OutputFormat) -> int:
    """Say ``first`` (``-``: all of stdin, as one message), then each line; the exit code.

    A turn that fails is reported, and the next line goes on; the code is 1 then.
    """
    code = 0
    said: list[dict[str, Any]] = []
    print_line(f"conversation {talk.run.id}", error=True)
    async for text in _read_chat_messages(first):
        turn, _ = await talk.send_message(text)
        try:
            response = await _wait_for_chat_answer(talk, turn)
        except PerdureError as error:
            print_error(error)
            code = 1
            said.append({"task_id": turn.task_id, "error": {"type": type(error).__name__, "message": error.message}})
        else:
            if output is OutputFormat.TEXT:
                print_text(get_answer_text(response))
            said.append(response.model_dump(mode="json", exclude={"messages"}))
        if output is OutputFormat.JSONL:
            print_json(said.pop(), output=output)
    if output is OutputFormat.JSON:
        print_json(said, output=output)
    return code


async def _wait_for_chat_answer(talk: ChatSession, turn: Turn) -> Response:
    """The answer. Ctrl-C while it is awaited interrupts the turn as well."""
    try:
        async with show_activity(talk.run, announce=False):
            return await talk.wait_for_answer(turn)
    except asyncio.CancelledError:
        with contextlib.suppress(PerdureError):
            await talk.interrupt()
        raise


async def _read_chat_messages(first: str | None) -> AsyncIterator[str]:
    """What there is to say, without what is empty."""
    if first is not None:
        text = sys.stdin.read() if first == "-" else first
        if text.strip():
            yield text.strip() if first == "-" else text
        if first == "-":
            return
    async for line in _read_stdin_lines():
        if line.strip():
            yield line.strip()


async def _read_stdin_lines() -> AsyncIterator[str]:
    """Lines, read in a daemon thread: stdin may be a file, which no event loop watches, and no read can be stopped."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and nobody wants it any more
            for line in sys.stdin:
                loop.call_soon_threadsafe(queue.put_nowait, line)
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await queue.get()) is not None:
        yield line


class ChatSession:
    """Opens the conversation with the first message, or goes on with the one of that id."""

    def __init__(
        self,
        client: Client,
        agent: str | Agent,
        id: str,
        opening: dict[str, Any],
        files: Sequence[File] = (),
    ) -> None:
        self.agent = agent
        self.run = client.run(id)
        self.exists = False
        """Whether the conversation is there."""
        self.has_messages = False
        """Whether there may be anything to come back to."""
        self.has_answer = False
        """Whether anybody has answered yet: then there are workers."""
        self._client = client
        self._opening = opening
        self._files = list(files)
        """What goes with the next message."""
        self._turns: set[str] = set()
        self._read = 0
        """Messages of the transcript that were shown."""
        self._shown: Sequence[Message] = ()
        """The transcript as it was then."""
        self._root: str | None = None
        """What a summary at its beginning stands for."""
        self._unsure: tuple[str, str] | None = None
        """A text that may not have arrived, and its id: said again it counts once."""
        self._order = asyncio.Lock()

    @property
    def agent_name(self) -> str:
        """The agent's name."""
        return self.agent if isinstance(self.agent, str) else self.agent.name

    async def load_run_details(self) -> RunDetails | None:
        """What was said before; None for a new conversation.

        Raises ``InvalidInputError`` when the conversation is another agent's.
        """
        from ..show import read_run_details

        try:
            shown = await read_run_details(self._client, self.run)
        except RunNotFoundError:
            return None
        if shown.status.agent and shown.status.agent != self.agent_name:
            raise InvalidInputError(
                f"conversation {self.run.id!r} is with {shown.status.agent!r}, not with {self.agent_name!r}",
                hint=f"perdure chat {shown.status.agent} --id {self.run.id}",
            )
        self.exists = self.has_messages = True
        self._shown = shown.messages or ()
        self._read = len(self._shown)
        self._root = next((m.replaces.head for m in self._shown[:2] if m.replaces is not None), None)
        return shown

    async def find_running_turn(self) -> Turn:
        """The turn that was begun before we came."""
        turn = self.run.turn()
        self._turns.add((await turn.status()).task_id)
        return turn

    async def send_message(self, text: str) -> tuple[Turn, bool]:
        """Deliver it; its turn, and whether that is a new one: else it joined the one under way.

        Raises ``NoWorkerError`` after 10 s without anybody to take it.
        """
        async with self._order:
            message_id = self._choose_message_id(text)
            self._unsure = (text, message_id)
            self.has_messages = True
            turn = await wait_for_delivery(self.run, self._send_content(build_content(text, self._files), message_id))
            self._unsure = None
            self._files = []
            self.exists = True
            assert turn.task_id is not None, "a message that was taken is in a turn"
            new = turn.task_id not in self._turns
            self._turns.add(turn.task_id)
            return turn, new

    async def _send_content(self, said: Content, message_id: str) -> Turn:
        # A conversation that ended goes on with the context it had, unless it is given another one now.
        if self.exists and all(value is None for value in self._opening.values()):
            with contextlib.suppress(RunNotFoundError):  # Temporal has forgotten it; the store has not
                return await self.run.send(said, message_id=message_id)
        return await self._client.send(self.agent, said, id=self.run.id, message_id=message_id, **self._opening)

    def _choose_message_id(self, text: str) -> str:
        if self._unsure is not None and self._unsure[0] == text:
            return self._unsure[1]
        return uuid.uuid4().hex

    async def wait_for_answer(self, turn: Turn) -> Response:
        """Wait for it. Raises what the turn failed with."""
        try:
            return await turn.result()
        finally:
            self.has_answer = True

    def take_new_messages(self, response: Response) -> list[Message]:
        """What was said since the last answer that was shown; [] without the store."""
        messages = list(response.messages)
        if not messages:
            return []
        rewritten = [(place, m.replaces) for place, m in enumerate(messages[:2]) if m.replaces is not None]
        root = rewritten[0][1].head if rewritten else None
        if rewritten and root != self._root:  # its beginning was summed up meanwhile
            place, replaced = rewritten[0]
            unread = replaced.messages - self._read if replaced.messages >= self._read else replaced.kept
            self._read = place + 1 + max(0, replaced.kept - unread)
            if not replaced.kept:  # a step policy may have edited it: nobody has counted what stands there still
                there = (messages.index(message) + 1 for message in reversed(self._shown) if message in messages)
                self._read = max(self._read, next(there, 0))
        self._root, self._shown = root, messages
        new = messages[self._read :]
        self._read = max(self._read, len(messages))
        return new

    async def interrupt(self) -> None:
        """Stop the turn under way; it ends as it stands. Raises ``PerdureError``."""
        await self.run.interrupt()

    async def get_activity(self) -> str | None:
        """What it is at, in a line; None when it is not known."""
        from ..show import format_activity

        try:
            return format_activity(await self.run.status())
        except PerdureError:
            return None
