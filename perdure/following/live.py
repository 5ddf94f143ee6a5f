"""The text of replies as it comes, for a person: from events to pieces of text."""

from __future__ import annotations

from ..types.events import Event, ModelCompleted, ModelDelta, ModelRetracted, ModelStarted


class LiveText:
    """Says what to show of each event, so that everything that a reply says is shown, and once.

    A reply that is retracted is written again by another attempt. As far as that says the same, nothing more is shown;
    where it goes another way, a new line begins, and with it the whole reply: what was shown cannot be unsaid. One that
    is interrupted, or given up, is not written again. What subagents say is not said by the run.
    """

    def __init__(self) -> None:
        self.reply = ""
        """The last one that is whole."""
        self._of: tuple[str | None, int] | None = None
        """The turn and iteration of the present reply."""
        self._shown = ""
        """Of the present reply, by whichever attempt."""
        self._said = ""
        """By the present attempt."""
        self.restarted = False
        """Whether the last piece began a reply anew."""

    def feed(self, event: Event) -> str:
        """What to show now, "" for nothing."""
        self.restarted = False
        if event.path:
            return ""
        if isinstance(event, ModelStarted | ModelDelta | ModelCompleted) and self._of != (
            event.task_id,
            event.iteration,
        ):
            self._of = event.task_id, event.iteration
            self._shown = self._said = ""
        if isinstance(event, ModelStarted):
            self._said = ""
        elif isinstance(event, ModelRetracted) and event.reason == "Interrupted":
            self._of = None
        elif isinstance(event, ModelDelta) and event.kind == "text":
            # Someone who comes in the middle of a reply has not seen what stands before.
            self._said = self._said[: event.offset] + event.text
            return self._piece()
        elif isinstance(event, ModelCompleted):
            self._said = self.reply = event.text
            piece = self._piece(whole=True)
            self._of = None
            return piece
        return ""

    def _piece(self, *, whole: bool = False) -> str:
        said, shown = self._said, self._shown
        if said.startswith(shown):
            self._shown = said
            return said[len(shown) :]
        if shown.startswith(said) and not whole:
            return ""
        if whole and shown and said.endswith(shown):  # it was followed from the middle on
            return ""
        self._shown, self.restarted = said, True
        return f"\n{said}"
