"""Whether a call is to stop, and who says so: Temporal of an activity, or the task that runs it in process."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Protocol

from temporalio import activity


class Cancellation(Protocol):
    """Of the call in which it is made."""

    def requested(self) -> bool:
        """Whether nobody waits for the call any more. From any thread."""
        ...

    def by_run(self) -> bool:
        """Of a call that was cancelled: whether the run did it. Else it is the worker that stops."""
        ...


class ActivityCancellation:
    """Of the Temporal activity in which it is made."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()

    def requested(self) -> bool:
        """See :class:`Cancellation`. A context can be entered once at a time, so each look takes a copy."""
        return self._context.copy().run(activity.is_cancelled)

    def by_run(self) -> bool:
        """See :class:`Cancellation`."""
        details = activity.cancellation_details()
        return details is not None and details.cancel_requested


class TaskCancellation:
    """Of the task in which it is made; only a run cancels it."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()

    def requested(self) -> bool:
        """See :class:`Cancellation`."""
        return self._task is not None and self._task.cancelling() > 0

    def by_run(self) -> bool:
        """See :class:`Cancellation`."""
        return True


def cancellation() -> Cancellation:
    """Of the present call, wherever it runs."""
    return ActivityCancellation() if activity.in_activity() else TaskCancellation()
