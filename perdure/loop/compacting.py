"""When a conversation is compacted: before the next model call, where a reply or a refused call says it is long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types.messages import Message
from ..types.state import Compacting, RunState
from ..types.wire import ModelOutput

SUMMARIES = 3
"""Compactions before one model call; each keeps fewer of the last messages than the one before."""
TIGHTER = 6
"""How often a window is halved."""
SUMMARY_ID = "perdure:summary"
"""Message id of a summary."""


@dataclass(frozen=True, slots=True)
class Compact:
    """Have the conversation up to the head written anew."""

    tighter: int = 0
    """How often that was done since the last reply."""


def compaction(state: RunState) -> Compact | None:
    """The compaction that comes before the next model call, if one does."""
    found = state.compaction
    return Compact(found.done) if found is not None and found.due else None


def after_reply(state: RunState, output: ModelOutput) -> None:
    """The model has answered: what it was asked fits, and may be about to fit no more."""
    if state.compaction is not None or output.compact:
        tighter = state.compaction.tighter if state.compaction else 0
        state.compaction = Compacting(due=bool(output.compact), tighter=tighter)


def apply_compacted(state: RunState, output: ModelOutput) -> None:
    """The conversation was written anew, or nothing could be left out."""
    found = state.compaction or Compacting()
    update = {"due": False, "done": found.done + 1, "behind": _behind(state)}
    state.compaction = found.model_copy(update=update)
    state.op += 1
    state.head, state.store_id = output.head, output.store_id
    state.pinned = output.pinned or state.pinned
    state.usage += output.usage
    if output.cost_usd is not None:
        state.cost_usd = (state.cost_usd or 0.0) + output.cost_usd


def too_long(state: RunState, ways: Sequence[str]) -> bool:
    """A model refused the conversation as too long. Whether it is made shorter, by one of ``ways``, and asked again."""
    found = state.compaction or Compacting()
    if "summarise" in ways and found.done < SUMMARIES:
        update: dict[str, object] = {"due": True}
    elif "window" in ways and found.tighter < TIGHTER:
        update = {"tighter": found.tighter + 1}
    else:
        return False
    state.op += 1
    state.compaction = found.model_copy(update={"behind": _behind(state), **update})
    return True


def tried(state: RunState) -> str:
    """What was done about a conversation that is too long all the same; empty where nothing was."""
    found = state.compaction
    done = []
    if found is not None and found.done:
        done.append(f"it was summed up {_times(found.done)}")
    if found is not None and found.tighter:
        done.append(f"its window was halved {_times(found.tighter)}")
    return " (" + " and ".join(done) + ")" if done else ""


def last(messages: Sequence[Message], keep: int) -> int:
    """Where the ``keep`` last messages begin: a call stays with its results, also with those that are still to come."""
    begin = max(0, len(messages) - keep)
    if begin == len(messages) and messages and messages[-1].tool_calls:
        begin -= 1
    while begin and begin < len(messages) and messages[begin].role == "tool":
        begin -= 1
    return begin


def _behind(state: RunState) -> str:
    """What the next call's messages come behind, for whoever follows: where the conversation ended before it was
    written anew. Empty where only the store knows (a conversation that is opened again)."""
    found = state.compaction
    return found.behind if found is not None and found.behind is not None else state.head or ""


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
