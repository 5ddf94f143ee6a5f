"""The chat on a terminal. The line stays there while the agent works: what is typed then joins its turn.

Only this module imports prompt_toolkit.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from ...embedded.home import current_home, private
from ...errors import NoWorkerError, PerdureError
from ...printing import print_line, printable, styled
from ..conversation import colours
from ..progress import LOOK
from . import view
from .live import LiveTurn

if TYPE_CHECKING:
    from ...turn import Turn
    from ..show import Shown
    from .talk import Talk

_KEYS = "Enter sends · Alt-Enter or Ctrl-J new line · Ctrl-C interrupts · Ctrl-D leaves"
_PROMPT, _MORE = "> ", "  "
_LAST_EVENTS = 1.0
"""Seconds that the last events of a turn may come behind its answer."""
_STYLE = Style.from_dict({"doing": "ansicyan", "keys": "ansibrightblack"})


class Terminal:
    """One sitting; :meth:`run` ends when the person leaves."""

    def __init__(self, talk: Talk, past: Shown | None) -> None:
        self._talk = talk
        self._past = past
        self._colour = colours()
        self._doing = ""
        self._live = LiveTurn(colour=self._colour)
        self._tasks: set[asyncio.Task[None]] = set()
        """What is being said and awaited."""
        self._interrupted = False
        """Ctrl-C was pressed since the agent began to work."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with what ends the chat from inside."""
        self._session: PromptSession[str] = PromptSession(
            self._prompt,
            history=_history(talk.name),
            multiline=True,
            prompt_continuation=_MORE,
            key_bindings=self._keys(),
            style=_STYLE,
            input=_Keyboard(sys.stdin),
        )

    async def run(self, first: str | None = None) -> int:
        """The exit code: 0, or 130 when it was left in the middle of a reply by a second Ctrl-C.

        Raises ``NoWorkerError`` when nobody takes the first message.
        """
        await self._greet()
        looking = asyncio.ensure_future(self._look())
        # One prompt for the whole sitting: between two the terminal would take Enter for the key that begins a line.
        sitting = asyncio.ensure_future(self._session.prompt_async(pre_run=lambda: self._begin(first)))
        try:
            either: list[asyncio.Future[Any]] = [sitting, self._over]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            (self._over if self._over.done() else sitting).result()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            return 130
        finally:
            left = [looking, sitting, *self._tasks]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        return 0

    def _begin(self, first: str | None) -> None:
        if first is not None and first.strip():
            self._say(first)

    async def _greet(self) -> None:
        if self._past is None:
            self._print([styled(f"{self._talk.name} · {self._talk.run.id}", "dim", on=self._colour)])
        else:
            self._print(view.past(self._past, colour=self._colour))
            if self._past.status.state == "running":
                self._spawn(self._await(await self._talk.under_way()))
        self._print([styled(_KEYS, "dim", on=self._colour)])

    def _say(self, text: str) -> None:
        first, *more = text.splitlines()
        self._print([f"{_PROMPT}{first}", *(f"{_MORE}{line}" for line in more)])
        self._live.over = False
        self._spawn(self._delivered(text))

    async def _delivered(self, text: str) -> None:
        try:
            turn, new = await self._talk.say(text)
        except NoWorkerError as error:
            if not self._talk.answered and not self._over.done():
                self._over.set_exception(error)
            self._error(error)
        except PerdureError as error:
            self._error(error)
        else:
            if new:
                await self._await(turn)

    async def _await(self, turn: Turn) -> None:
        self._live = live = LiveTurn(colour=self._colour)
        watching = asyncio.ensure_future(self._watch(turn, live))
        try:
            response = await self._talk.answer(turn)
            # It ends with the turn; the answer does not wait for it.
            await asyncio.wait([watching], timeout=_LAST_EVENTS)
        except PerdureError as error:
            self._print(list(live.last()))
            self._error(error)
        else:
            self._print(list(live.last()))
            news = self._talk.news(response)  # they count as shown in any case
            if live.shown:
                self._print([*view.end(response, colour=self._colour), ""])
            else:
                self._print([*view.answer(response, news, colour=self._colour), ""])
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, turn: Turn, live: LiveTurn) -> None:
        """Show the turn as it happens, where this client has the store that tells of it."""
        with contextlib.suppress(PerdureError):
            async for event in turn.events():
                if lines := list(live.feed(event)):
                    self._print(lines)
                self._session.app.invalidate()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if not self._tasks:
            self._interrupted = False
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._doing = ""
        self._session.app.invalidate()
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)  # a fault of ours must not be silent

    async def _interrupt(self) -> None:
        try:
            await self._talk.interrupt()
        except PerdureError as error:
            self._error(error)

    async def _look(self) -> None:
        """Show what the agent is at, while it is at something."""
        while True:
            if self._tasks:
                doing = await self._talk.doing()
                self._doing = doing if doing is not None and self._tasks else ""
                self._session.app.invalidate()
            await asyncio.sleep(LOOK)

    def _prompt(self) -> FormattedText:
        """Above it, the line that is being written, and what the agent is at: a toolbar would be there only where a
        terminal tells its cursor's place.
        """
        if not self._tasks:
            return FormattedText([("", _PROMPT)])
        rest = f"{printable(self._live.rest)}\n" if self._live.rest else ""
        keys = "Ctrl-C again leaves" if self._interrupted else "Ctrl-C interrupts"
        doing = [("class:doing", printable(self._doing or "…")), ("class:keys", f"  {keys}\n")]
        return FormattedText([("", rest), *doing, ("", _PROMPT)])

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _send(event: KeyPressEvent) -> None:
            text = event.current_buffer.text.strip()
            event.current_buffer.reset(append_to_history=bool(text))
            if text:
                self._say(text)

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _stop(event: KeyPressEvent) -> None:
            self._stopped(event)

        return keys

    def _stopped(self, event: KeyPressEvent) -> None:
        """Ctrl-C: of what there is, the nearest."""
        # An answer that is there is not interrupted any more, though its turn may be a moment from its end.
        working = bool(self._tasks) and not self._live.over
        if working and not self._interrupted:
            self._interrupted = True
            self._spawn(self._interrupt())
        elif working:
            event.app.exit(exception=KeyboardInterrupt)
        elif event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=EOFError)

    def _error(self, error: PerdureError) -> None:
        said = [styled(line, "red", on=self._colour) for line in f"error: {error.message}".splitlines()]
        if error.hint:
            said.append(styled(error.hint, "dim", on=self._colour))
        self._print([*said, ""])

    def _print(self, lines: Iterator[str] | list[str]) -> None:
        for line in lines:
            print_line(line)


class _Keyboard(Vt100Input):
    """Keys stay keys while something is printed: in the terminal's own mode Enter would begin a line."""

    def cooked_mode(self) -> AbstractContextManager[None]:
        return nullcontext()


def _history(agent: str) -> FileHistory:
    """The lines that were typed to this agent, in a file that only its owner reads."""
    home = current_home().create()
    file = home.history / quote(agent, safe="")
    with home.guard():
        open(file, "a", opener=private).close()
    return FileHistory(file)
