"""What a tool says of itself while it runs: from any thread, at any rate; the latest of it is written now and then."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from ..ports import Batch, Events, NewEvent, ToolCall, token
from ..types.events import ToolProgress, event_body
from ..types.wire import INLINE_BYTES
from .batch import batch_of
from .occasion import facts
from .writer import Writer

INTERVAL = 0.1
"""Seconds between two writes, and until the first: a tool that is done by then adds none."""


class Progress:
    """Of one call. Made, and stopped, on the worker's event loop."""

    def __init__(self, store: Events, call: ToolCall) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._latest: NewEvent | None = None
        self._stopped = False
        self._writer = Writer(store, self._take, INTERVAL)

    def say(self, message: str, data: Any) -> None:
        """``data`` is plain JSON. From any thread; what comes after the end of the call is dropped.

        Raises ``ValueError`` for what cannot be stored: here, where the author's code sees it. Written with the
        outcome it would keep that from being recorded.
        """
        task = self._call.input
        event = ToolProgress(**facts(self._call), call_id=task.call_id, name=task.name, message=message, data=data)
        if (size := len(event_body(event))) > INLINE_BYTES:
            raise ValueError(f"progress: it has {size:,} bytes as JSON and may have {INLINE_BYTES:,}")
        with self._lock:
            if self._stopped:
                return
            waits, self._latest = self._latest is not None, NewEvent(event)
            if not waits:  # else whoever is woken for it finds this one
                self._loop.call_soon_threadsafe(self._writer.within, INTERVAL)

    def stop(self) -> list[NewEvent]:
        """Write no more; what was said last and is not written."""
        with self._lock:
            self._stopped = True
            latest, self._latest = self._latest, None
        self._writer.stop()
        return [latest] if latest else []

    def _take(self) -> Batch | None:
        with self._lock:
            latest, self._latest = self._latest, None
        if latest is None:
            return None
        # Of all attempts the same: a late word of a tool whose result the model has been given is dropped.
        return batch_of(self._call, [latest], token(self._call.asked_at))
