"""The chat on a terminal. The line stays there while the agent works: what is typed then joins its turn.

Only this module imports prompt_toolkit.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from ...embedded.home import current_home, open_private
from ...errors import NoWorkerError, PerdureError
from ...terminal import escape_line, print_line, style_text
from ..events import format_calls, format_retraction, format_subagent_path
from ..output import INTERRUPTED, can_colour_stdout, format_arguments, format_conversation, get_answer_text
from ..run import STATUS_POLL_SECONDS

if TYPE_CHECKING:
    from ...client.turn import Turn
    from ...types.events import Event
    from ...types.interface import Response
    from ...types.messages import Message
    from ..show import RunDetails
    from .conversation import ChatSession


# ---
# A turn as it happens, in lines: what is written so far of the last one is the prompt's to show.


class LiveTurn:
    """Events of one turn in, lines out."""

    def __init__(self, *, colour: bool) -> None:
        from ...client.event_reader import LiveText

        self._live = LiveText()
        self._colour = colour
        self.partial_line = ""
        """The line that is being written."""
        self.has_output = False
        """Whether any of the reply was shown."""
        self.is_over = False
        """Whether the turn has its answer; one that is extended goes on."""

    def feed(self, event: Event) -> Iterator[str]:
        """Whole lines of text, and what else a person wants to know of it."""
        if event.path:
            yield from self._format_subagent_calls(event)
            return
        self.is_over = event.type == "turn" and event.state != "started"
        if piece := self._live.feed(event):
            self.has_output = True
            *whole, self.partial_line = (self.partial_line + piece).split("\n")
            yield from (escape_line(line).rstrip() for line in whole)
            yield from self._wrap_partial_line()
        match event.type:
            case "model.completed":
                yield from self.flush_partial_line()
                for call in format_calls(event):
                    yield style_text(call, "blue", on=self._colour)
            case "model.retracted":
                yield from self.flush_partial_line()
                if event.reason != "Interrupted":  # the end of the turn says so
                    yield style_text(format_retraction(event.reason), "yellow", on=self._colour)
            case "tool.progress":
                yield style_text(f"… {escape_line(event.name)}: {escape_line(event.message)}", "dim", on=self._colour)

    def _format_subagent_calls(self, event: Event) -> Iterator[str]:
        """The calls it makes, a line each, and no word of what it says: that is for the agent that asked."""
        if event.type == "model.completed" and event.calls:
            yield from self.flush_partial_line()
            for call in format_calls(event):
                yield style_text(f"[{format_subagent_path(event)}] {call}", "dim", on=self._colour)

    def flush_partial_line(self) -> Iterator[str]:
        """The line that is being written, as it stands."""
        if self.partial_line:
            yield escape_line(self.partial_line).rstrip()
            self.partial_line = ""

    def _wrap_partial_line(self) -> Iterator[str]:
        """The beginning of a line that is longer than the terminal is wide: it cannot change any more."""
        columns = max(shutil.get_terminal_size((100, 24)).columns - 1, 20)
        while len(self.partial_line) > columns:
            at = self.partial_line.rfind(" ", 1, columns)
            at = columns if at < 0 else at
            yield escape_line(self.partial_line[:at])
            self.partial_line = self.partial_line[at:].removeprefix(" ")


# ---
# What a person sees of a conversation on the terminal: its last turns, what was called, the answers.


_PAST_TURNS = 3
"""Messages of the user, and what follows them, that are shown of a conversation that goes on."""
_FINISH_REASON_TEXTS = {
    "interrupted": "interrupted",
    "limit": "it has reached a limit",
    "length": "cut off: the reply has reached its limit of tokens",
    "refusal": "the model has declined",
    "veto": "a hook has answered in the model's place",
    "content_filter": "the provider's filter has stopped the reply",
}


def format_past_turns(shown: RunDetails, *, colour: bool) -> Iterator[str]:
    """The last turns, as ``perdure show`` has them."""
    messages = shown.messages or []
    start = _find_last_turns_start(messages)
    if start:
        yield style_text(f"… {start} earlier messages: perdure show {shown.status.context_id}", "dim", on=colour)
    before = sum(message.role == "assistant" for message in messages[:start])
    yield from format_conversation(messages[start:], colour=colour, since=before)
    if shown.note:
        yield style_text(shown.note, "yellow", on=colour)
    if shown.error:
        failed = f"its last turn failed: {type(shown.error).__name__}: {shown.error}"
        yield from (style_text(line, "red", on=colour) for line in failed.splitlines())


def _find_last_turns_start(messages: Sequence[Message]) -> int:
    asked = [number for number, message in enumerate(messages) if message.role == "user"]
    return asked[-_PAST_TURNS] if len(asked) > _PAST_TURNS else 0


def format_turn_answer(response: Response, news: Sequence[Message], *, colour: bool) -> Iterator[str]:
    """What was called since the last answer, and the answer."""
    for message in news:
        for call in message.tool_calls:
            said = call.malformed if call.malformed is not None else format_arguments(call.arguments)
            yield style_text(f"→ {escape_line(call.name)}({escape_line(said)})", "blue", on=colour)
    lines = [escape_line(line).rstrip() for line in get_answer_text(response).strip().splitlines()]
    yield from lines
    if response.finish_reason in _FINISH_REASON_TEXTS:
        yield from format_turn_end(response, colour=colour)
    elif not lines:
        yield style_text("(an empty reply)", "dim", on=colour)


def format_turn_end(response: Response, *, colour: bool) -> list[str]:
    """Why the turn ended, where that is not the ordinary course."""
    why = _FINISH_REASON_TEXTS.get(response.finish_reason)
    return [] if why is None else [style_text(f"({why})", "yellow", on=colour)]


_KEY_HELP = "Enter sends · Alt-Enter or Ctrl-J new line · Ctrl-C interrupts · Ctrl-D leaves"
_PROMPT, _CONTINUATION_PROMPT = "> ", "  "
_LAST_EVENTS_SECONDS = 1.0
"""Seconds that the last events of a turn may come behind its answer."""
_PROMPT_STYLE = Style.from_dict({"doing": "ansicyan", "keys": "ansibrightblack"})


class ChatTerminal:
    """One sitting; :meth:`run` ends when the person leaves."""

    def __init__(self, talk: ChatSession, past: RunDetails | None) -> None:
        self._talk = talk
        self._past = past
        self._colour = can_colour_stdout()
        self._doing = ""
        self._live = LiveTurn(colour=self._colour)
        self._tasks: set[asyncio.Task[None]] = set()
        """What is being said and awaited."""
        self._interrupted = False
        """Ctrl-C was pressed since the agent began to work."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with what ends the chat from inside."""
        self._session: PromptSession[str] = PromptSession(
            self._build_prompt,
            history=_open_prompt_history(talk.agent_name),
            multiline=True,
            prompt_continuation=_CONTINUATION_PROMPT,
            key_bindings=self._build_key_bindings(),
            style=_PROMPT_STYLE,
            input=_Keyboard(sys.stdin),
        )

    async def run(self, first: str | None = None) -> int:
        """The exit code: 0, or 130 when it was left in the middle of a reply by a second Ctrl-C.

        Raises ``NoWorkerError`` when nobody takes the first message.
        """
        await self._print_greeting()
        looking = asyncio.ensure_future(self._poll_turn_activity())
        # One prompt for the whole sitting: between two the terminal would take Enter for the key that begins a line.
        sitting = asyncio.ensure_future(self._session.prompt_async(pre_run=lambda: self._send_first_message(first)))
        try:
            either: list[asyncio.Future[Any]] = [sitting, self._over]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            (self._over if self._over.done() else sitting).result()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            left = [looking, sitting, *self._tasks]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        return 0

    def _send_first_message(self, first: str | None) -> None:
        if first is not None and first.strip():
            self._send_text(first)

    async def _print_greeting(self) -> None:
        if self._past is None:
            self._print_lines([style_text(f"{self._talk.agent_name} · {self._talk.run.id}", "dim", on=self._colour)])
        else:
            self._print_lines(format_past_turns(self._past, colour=self._colour))
            if self._past.status.state == "running":
                self._start_task(self._wait_for_answer(await self._talk.find_running_turn()))
        self._print_lines([style_text(_KEY_HELP, "dim", on=self._colour)])

    def _send_text(self, text: str) -> None:
        first, *more = text.splitlines()
        self._print_lines([f"{_PROMPT}{first}", *(f"{_CONTINUATION_PROMPT}{line}" for line in more)])
        self._live.is_over = False
        self._start_task(self._deliver_text(text))

    async def _deliver_text(self, text: str) -> None:
        try:
            turn, new = await self._talk.send_message(text)
        except NoWorkerError as error:
            if not self._talk.has_answer and not self._over.done():
                self._over.set_exception(error)
            self._print_error(error)
        except PerdureError as error:
            self._print_error(error)
        else:
            if new:
                await self._wait_for_answer(turn)

    async def _wait_for_answer(self, turn: Turn) -> None:
        self._live = live = LiveTurn(colour=self._colour)
        watching = asyncio.ensure_future(self._print_live_events(turn, live))
        try:
            response = await self._talk.wait_for_answer(turn)
            # It ends with the turn; the answer does not wait for it.
            await asyncio.wait([watching], timeout=_LAST_EVENTS_SECONDS)
        except PerdureError as error:
            self._print_lines(list(live.flush_partial_line()))
            self._print_error(error)
        else:
            self._print_lines(list(live.flush_partial_line()))
            news = self._talk.take_new_messages(response)  # they count as shown in any case
            if live.has_output:
                self._print_lines([*format_turn_end(response, colour=self._colour), ""])
            else:
                self._print_lines([*format_turn_answer(response, news, colour=self._colour), ""])
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _print_live_events(self, turn: Turn, live: LiveTurn) -> None:
        """Show the turn as it happens, where this client has the store that tells of it."""
        with contextlib.suppress(PerdureError):
            async for event in turn.events():
                if lines := list(live.feed(event)):
                    self._print_lines(lines)
                self._session.app.invalidate()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        if not self._tasks:
            self._interrupted = False
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._doing = ""
        self._session.app.invalidate()
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)  # a fault of ours must not be silent

    async def _interrupt_turn(self) -> None:
        try:
            await self._talk.interrupt()
        except PerdureError as error:
            self._print_error(error)

    async def _poll_turn_activity(self) -> None:
        """Show what the agent is at, while it is at something."""
        while True:
            if self._tasks:
                doing = await self._talk.get_activity()
                self._doing = doing if doing is not None and self._tasks else ""
                self._session.app.invalidate()
            await asyncio.sleep(STATUS_POLL_SECONDS)

    def _build_prompt(self) -> FormattedText:
        """Above it, the line that is being written, and what the agent is at: a toolbar would be there only where a
        terminal tells its cursor's place.
        """
        if not self._tasks:
            return FormattedText([("", _PROMPT)])
        rest = f"{escape_line(self._live.partial_line)}\n" if self._live.partial_line else ""
        keys = "Ctrl-C again leaves" if self._interrupted else "Ctrl-C interrupts"
        doing = [("class:doing", escape_line(self._doing or "…")), ("class:keys", f"  {keys}\n")]
        return FormattedText([("", rest), *doing, ("", _PROMPT)])

    def _build_key_bindings(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _send(event: KeyPressEvent) -> None:
            text = event.current_buffer.text.strip()
            event.current_buffer.reset(append_to_history=bool(text))
            if text:
                self._send_text(text)

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _stop(event: KeyPressEvent) -> None:
            self._handle_ctrl_c(event)

        return keys

    def _handle_ctrl_c(self, event: KeyPressEvent) -> None:
        """Ctrl-C: of what there is, the nearest."""
        # An answer that is there is not interrupted any more, though its turn may be a moment from its end.
        working = bool(self._tasks) and not self._live.is_over
        if working and not self._interrupted:
            self._interrupted = True
            self._start_task(self._interrupt_turn())
        elif working:
            event.app.exit(exception=KeyboardInterrupt)
        elif event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=EOFError)

    def _print_error(self, error: PerdureError) -> None:
        said = [style_text(line, "red", on=self._colour) for line in f"error: {error.message}".splitlines()]
        if error.hint:
            said.append(style_text(error.hint, "dim", on=self._colour))
        self._print_lines([*said, ""])

    def _print_lines(self, lines: Iterator[str] | list[str]) -> None:
        for line in lines:
            print_line(line)


class _Keyboard(Vt100Input):
    """Keys stay keys while something is printed: in the terminal's own mode Enter would begin a line."""

    def cooked_mode(self) -> AbstractContextManager[None]:
        return nullcontext()


def _open_prompt_history(agent: str) -> FileHistory:
    """The lines that were typed to this agent, in a file that only its owner reads."""
    home = current_home().create()
    file = home.history / quote(agent, safe="")
    with home.translate_errors():
        open(file, "a", opener=open_private).close()
    return FileHistory(file)
