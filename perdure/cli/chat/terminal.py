"""The chat on a terminal. The prompt stays while the agent works: a message that is sent meanwhile joins the turn.

Only this module imports prompt_toolkit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import sys
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from ..._terminal import escape_line, print_line, style_text
from ...embedded.home import current_home, open_private
from ...errors import InvalidInputError, NoWorkerError, PerdureError
from ..events import format_event, format_subagent_path
from ..output import format_call, format_conversation, get_answer_text, print_error, translate_hint
from ..run import STATUS_POLL_SECONDS
from ..show import format_activity
from .requests import AnswerEntry, ApprovalEntry, PendingRequests, is_decision

if TYPE_CHECKING:
    from ...client.turn import Turn
    from ...types.events import CallSaid, Event
    from ...types.interface import Response
    from ...types.messages import ToolCallPart
    from ..show import RunDetails
    from .conversation import ChatSession


class LiveTurn:
    """Turns the events of one turn into lines. The line that is being written is kept apart, for the prompt to show.

    The replies of the first ``shown_iterations`` are left out.
    """

    def __init__(self, shown_iterations: int = 0) -> None:
        from ...client.streams import LiveText

        self._live = LiveText()
        self._shown_iterations = shown_iterations
        self.partial_line = ""
        """The line that is being written."""
        self.has_output = False
        """Whether any of the reply was shown."""
        self.has_replies = False
        """Whether the calls of complete replies were shown."""
        self.has_answer_call = False
        """Whether the last reply has given the answer by a call, so that it was not shown as text."""
        self.asking_runs: set[str] = set()
        """Subagents' runs that have asked for an approval or an answer."""
        self.is_over = False
        """Whether the turn has its answer; a turn that is extended goes on."""

    def feed(self, event: Event) -> Iterator[str]:
        """Complete lines of text, calls, retractions and the progress of tools."""
        if event.path:
            if event.type in ("approval.requested", "question.asked"):
                self.asking_runs.add(event.context_id)
            # The calls only: a subagent's text is for the agent that called it.
            if event.type == "model.completed" and (calls := _list_tool_calls(event.calls)):
                yield from self.flush_partial_line()
                for call in calls:
                    line = f"[{format_subagent_path(event)}] → {format_call(call.name, call.arguments)}"
                    yield style_text(line, "dim")
            return
        self.is_over = event.type == "turn" and event.state != "started"
        if event.type.startswith("model.") and 1 <= getattr(event, "iteration", 0) <= self._shown_iterations:
            self.has_replies = True
            return
        if piece := self._live.feed(event):
            self.has_output = True
            *complete, self.partial_line = (self.partial_line + piece).split("\n")
            yield from (escape_line(line).rstrip() for line in complete)
            yield from self._wrap_partial_line()
        if event.type in ("model.completed", "model.retracted"):
            yield from self.flush_partial_line()
        if event.type == "model.retracted" and event.reason == "Interrupted":
            return  # the end of the turn says so
        if event.type == "model.completed":
            calls = _list_tool_calls(event.calls)
            self.has_replies, self.has_answer_call = True, len(calls) < len(event.calls)
            event = event.model_copy(update={"calls": calls})
        if event.type in ("model.completed", "model.retracted", "tool.progress"):
            yield from format_event(event)

    def flush_partial_line(self) -> Iterator[str]:
        """The line that is being written, as far as it goes."""
        if self.partial_line:
            yield escape_line(self.partial_line).rstrip()
            self.partial_line = ""

    def _wrap_partial_line(self) -> Iterator[str]:
        """The beginning of a line that is longer than the terminal is wide: it does not change any more."""
        columns = max(shutil.get_terminal_size((100, 24)).columns - 1, 20)
        while len(self.partial_line) > columns:
            at = self.partial_line.rfind(" ", 1, columns)
            at = columns if at < 0 else at
            yield escape_line(self.partial_line[:at])
            self.partial_line = self.partial_line[at:].removeprefix(" ")


_Call = TypeVar("_Call", "CallSaid", "ToolCallPart")


def _list_tool_calls(calls: Iterable[_Call]) -> tuple[_Call, ...]:
    """``calls`` without that of ``__finish__``, which is the answer."""
    from ...types.interface import FINISH_TOOL

    return tuple(call for call in calls if call.name != FINISH_TOOL)


_PAST_TURNS = 3
"""Turns that are shown of a conversation that goes on."""
_FINISH_REASON_TEXTS = {
    "interrupted": "interrupted",
    "limit": "it has reached a limit",
    "length": "cut by the output limit",
    "refusal": "the model has declined",
    "veto": "a hook has answered in the model's place",
    "content_filter": "the provider's filter has stopped the reply",
}


def format_past_turns(details: RunDetails) -> Iterator[str]:
    """The last turns, as ``perdure show`` has them."""
    messages = details.messages or []
    user_messages = [index for index, message in enumerate(messages) if message.role == "user"]
    start = user_messages[-_PAST_TURNS] if len(user_messages) > _PAST_TURNS else 0
    if start:
        yield style_text(f"… {start} earlier messages: perdure show {details.status.context_id}", "dim")
    replies = sum(message.role == "assistant" for message in messages[:start])
    yield from format_conversation(messages[start:], since=replies)
    if details.note:
        yield style_text(details.note, "yellow")
    if details.error:
        error = f"its last turn failed: {type(details.error).__name__}: {translate_hint(str(details.error))}"
        yield from (style_text(line, "red") for line in error.splitlines())


def format_turn_answer(response: Response, *, calls: bool = True) -> Iterator[str]:
    """The calls since the user's last message, unless they were shown, and the answer."""
    replies = itertools.takewhile(lambda message: message.role != "user", reversed(response.messages))
    for message in reversed(list(replies) if calls else []):
        for call in _list_tool_calls(message.tool_calls):
            arguments = call.malformed if call.malformed is not None else call.arguments
            yield style_text(f"→ {format_call(call.name, arguments)}", "blue")
    text = get_answer_text(response)
    if response.typed:
        with contextlib.suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    lines = [escape_line(line).rstrip() for line in text.strip().splitlines()]
    ending = format_turn_end(response)
    yield from [*lines, *ending] or [style_text("(an empty reply)", "dim")]


def format_turn_end(response: Response) -> list[str]:
    """Why the turn ended, if not with a complete reply."""
    reason = _FINISH_REASON_TEXTS.get(response.finish_reason)
    return [] if reason is None else [style_text(f"({reason})", "yellow")]


_KEY_HELP = "Enter sends · Alt-Enter or Ctrl-J new line · Ctrl-C interrupts · Ctrl-D leaves"
_PROMPT, _CONTINUATION_PROMPT = "> ", "  "
_LAST_EVENTS_SECONDS = 1.0
"""Seconds that the last events of a turn may come after its answer."""
_PROMPT_STYLE = Style.from_dict({"doing": "ansicyan", "asked": "ansiyellow", "keys": "ansibrightblack"})


class ChatTerminal:
    """The terminal of one chat session; :meth:`run` ends when the user leaves."""

    def __init__(self, session: ChatSession, past: RunDetails | None, server_options: Sequence[str]) -> None:
        """``server_options`` are words for the commands that are printed."""
        self._session = session
        self._past = past
        self._activity = ""
        self._live = LiveTurn()
        self._tasks: set[asyncio.Task[None]] = set()
        """Messages that are being sent, and answers that are awaited."""
        self._requests = PendingRequests(session.run.id, server_options)
        self._interrupted = False
        """Ctrl-C was pressed since the agent began to work."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with an error that ends the chat."""
        self._prompt: PromptSession[str] = PromptSession(
            self._build_prompt,
            history=_open_prompt_history(session.agent_name),
            multiline=True,
            prompt_continuation=_CONTINUATION_PROMPT,
            key_bindings=self._build_key_bindings(),
            style=_PROMPT_STYLE,
            input=_Keyboard(sys.stdin),
        )
        buffer = self._prompt.default_buffer
        buffer.on_text_changed += lambda changed: self._requests.follow_text(changed.text)

    async def run(self, first: str | None = None) -> None:
        """Chat until the user leaves. A second Ctrl-C during a reply raises ``KeyboardInterrupt``.

        Raises ``NoWorkerError`` when no worker takes the first message.
        """
        await self._print_greeting()
        polling = asyncio.ensure_future(self._poll_activity())
        # One prompt for the whole chat: between two prompts the terminal would take Enter as the beginning of a line.
        prompting = asyncio.ensure_future(self._prompt.prompt_async(pre_run=lambda: self._send_first_message(first)))
        try:
            either: list[asyncio.Future[Any]] = [prompting, self._over]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(EOFError):  # Ctrl-D
                (self._over if self._over.done() else prompting).result()
        finally:
            _print_lines(self._requests.format_left())
            left = [polling, prompting, *self._tasks]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _send_first_message(self, first: str | None) -> None:
        if first is not None and first.strip():
            self._send_text(first)

    async def _print_greeting(self) -> None:
        if self._past is None:
            print_line(style_text(f"{self._session.agent_name} · {self._session.run.id}", "dim"))
        else:
            _print_lines(format_past_turns(self._past))
            status = self._past.status
            if (turn := await self._session.find_open_turn(status)) is not None:
                shown = status.iteration if status.state != "running" or status.doing != "nothing" else 0
                self._start_task(self._wait_for_answer(turn, shown if self._past.messages else 0))
            elif status.state == "paused" and (activity := format_activity(status)) is not None:
                print_line(style_text(activity, "yellow"))  # else it is shown while the answer is awaited
        print_line(style_text(_KEY_HELP, "dim"))

    def _send_text(self, text: str) -> None:
        first, *more = text.splitlines()
        _print_lines([f"{_PROMPT}{first}", *(f"{_CONTINUATION_PROMPT}{line}" for line in more)])
        self._live.is_over = False
        self._start_task(self._deliver_text(text))

    async def _deliver_text(self, text: str) -> None:
        try:
            turn, new = await self._session.send_message(text)
        except PerdureError as error:
            if isinstance(error, NoWorkerError) and not self._session.has_answer and not self._over.done():
                self._over.set_exception(error)
            else:
                print_error(error)
        else:
            if new:
                await self._wait_for_answer(turn)

    async def _wait_for_answer(self, turn: Turn, shown_iterations: int = 0) -> None:
        self._live = live = LiveTurn(shown_iterations)
        watching = asyncio.ensure_future(self._print_live_events(turn, live))
        try:
            response = await self._session.wait_for_answer(turn)
            # The events end with the turn; the answer does not wait for them.
            await asyncio.wait([watching], timeout=_LAST_EVENTS_SECONDS)
        except PerdureError as error:
            _print_lines(live.flush_partial_line())
            print_error(error)
        else:
            _print_lines(live.flush_partial_line())
            was_shown = live.has_output and not live.has_answer_call and not response.typed
            answer = format_turn_answer(response, calls=not live.has_replies)
            _print_lines([*(format_turn_end(response) if was_shown else answer), ""])
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _print_live_events(self, turn: Turn, live: LiveTurn) -> None:
        """Show the turn as it happens, if this client has the store of its events."""
        with contextlib.suppress(PerdureError):
            async for event in turn.events():
                _print_lines(live.feed(event))
                self._prompt.app.invalidate()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        if not self._tasks:
            self._interrupted = False
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._activity = ""
        if not self._tasks:
            self._requests.clear()
        self._prompt.app.invalidate()
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)  # a fault in this module must not be silent

    async def _decide(self, entry: ApprovalEntry | AnswerEntry) -> None:
        self._requests.set_decided(entry.request, True)
        try:
            decided = await self._session.decide(entry)
        except PerdureError as error:
            self._requests.set_decided(entry.request, False)
            print_error(error)
        else:
            self._requests.confirm_decided(entry.request)
            print_line(self._requests.format_decided(entry.request, decided))

    async def _interrupt_turn(self) -> None:
        try:
            await self._session.run.interrupt()
        except PerdureError as error:
            print_error(error)

    async def _poll_activity(self) -> None:
        """Show the run's activity while messages are sent or answers awaited."""
        while True:
            if self._tasks:
                activity = None
                with contextlib.suppress(PerdureError):
                    status, waiting, decided = await self._session.read_requests(sorted(self._live.asking_runs))
                    activity = format_activity(status)
                    # Where no worker answers, what waits is known only if Temporal's list has it.
                    if self._tasks and (status.doing != "nothing" or status.approvals):
                        _print_lines(self._requests.update(waiting, decided))
                self._activity = activity if activity is not None and self._tasks else ""
                self._prompt.app.invalidate()
            await asyncio.sleep(STATUS_POLL_SECONDS)

    def _build_prompt(self) -> FormattedText:
        """The prompt, and above it the line that is being written and the activity.

        A toolbar would be shown only on terminals that report the position of their cursor.
        """
        request = self._requests.format_prompt()
        if not self._tasks:
            return FormattedText([("", _PROMPT)])
        rest = f"{escape_line(self._live.partial_line)}\n" if self._live.partial_line else ""
        keys = "Ctrl-C again leaves" if self._interrupted else "Ctrl-C interrupts"
        asked = ("class:doing", escape_line(self._activity or "…")) if request is None else ("class:asked", request)
        activity = [asked, ("class:keys", f"  {keys}\n")]
        return FormattedText([("", rest), *activity, ("", _PROMPT)])

    def _build_key_bindings(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _send(event: KeyPressEvent) -> None:
            self._read_line(event.current_buffer)

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _stop(event: KeyPressEvent) -> None:
            self._handle_ctrl_c(event)

        return keys

    def _read_line(self, line: Buffer) -> None:
        text = line.text.strip()
        try:
            entry = self._requests.read_line(text) if text else ""
        except InvalidInputError as error:  # an answer stays, to be corrected
            print_error(error)
            if is_decision(text):
                self._empty_line(line)
            return
        self._empty_line(line, append_to_history=isinstance(entry, str) and bool(text))
        if not isinstance(entry, str):
            self._start_task(self._decide(entry))
        elif entry:
            self._send_text(entry)

    def _empty_line(self, line: Buffer, *, append_to_history: bool = False) -> None:
        line.reset(append_to_history=append_to_history)
        self._requests.follow_text("")

    def _handle_ctrl_c(self, event: KeyPressEvent) -> None:
        """Ctrl-C interrupts the reply, or else leaves during it, or else clears the line, or else leaves."""
        # Once the answer is there it is not interrupted any more, though its turn may not have ended yet.
        working = bool(self._tasks) and not self._live.is_over
        if working and not self._interrupted:
            self._interrupted = True
            self._start_task(self._interrupt_turn())
        elif working:
            event.app.exit(exception=KeyboardInterrupt)
        elif event.current_buffer.text:
            self._empty_line(event.current_buffer)
        else:
            event.app.exit(exception=EOFError)


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print_line(line)


class _Keyboard(Vt100Input):
    """Stays in raw mode while lines are printed: in the terminal's own mode Enter would begin a line."""

    def cooked_mode(self) -> AbstractContextManager[None]:
        return nullcontext()


def _open_prompt_history(agent: str) -> FileHistory:
    """The lines typed to this agent, in a file that only its owner can read."""
    home = current_home().create()
    file = home.history / quote(agent, safe="")
    with home.translate_errors():
        open(file, "a", opener=open_private).close()
    return FileHistory(file)
