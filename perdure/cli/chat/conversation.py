"""A chat session: sends messages exactly once and in order, and waits for their answers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..._terminal import print_line, print_text
from ...client.decisions import RunWait
from ...errors import InvalidInputError, PerdureError, RunNotFoundError, RunStuckError
from ..options import build_content
from ..output import OutputOptions, get_answer_text, print_error
from ..run import show_activity, wait_for_delivery
from ..show import RunDetails, read_run_details
from .requests import AnswerEntry, ApprovalEntry

if TYPE_CHECKING:
    from ...agent.spec import AgentSpec
    from ...client.client import Client
    from ...client.turn import Turn
    from ...types.approvals import DecidedApproval
    from ...types.interface import Response, Status
    from ...types.messages import Content, File


# ---
# ``perdure chat`` without a terminal: a message for each line of stdin, answers on stdout.


async def run_piped_chat(session: ChatSession, first: str | None, output: OutputOptions) -> int:
    """Send ``first`` (``-``: all of stdin, as one message), then each line, and return the exit code.

    A turn that fails is reported, and the next line is sent; the exit code is then 1. If the conversation cannot go on
    by itself, no further line is sent.
    """
    code, is_stuck = 0, False
    results: list[dict[str, Any]] = []
    print_line(f"conversation {session.run.id}", error=True)
    async for text in _read_chat_messages(first):
        turn, _ = await session.send_message(text)
        try:
            response = await _wait_for_chat_answer(session, turn)
        except PerdureError as error:
            print_error(error)
            code, is_stuck = 1, isinstance(error, RunStuckError)
            failure = {"type": type(error).__name__, "message": error.message}
            results.append({"task_id": turn.task_id, "error": failure})
        else:
            if output.format == "text":
                print_text(get_answer_text(response))
            results.append(response.model_dump(mode="json", exclude={"messages"}))
        if output.format == "jsonl":
            output.print_json(results.pop())
        if is_stuck:
            break
    if output.format == "json":
        output.print_json(results)
    return code


async def _wait_for_chat_answer(session: ChatSession, turn: Turn) -> Response:
    """The answer. Ctrl-C interrupts the turn as well."""
    from ...client.tasks import wait_beside

    try:
        async with show_activity(session.run, announce=False, unattended=True) as watching:
            return await wait_beside(session.wait_for_answer(turn), watching)
    except asyncio.CancelledError:
        with contextlib.suppress(PerdureError):
            await session.run.interrupt()
        raise


async def _read_chat_messages(first: str | None) -> AsyncIterator[str]:
    """The messages that are not empty."""
    if first == "-":
        if text := sys.stdin.read().strip():
            yield text
        return
    if first is not None and first.strip():
        yield first
    async for line in _read_stdin_lines():
        if line.strip():
            yield line.strip()


async def _read_stdin_lines() -> AsyncIterator[str]:
    """Reads lines in a daemon thread: no event loop watches stdin if it is a file, and a read cannot be stopped."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            for line in sys.stdin:
                loop.call_soon_threadsafe(queue.put_nowait, line)
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await queue.get()) is not None:
        yield line


class ChatSession:
    """Opens the conversation with the first message, or goes on with the one of that id."""

    def __init__(
        self, client: Client, agent: str | AgentSpec, id: str, opening: dict[str, Any], files: Sequence[File] = ()
    ) -> None:
        self.agent_name = agent if isinstance(agent, str) else agent.name
        self.run = client.run(id)
        self.exists = False
        """Whether the conversation exists."""
        self.has_messages = False
        """Whether a message may have arrived, so that there is a conversation to come back to."""
        self.has_answer = False
        """True after the first answer: a worker is running."""
        self._client = client
        self._agent = agent
        self._opening = opening
        self._files = list(files)
        """Files to send with the next message."""
        self._turns: set[str] = set()
        self._undelivered: tuple[str, str] | None = None
        """A text that may not have arrived, and its message id: sent again with that id it counts once."""
        self._order = asyncio.Lock()

    async def load_run_details(self) -> RunDetails | None:
        """The conversation so far; None for a new one.

        Raises ``InvalidInputError`` when the conversation is another agent's; ``AgentNotFoundError`` for a new one with
        an agent that no worker has recorded.
        """
        from ...client.agents import refuse_unknown_agent

        try:
            details = await read_run_details(self.run, tree=False)
        except RunNotFoundError:
            if isinstance(self._agent, str):
                await refuse_unknown_agent(self._client, self._agent)
            return None
        agent = details.status.agent
        if agent and agent != self.agent_name:
            message = f"conversation {self.run.id!r} is with {agent!r}, not with {self.agent_name!r}"
            raise InvalidInputError(message, hint=f"perdure chat {agent} --id {self.run.id}")
        self.exists = self.has_messages = True
        return details

    async def find_open_turn(self, status: Status) -> Turn | None:
        """The turn that was begun before this session and gets its answer in it; None if there is none."""
        # A run waits for a decision or an answer in a turn only; it is paused in a turn, or between two.
        if status.state not in ("running", "held_up", "paused") and not status.approvals:
            return None
        turn = self.run.turn()
        turn_status = await turn.status()
        if status.state == "paused" and turn_status.state != "running":
            return None
        self._turns.add(turn_status.task_id)
        return turn

    async def send_message(self, text: str) -> tuple[Turn, bool]:
        """Deliver a message, and return its turn, and whether that is new: else it joined the turn under way.

        Raises ``NoWorkerError`` if no worker takes it within 10 s.
        """
        async with self._order:
            if self._undelivered is None or self._undelivered[0] != text:
                self._undelivered = (text, uuid.uuid4().hex)
            self.has_messages = True
            content = build_content(text, self._files)
            turn = await wait_for_delivery(self.run, self._send_content(content, self._undelivered[1]))
            self._undelivered = None
            self._files = []
            self.exists = True
            new = turn.task_id not in self._turns
            self._turns.add(turn.task_id)
            return turn, new

    async def _send_content(self, content: Content, message_id: str) -> Turn:
        # A conversation that ended goes on with the context it had, unless this session was given another one.
        if self.exists and all(value is None for name, value in self._opening.items() if name != "tenant"):
            with contextlib.suppress(RunNotFoundError):  # deleted by Temporal; the store has it still
                return await self.run.send(content, message_id=message_id)
        return await self._client.send(self._agent, content, id=self.run.id, message_id=message_id, **self._opening)

    async def read_requests(
        self, asking: Iterable[str]
    ) -> tuple[Status, list[RunWait], dict[tuple[str, str], DecidedApproval]]:
        """The status, what waits for a person in the run and in the runs ``asking`` below it, and what was decided."""
        waiting: list[RunWait] = []
        decided: dict[tuple[str, str], DecidedApproval] = {}
        own_status = await self.run.status()
        statuses = {self.run.id: own_status}
        for run_id in asking:
            with contextlib.suppress(RunNotFoundError):
                statuses[run_id] = await self._client.run(run_id).status()
        for run_id, status in statuses.items():
            waiting += [RunWait(run_id, call) for call in status.approvals]
            decided |= {(run_id, past.call_id): past for past in status.decided}
        return own_status, waiting, decided

    async def decide(self, entry: ApprovalEntry | AnswerEntry) -> DecidedApproval:
        """Send a decision or an answer. Raises as ``Run.approve``, ``Run.deny`` and ``Run.answer``."""
        run, call = self._client.run(entry.request.run_id), entry.request.call
        if isinstance(entry, AnswerEntry):
            return await run.answer(call.call_id, entry.value, error=entry.error, hash=call.hash)
        if not entry.approved:
            return await run.deny(call.call_id, comment=entry.comment, hash=call.hash)
        return await run.approve(call.call_id, always=entry.always, hash=call.hash)

    async def wait_for_answer(self, turn: Turn) -> Response:
        """Wait for the answer. Raises the error that the turn failed with."""
        try:
            return await turn.result()
        finally:
            self.has_answer = True
