"""From a start's JSON to the first state."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ..errors import InvalidInputError
from ..types.interface import Start, UserMessage
from ..types.state import RunState, read_state
from .content import carried, in_part, nearest, place
from .receive import send, unfit, unfit_override
from .sizes import CONTEXT_BYTES, size

CARRIED, CONTINUES = "state", "continues"
"""The keys of the input of an execution that continues an earlier one: its state, and its run id.

A client cannot write such an input: Temporal makes run ids as runs start, so the id of the execution that the new one
continues is known to that execution alone.
"""


def continues(raw: Any, continued_run_id: str | None) -> bool:
    """Whether ``raw`` was written by ``continued_run_id``, the execution that this one continues, as Temporal says."""
    is_carried = isinstance(raw, dict) and raw.keys() == {CARRIED, CONTINUES}
    return is_carried and continued_run_id is not None and raw[CONTINUES] == continued_run_id


def continue_state(raw: dict[str, Any], context_id: str) -> RunState:
    """The state in the input of an execution that continues an earlier one (:func:`continues`).

    Raises ``NewerStateError``, ``InvalidInputError``.
    """
    state = read_state(raw[CARRIED])
    if state.context_id != context_id:
        raise InvalidInputError(f"state: it is that of run {state.context_id!r:.200}")
    return state


def open_state(raw: Any, context_id: str, scope: str, parent_id: str | None = None) -> RunState:
    """The state of a new run. ``parent_id`` is the workflow that started it as its child, as Temporal says.

    Raises ``InvalidInputError`` that names what is wrong with ``raw``.
    """
    start = parse_start(raw)
    is_child = start.parent is not None and start.parent.context_id == parent_id
    parent = start.parent
    if parent is not None and not is_child:  # opened again by a client: what restricts it holds, and no more
        parent = parent.model_copy(update={"background": False})
    state = RunState(
        context_id=context_id,
        agent=start.agent,
        mode=start.mode,
        scope=parent.scope if parent is not None and is_child else scope,
        parent=parent,
        is_child=is_child,
        context=start.context,
        auth_context=start.auth_context,
        auth_ref=start.auth_ref,
        overrides=start.override.model_dump(mode="json", exclude_none=True) if start.override else None,
        max_history_events=start.max_history_events,
        idle_timeout=start.idle_timeout,
        store_id=start.store_id,
        head=start.history,
        resume=start.resume,
    )
    if start.message is not None:
        message = _whole(start.message)
        state.resend = start.resume and message.content is None  # opened again by ``Run.resume``
        send(state, message)
    return state


def carry_over(state: RunState, run_id: str) -> dict[str, Any]:
    """The input of the execution that goes on from ``state`` of ``run_id``; read back by :func:`continue_state`."""
    return {CARRIED: state.model_dump(mode="json", exclude_none=True), CONTINUES: run_id}


def parse_start(raw: Any) -> Start:
    """The start of a run. Raises ``InvalidInputError`` that names the wrong field and what is expected."""
    expected = 'Start it with {"agent": "<name>", "message": "<text>"}.'
    if not isinstance(raw, dict):
        raise InvalidInputError(f"the input must be one JSON object, not {type(raw).__name__}", hint=expected)
    try:
        start = Start.model_validate(raw)
    except ValidationError as error:
        found = error.errors(include_url=False)
        if any(in_part(problem) for problem in found):
            found = nearest(found)
        problems = "; ".join(f"{place(problem) or 'input'}: {problem['msg']}" for problem in found)
        raise InvalidInputError(f"the input does not fit: {problems[:1000]}", hint=expected) from None
    _check_sizes(start)
    return start


def _check_sizes(start: Start) -> None:
    """What came in at one size may go out at three times of it; a run that cannot be carried on must not begin."""
    found = size(start.context)
    if found > CONTEXT_BYTES:
        raise InvalidInputError(
            f"the context has {found:,} bytes as JSON; it may have {CONTEXT_BYTES:,}",
            hint="Every step of the run is told all of it: keep large data elsewhere, and give a tool its key.",
        )
    if why := unfit_override(start.override):
        raise InvalidInputError(why)
    if start.message is not None and (why := unfit(_whole(start.message))):
        raise InvalidInputError(why)


def _whole(message: str | UserMessage) -> UserMessage:
    return UserMessage(content=message) if isinstance(message, str) else carried(message)
