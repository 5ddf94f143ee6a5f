"""Streams of a run or a turn for a front end: the text of its replies, or its output, while the model writes.

Both read the events of the run, and end as ``result()`` does. :class:`LiveText` and :class:`LiveOutput` are the parts
without I/O.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

from typing_extensions import TypeVar

from .. import events
from ..errors import ParseError
from ..types.interface import FINISH_TOOL, FinishProtocol, OutputT, Response, parse_output
from .tasks import background_task

if TYPE_CHECKING:
    from ..agent.output import OutputType

# ---
# The text of streamed replies, from events to pieces of text for display.


class LiveText:
    """Returns the text to show for each event, so that all text of a reply is shown once.

    A retracted reply is written again by another attempt. While its text is the same, nothing more is shown; where it
    differs, a new line begins with the whole reply, because shown text cannot be taken back. An interrupted or
    abandoned reply is not written again. Text of subagents is not part of the run's text.

    With ``kind="tool_call"`` the text is the arguments of ``__finish__``, as far as they are streamed.
    """

    def __init__(self, kind: Literal["text", "tool_call"] = "text") -> None:
        self.text = ""
        """The text of the current attempt."""
        self._kind = kind
        self._call_index: int | None = None
        """The position of the first call of ``__finish__`` in the reply; a second one is not the answer."""
        self._reply_key: tuple[str | None, int] | None = None
        """The turn and iteration of the current reply."""
        self._shown_text = ""
        """The text of the current reply shown so far, of all attempts."""
        self._lacks_beginning = False
        """Whether following began in the middle of the current attempt."""

    def feed(self, event: events.Event) -> str:
        """Return the text to show for ``event``; "" for nothing."""
        if event.path:
            return ""
        if isinstance(event, events.ModelStarted | events.ModelDelta | events.ModelCompleted):
            reply_key = event.task_id, event.iteration
            if self._reply_key != reply_key:
                self._reply_key = reply_key
                self._shown_text = self.text = ""
                self._call_index, self._lacks_beginning = None, False
        if isinstance(event, events.ModelStarted):
            self.text, self._call_index, self._lacks_beginning = "", None, False
        elif isinstance(event, events.ModelRetracted) and event.reason == "Interrupted":
            self._reply_key = None
        elif isinstance(event, events.ModelDelta) and self._is_shown(event):
            self._lacks_beginning = self._lacks_beginning or event.offset > len(self.text)
            self.text = self.text[: event.offset] + event.text
            return self._take_piece(complete=False)
        elif isinstance(event, events.ModelCompleted):
            self._reply_key = None
            if self._kind == "text":
                self.text = event.text
                return self._take_piece(complete=True)
        return ""

    def _is_shown(self, delta: events.ModelDelta) -> bool:
        if delta.kind == "tool_call" and delta.name == FINISH_TOOL and self._call_index is None:
            self._call_index = delta.index
        return delta.kind == self._kind and (delta.kind == "text" or delta.index == self._call_index)

    def _take_piece(self, *, complete: bool) -> str:
        text, shown = self.text, self._shown_text
        if text.startswith(shown):
            self._shown_text = text
            return text[len(shown) :]
        if shown.startswith(text) and not (complete and text):
            return ""
        if complete and self._lacks_beginning and text.endswith(shown):
            return ""
        self._shown_text = text
        return f"\n{text}"


# ---
# The output of a turn while the model writes it.


@dataclass(frozen=True, slots=True)
class OutputForm:
    """What a client knows of the outputs of a run."""

    output_type: OutputType | None = None
    finish: FinishProtocol | None = None

    @property
    def protocol(self) -> FinishProtocol:
        """How the answer is found in a reply."""
        return self.finish or ("text" if self.output_type is not None and self.output_type.is_text else "tool")

    def read_output(self, response: Response[Any]) -> Any:
        """Return the output of ``response`` as a value of the type, if it is known. Raises ``ParseError``."""
        if self.output_type is None or not response.typed or response.blob is not None:
            return response.output
        return self.output_type.load_value(parse_output(response.content))


def build_output_form(run_id: str, agent: Any, output: Any) -> OutputForm:
    """Build the form of a run of ``agent``, an agent, the name of one, or None; ``output`` is the type that the caller
    gives. Raises ``DefinitionError``."""
    finish = getattr(agent, "finish", None)
    if output is None:
        return OutputForm(getattr(agent, "output_type", None), finish)
    from ..agent.output import OutputType  # here: most clients have no agent's code

    owner = f"agent {agent!r}" if isinstance(agent, str) else f"run {run_id!r}"
    return OutputForm(OutputType(owner, output), finish)


_NO_OUTPUT: Any = object()


class LiveOutput:
    """Returns the partial output for each event, if it has changed.

    Another attempt, and the next reply, begin anew; what an attempt repeats of the one before is not returned again.
    Of an agent of unknown type, the text of its replies is the output until it calls ``__finish__``.
    """

    def __init__(self, form: OutputForm) -> None:
        self._form = form
        self._protocol = "text" if form.output_type is None and form.finish is None else form.protocol
        self._text, self._arguments = LiveText(), LiveText("tool_call")
        self._last_plain = self._last_value = _NO_OUTPUT
        self._task_id: str | None = None
        """The turn of the last reply."""

    def feed(self, event: events.Event) -> list[Any]:
        """Return the new partial output of ``event`` in a list; [] for none."""
        if isinstance(event, events.ModelStarted | events.ModelDelta | events.ModelCompleted) and not event.path:
            if event.task_id != self._task_id:
                self._task_id, self._last_plain, self._last_value = event.task_id, _NO_OUTPUT, _NO_OUTPUT
            if isinstance(event, events.ModelDelta) and event.kind == "tool_call" and event.name == FINISH_TOOL:
                self._protocol = self._form.protocol
        written_text, written_arguments = self._text.feed(event), self._arguments.feed(event)
        if written_arguments and isinstance(event, events.ModelDelta):
            return self._take_plain(event.partial)
        if not written_text or (isinstance(event, events.ModelCompleted) and event.calls):  # with calls: no answer
            return []
        from ..loop.finish import extract_partial_answer  # here: it needs the state of a run

        return self._take_plain(extract_partial_answer(self._protocol, self._text.text))

    def take_value(self, value: Any) -> list[Any]:
        """Return ``value`` in a list; [] if it was returned last."""
        if _is_same(value, self._last_value):
            return []
        self._last_value = value
        return [value]

    def _take_plain(self, plain: Any) -> list[Any]:
        if plain is None or plain is self._last_plain or _is_same(plain, self._last_plain):
            return []
        self._last_plain = plain
        if self._form.output_type is None:
            return self.take_value(plain)
        try:
            return self.take_value(self._form.output_type.load_partial(plain))
        except ParseError:  # more of it has to be written first
            return []


def _is_same(value: Any, other: Any) -> bool:
    try:
        return type(value) is type(other) and bool(value == other)
    except Exception:  # an author's or a library's comparison, for instance of arrays
        return False


# ---
# The streams.


OutputT_co = TypeVar("OutputT_co", default=Any, covariant=True)


class Streamed(Protocol[OutputT_co]):
    """A run or a turn, of which a stream reads."""

    @property
    def output_form(self) -> OutputForm: ...
    async def warn_without_worker(self) -> None: ...
    def events(self, after: int = 0, *, wait: bool = True, children: bool = True) -> AsyncGenerator[events.Event]: ...
    async def result(self) -> Response[OutputT_co]: ...


class StreamReader(Generic[OutputT]):
    """The streams of a run, or of one turn."""

    async def stream(self: Streamed[Any]) -> AsyncGenerator[str]:
        """Yield the text of the replies while the model writes it, from the start of the run or turn until it has
        ended: ``async for text in turn.stream()``. A session ends when it is closed.

        Each further reply begins on a new line, also after one that was interrupted. A reply that is cut off is
        generated again by another attempt: text that repeats it is not yielded again; text that differs begins on a new
        line. Where a worker, the server or the
        store cannot be reached for a while, the stream waits, and loses and repeats nothing. Text of subagents is not
        part of it. Needs the store. Raises as ``result()``, after the last text, and as ``events()``.
        """
        live = LiveText()
        shown_reply: tuple[str | None, int] | None = None
        has_ended = False
        async with _follow(self) as log:
            async for event in log:
                piece = live.feed(event)
                if isinstance(event, events.ModelDelta | events.ModelCompleted) and piece:
                    reply = event.task_id, event.iteration
                    begins = shown_reply is not None and (has_ended or reply != shown_reply)
                    yield f"\n{piece}" if begins else piece
                    shown_reply, has_ended = reply, False
                if isinstance(event, events.ModelCompleted | events.ModelRetracted) and not event.path:
                    has_ended = has_ended or event.type == "model.completed" or event.reason == "Interrupted"
        await self.result()

    async def stream_output(self: Streamed[OutputT]) -> AsyncGenerator[OutputT]:
        """Yield the output so far while the model writes it, and last the validated output, ``Response.output``: None
        where the turn ended without one.

        Each is a whole value in place of the one before: of the agent's output type where the client has the agent, or
        of the type that the handle was made with (``client.run(id, output=Outline)``); else plain JSON. Nothing is
        yielded while the output does not fit its type yet: fields need a default, or a ``TypedDict`` with
        ``total=False``, to be seen before all are written. Another attempt, and the next answer after one that was
        rejected, begin again. A text is yielded as the text of each reply so far; so it is where the type is not
        known, until the model writes a structured answer. Raises as :meth:`stream`, in place of the last value;
        ``ParseError`` if the output does not fit the type.
        """
        live = LiveOutput(self.output_form)
        async with _follow(self) as log:
            async for event in log:
                for value in live.feed(event):
                    yield value
        for value in live.take_value((await self.result()).output):
            yield value


@asynccontextmanager
async def _follow(streamed: Streamed[Any]) -> AsyncGenerator[AsyncGenerator[events.Event]]:
    async with (
        background_task(streamed.warn_without_worker()),
        aclosing(streamed.events(children=False)) as log,
    ):
        yield log
