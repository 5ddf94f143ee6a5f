"""Wakes callers that wait for events of conversations, by PostgreSQL's notifications and a read that catches up.

A notification is sent after the transaction that wrote the events, never within it: NOTIFY takes a lock of the whole
server at commit. It names the streams that have new events with their last numbers, those of all writes of 20 ms in
one. It may be lost with its process or its connection: so every second the last numbers of all awaited conversations
are read, by one query.

Nudges (``perdure.ports.nudges.Nudges``) have a channel of their own, so that a worker does not get all events.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import StoreError
from .postgres_connection import (
    LIFETIME_SECONDS,
    POSTGRES_FAILURES,
    PostgresAddress,
    bind_statement,
    connect_to_postgres,
    translate_postgres_failure,
)
from .statements import load_statements

SQL = load_statements("postgres")

logger = logging.getLogger("perdure.store")

GATHER_SECONDS = 0.02
"""Least time between two notifications of a process."""
CATCH_UP_SECONDS = 1.0
"""Time between two reads of the last numbers of all awaited conversations."""
CHECK_SECONDS = 30.0
"""Time between two checks of the connection that listens."""
MAX_KNOWN_STREAMS = 10_000
"""Most conversations whose stream and last number are remembered."""
MAX_PAYLOAD_BYTES = 7000
"""PostgreSQL takes 8,000."""
CHANGED_UNKNOWN = "{}"
"""The payload for streams that cannot be named: all waiters read."""

StreamSeqs = Mapping[str, int]
"""The last number in each stream."""
ReadStreams = Callable[[Iterable[str]], Awaitable[Mapping[str, tuple[str, int]]]]
"""Reads, for each conversation with events, the stream that they are in and its last number."""


@dataclass(eq=False, slots=True)
class _EventWaiter:
    context_id: str
    after: int
    latest_seq: asyncio.Future[int]


class EventNotifications:
    """Notifications of one process, over one connection of its own, for one event loop.

    The connection is opened by the first write of events or the first waiter, and listens from the first waiter on.
    """

    def __init__(self, address: PostgresAddress, get_channel: Callable[[], str], read_streams: ReadStreams) -> None:
        self._address = address
        self._get_channel = get_channel
        """Returns the channel; "" as long as there is no store."""
        self._read_streams = read_streams
        self._nudge_watchers: list[Callable[[str], object]] = []
        self._hears_nudges = self._awaits_events = False
        self._waiters: defaultdict[str, set[_EventWaiter]] = defaultdict(set)
        """By the conversation and, where that is another one, the stream of its events."""
        self._streams: dict[str, str] = {}
        """The stream of each conversation that was waited for since this process listens."""
        self._seen: dict[str, int] = {}
        """The last number that is known of each of these streams."""
        self._connection: Any = None
        self._using = asyncio.Lock()
        self._is_listening = False
        self._checked_at = self._connected_at = 0.0
        self._listening: asyncio.Task[None] | None = None
        self._listen_tried = asyncio.Event()
        self._catch_up_now = asyncio.Event()
        self._unsent: dict[str, int] = {}
        self._sender: asyncio.Task[None] | None = None
        self._catcher: asyncio.Task[None] | None = None

    # --- writes of this process

    def notify_write(self, seqs: StreamSeqs) -> None:
        """Note that this process wrote events: wakes its own waiters, and soon those of others."""
        self._wake_waiters(seqs)
        for stream, seq in seqs.items():
            self._unsent[stream] = max(seq, self._unsent.get(stream, 0))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_until_empty())

    async def _send_until_empty(self) -> None:
        try:
            while self._unsent:
                seqs, self._unsent = self._unsent, {}
                await self._send(seqs)
                await asyncio.sleep(GATHER_SECONDS)
        finally:
            self._sender = None

    async def _send(self, seqs: StreamSeqs) -> None:
        channel, payloads = self._get_channel(), build_payloads(seqs)
        notify, _ = bind_statement(SQL.notify, {"channel": channel, "payloads": payloads})
        try:
            async with self._using:
                connection = await self._connect()
                await connection.execute(notify, channel, payloads)
        except (StoreError, *POSTGRES_FAILURES) as error:
            reason = translate_postgres_failure(error, self._address)
            logger.debug("followers of events in other processes are woken late: %s", reason.message)
            self._drop_connection()

    # --- waiting

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        """See :class:`perdure.ports.store.EventLog`."""
        try:
            context_id.encode()
        except UnicodeEncodeError as error:  # the read for all waiters would fail
            raise translate_postgres_failure(error, self._address) from None
        waiter = _EventWaiter(context_id, after, asyncio.get_running_loop().create_future())
        places = {context_id}
        self._waiters[context_id].add(waiter)
        try:
            self._begin_to_listen(events=True)
            await self._listen_tried.wait()
            known_stream = self._streams.get(context_id)
            if known_stream is not None:
                places.add(known_stream)
                self._waiters[known_stream].add(waiter)
            if known_stream is not None and timeout > CATCH_UP_SECONDS:
                # Nothing is read: what was committed since was notified, is on its way, or will be caught up with.
                latest_seq = self._seen[known_stream]
            else:
                latest_seq = await self._look_up(waiter, places)
            if latest_seq > after:
                return latest_seq
            await asyncio.wait([waiter.latest_seq], timeout=timeout)
            return waiter.latest_seq.result() if waiter.latest_seq.done() else 0
        finally:
            self._remove_waiter(waiter, places)

    async def _look_up(self, waiter: _EventWaiter, places: set[str]) -> int:
        """Read the last number. After the registration: events committed before are seen, later ones are notified."""
        while True:
            found = (await self._read_streams([waiter.context_id])).get(waiter.context_id)
            if found is None:
                return 0
            stream, latest_seq = found
            if stream in places:
                break
            places.add(stream)
            self._waiters[stream].add(waiter)
        if self._is_listening:
            if len(self._streams) >= MAX_KNOWN_STREAMS:
                self._forget_streams()
            self._streams[waiter.context_id] = stream
            self._seen[stream] = max(latest_seq, self._seen.get(stream, 0))
        return latest_seq

    def _forget_streams(self) -> None:
        self._streams.clear()
        self._seen.clear()

    def _remove_waiter(self, waiter: _EventWaiter, places: Iterable[str]) -> None:
        for place in places:
            self._waiters[place].discard(waiter)
            if not self._waiters[place]:
                del self._waiters[place]
        if not waiter.latest_seq.cancel() and not waiter.latest_seq.cancelled():
            waiter.latest_seq.exception()  # marks the exception as retrieved, also if the caller stopped waiting

    def _wake_waiters(self, seqs: StreamSeqs) -> None:
        for stream, seq in seqs.items():
            if seq > self._seen.get(stream, seq):
                self._seen[stream] = seq
            for waiter in self._waiters.get(stream, ()):
                if waiter.after < seq and not waiter.latest_seq.done():
                    waiter.latest_seq.set_result(seq)

    # --- nudges

    def watch_nudges(self, on_nudge: Callable[[str], object]) -> None:
        """Call ``on_nudge`` with the id of each run that is nudged."""
        self._nudge_watchers.append(on_nudge)
        self._begin_to_listen()

    def unwatch_nudges(self, on_nudge: Callable[[str], object]) -> None:
        """Do not call ``on_nudge`` any more."""
        with suppress(ValueError):
            self._nudge_watchers.remove(on_nudge)

    def _on_nudge(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        for on_nudge in tuple(self._nudge_watchers):
            on_nudge(payload)

    # --- listening, and catching up

    def _begin_to_listen(self, *, events: bool = False) -> None:
        wants_more = (events and not self._awaits_events) or not (events or self._hears_nudges)
        self._awaits_events |= events
        if self._catcher is None:
            self._catcher = asyncio.create_task(self._catch_up_forever())
        elif wants_more:
            self._catch_up_now.set()

    async def _catch_up_forever(self) -> None:
        """Listen, and read the last numbers of all awaited conversations: at once, and every second."""
        while True:
            if self._listening is None or self._listening.done():
                self._listening = asyncio.create_task(self._listen())
            if not self._listen_tried.is_set():
                # Only for a second, and only once: a server that does not answer must not keep the reads waiting.
                await asyncio.wait([self._listening], timeout=CATCH_UP_SECONDS)
                self._listen_tried.set()
            waiters = {waiter for waiters in self._waiters.values() for waiter in waiters}
            if waiters:
                await self._catch_up(waiters)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._catch_up_now.wait(), CATCH_UP_SECONDS)
            self._catch_up_now.clear()

    async def _listen(self) -> None:
        """Listen, if that is possible: without it, waiters are woken by the reads that catch up.

        A connection that listens is asked now and then whether it is still there: it would not notice by itself.
        """
        now = time.monotonic()
        channel = self._get_channel()
        if self._connection is not None and now - self._connected_at > LIFETIME_SECONDS:
            async with self._using:
                self._drop_connection()
        wanted = (self._awaits_events, bool(self._nudge_watchers))
        heard = (self._is_listening, self._hears_nudges)
        is_complete = all(is_heard or not is_wanted for is_wanted, is_heard in zip(wanted, heard, strict=True))
        if not channel or (is_complete and (not any(heard) or now - self._checked_at < CHECK_SECONDS)):
            return
        try:
            async with self._using:
                connection = await self._connect()
                if is_complete:
                    await connection.execute(SQL.check_connection.render("postgresql", {}))
                if self._awaits_events and not self._is_listening:
                    await connection.add_listener(channel, self._on_notification)
                    self._is_listening = True
                if self._nudge_watchers and not self._hears_nudges:
                    await connection.add_listener(get_nudge_channel(channel), self._on_nudge)
                    self._hears_nudges = True
            self._checked_at = now
        except Exception as error:  # the reads go on
            reason = translate_postgres_failure(error, self._address)
            logger.debug("events of other processes are seen late: %s", reason.message)
            self._drop_connection()

    def _on_notification(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        seqs = parse_payload(payload)
        if seqs:
            self._wake_waiters(seqs)
        else:
            self._catch_up_now.set()

    async def _catch_up(self, waiters: set[_EventWaiter]) -> None:
        try:
            streams = await self._read_streams({waiter.context_id for waiter in waiters})
            self._wake_waiters({context_id: seq for context_id, (_, seq) in streams.items()})
        except Exception as error:  # the waiters get it, and the reads go on
            failure = translate_postgres_failure(error, self._address)
            for waiter in waiters:  # an error for each: a traceback grows wherever an error is raised
                if not waiter.latest_seq.done():
                    waiter.latest_seq.set_exception(type(failure)(failure.message, hint=failure.hint))

    # --- the connection

    async def _connect(self) -> Any:
        """Return the connection; the caller holds ``_using``."""
        if self._connection is None or self._connection.is_closed():
            self._is_listening = self._hears_nudges = False
            self._forget_streams()
            self._connection = await connect_to_postgres(self._address, listen=True)
            self._connected_at = time.monotonic()
            self._connection.add_termination_listener(self._on_termination)
        return self._connection

    def _on_termination(self, connection: Any) -> None:
        if connection is self._connection:
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        self._is_listening = self._hears_nudges = False
        self._forget_streams()
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def close(self, error: StoreError) -> None:
        """Send what is not sent yet and close the connection; callers that still wait get ``error``."""
        for waiter in {waiter for waiters in self._waiters.values() for waiter in waiters}:
            if not waiter.latest_seq.done():
                waiter.latest_seq.set_exception(type(error)(error.message, hint=error.hint))
        tasks = [task for task in (self._sender, self._catcher, self._listening) if task is not None]
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=CATCH_UP_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._catcher = None
        self._drop_connection()


def watch_nudges(
    home: asyncio.AbstractEventLoop,
    get_notifications: Callable[[], EventNotifications],
    on_nudge: Callable[[str], object],
) -> Callable[[], None]:
    """Watch nudges from the running event loop, by the notifications of the event loop ``home``; returns what ends
    it."""
    loop = asyncio.get_running_loop()

    def receive(run_id: str) -> None:
        with suppress(RuntimeError):  # the watcher's loop was closed meanwhile
            loop.call_soon_threadsafe(on_nudge, run_id)

    def run_at_home(work: Callable[[EventNotifications], None]) -> None:
        if home is loop:
            work(get_notifications())
        elif home.is_running():
            home.call_soon_threadsafe(lambda: work(get_notifications()))

    run_at_home(lambda notifications: notifications.watch_nudges(receive))
    return lambda: run_at_home(lambda notifications: notifications.unwatch_nudges(receive))


def get_nudge_channel(channel: str) -> str:
    """Return the channel of nudges beside ``channel``."""
    return f"{channel}_nudge"


def build_payloads(seqs: StreamSeqs) -> list[str]:
    """Build the payloads of notifications that name all of ``seqs``: JSON objects of streams and their last numbers."""
    payloads: list[str] = []
    entries: list[str] = []
    size = 0
    for stream, seq in seqs.items():
        entry = f"{json.dumps(stream, ensure_ascii=False)}:{seq}"
        entry_bytes = len(entry.encode()) + 1
        if entry_bytes > MAX_PAYLOAD_BYTES:
            return [CHANGED_UNKNOWN]
        if size + entry_bytes > MAX_PAYLOAD_BYTES:
            payloads.append("{" + ",".join(entries) + "}")
            entries, size = [], 0
        entries.append(entry)
        size += entry_bytes
    return [*payloads, "{" + ",".join(entries) + "}"]


def parse_payload(payload: str) -> dict[str, int]:
    """Parse the payload of a notification; empty if it names no stream, or was sent by another program."""
    with suppress(ValueError, AttributeError):
        return {stream: seq for stream, seq in json.loads(payload).items() if type(seq) is int}
    return {}
