"""Running hooks: in the order in which they were given, on the author's side, each with what it asks for.

Hooks that follow each other and are of a kind, sync or async, take one way to the author's side together: the way
there and back costs more than most of them do.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..errors import AbortError, DefinitionError, HookError
from ..loop.transcript import sanitize_parts
from ..ports import Blob, ModelRequest
from ..types.messages import FilePart, Message, Part, TextPart, ToolCallPart, clean_text, decode_file_data
from ..types.plain_json import to_plain_json
from .hook import VETOABLE_EVENTS, Hook, Veto

# ---
# Files that a hook puts into a message: their bytes become blobs, as those that a client sends do.


def extract_file_blobs(messages: Iterable[Message]) -> tuple[tuple[Message, ...], list[Blob]]:
    """``messages`` with references in the place of bytes, and the blobs. Raises ``InvalidInputError``."""
    blobs: list[Blob] = []

    def kept(part: Part) -> Part:
        if not isinstance(part, FilePart) or part.data is None:
            return part
        blobs.append(Blob.from_content(decode_file_data(part)))
        return part.model_copy(update={"data": None, "blob": blobs[-1].ref})

    return tuple(
        message.model_copy(update={"parts": tuple(map(kept, message.parts))})
        if any(isinstance(part, FilePart) and part.data is not None for part in message.parts)
        else message
        for message in messages
    ), blobs


# ---
# What an author's code changes inside a message: the worker has each message once, for all who read it.


class ArgumentsSnapshot:
    """The arguments of calls as they were: the one thing in a message that can be changed in place."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._packed_arguments = [
            (part, _marshal_arguments(part.arguments)) for message in messages for part in message.tool_calls
        ]

    def restore(self) -> list[str]:
        """Undo what was changed. Names of the tools whose calls were."""
        changed = []
        for part, before in self._packed_arguments:
            if before is not None and _marshal_arguments(part.arguments) != before:
                changed.append(part.name)
                part.arguments.clear()
                part.arguments.update(marshal.loads(before))  # noqa: S302  # we have written it ourselves
        return changed

    def check_unchanged(self, where: str) -> None:
        """Undo it, and raise ``DefinitionError`` that says what to do instead, to the messages ``where``."""
        if changed := self.restore():
            raise DefinitionError(
                f"the arguments of a call of {changed[0]} were changed inside their message, which nobody would record",
                hint=f"Put another message in its place: {where} = message.model_copy(update={{'parts': …}}).",
            )


def is_same_json(one: Any, other: Any) -> bool:
    """Whether they are the same as plain JSON, where true is not 1, nor 1.0."""
    return bool(one == other) and _marshal_arguments(one) == _marshal_arguments(other)


def _marshal_arguments(arguments: Any) -> Any:
    try:
        return marshal.dumps(arguments, 2)  # the version that depends on the values alone
    except ValueError:  # somebody has put in what is no plain JSON; or it is nested hundreds of times
        return None


logger = logging.getLogger("perdure.worker")

AuthorRunner = Callable[..., Awaitable[Any]]
"""``run(name, fn, *args)``: calls an author's function, sync or async, away from the worker's loop."""
HookArguments = dict[str, Any]
"""What hooks are given, by the names of their parameters."""
ReturnHandler = Callable[[Hook, Any, HookArguments], object]
"""``take(hook, returned, given)``: changes ``given`` for the hooks behind; whether these are not to run any more.
Raises for what ``hook`` may not return."""
UndoHandler = Callable[[HookArguments], object]
"""``undo(given)``: takes back what a hook that failed may have changed in place."""


def _ignore_returned(hook: Hook, returned: Any, given: HookArguments) -> None:
    """Nobody asks what it returned."""


def _undo_nothing(given: HookArguments) -> None:
    """There is nothing that it can change in place."""


async def run_hooks(
    run: AuthorRunner,
    hooks: Sequence[Hook],
    given: HookArguments,
    take: ReturnHandler = _ignore_returned,
    undo: UndoHandler = _undo_nothing,
) -> None:
    """Run ``hooks`` one behind the other; each is given what ``take`` made of the ones before.

    Raises ``HookError`` that names the one which failed, or did not return in time, unless it only logs that; and
    ``AbortError`` of any as it is.
    """
    rest = tuple(hooks)
    inside = _snapshot_arguments(rest, given)
    try:
        while rest:
            other = (place for place, one in enumerate(rest) if one.is_async != rest[0].is_async)
            group = _HookGroup(rest[: next(other, len(rest))], given, take, undo, inside)
            await _run_group_in_time(run, group)
            if group.stopped:
                return
            rest = rest[group.position :]
    finally:
        inside.restore()


def _snapshot_arguments(hooks: Sequence[Hook], given: HookArguments) -> ArgumentsSnapshot:
    """The messages that ``hooks`` see. A step policy has its own: it sees more, and may put others there."""
    return (
        ArgumentsSnapshot(given["messages"])
        if "step" not in given and any(map(_sees_messages, hooks))
        else ArgumentsSnapshot()
    )


def _sees_messages(hook: Hook) -> bool:
    return "messages" in hook.takes or "request" in hook.takes


async def run_hook(run: AuthorRunner, hook: Hook, given: HookArguments) -> Any:
    """What ``hook`` returns; None where it failed and only logs that. Raises as :func:`run_hooks`."""
    returned: list[Any] = []

    def take(_: Hook, value: Any, __: HookArguments) -> None:
        returned.append(value)

    await run_hooks(run, [hook], given, take)
    return returned[0] if returned else None


class _HookGroup:
    """Hooks of one kind on their way. The author's side moves ``at`` and ``began``, ours looks at them."""

    def __init__(
        self,
        hooks: tuple[Hook, ...],
        given: HookArguments,
        take: ReturnHandler,
        undo: UndoHandler,
        inside: ArgumentsSnapshot,
    ) -> None:
        self.hooks = hooks
        self.position = 0
        """The place of the one that runs, or runs next."""
        self.started_at: float | None = None
        """When that began; None while the first waits for a thread, which counts for nothing."""
        self.stopped = False
        """Those behind are not to run."""
        self.abandoned = False
        """One took too long. It may still run somewhere, and counts no longer."""
        self._arguments = given
        self._return_handler = take
        self._undo_handler = undo
        self._snapshot = inside

    def get_remaining_seconds(self) -> float:
        """Seconds that the one that runs may still take. While it waits for the store, none go by."""
        running, now = self.hooks[self.position :], time.monotonic()
        if not running:
            return 1.0
        if self.started_at is not None and getattr(getattr(self._arguments.get("ctx"), "memory", None), "waits", False):
            self.started_at = now
        return (now if self.started_at is None else self.started_at) + running[0].timeout - now

    @property
    def current_hook(self) -> Hook:
        """The one that runs."""
        return self.hooks[self.position]

    async def run_async_hooks(self) -> None:
        """Run them on the author's loop. They are named in its warning of what blocks it."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        for hook in self._iterate_remaining():
            task.set_name(f"hook {hook.name}")
            try:
                self._handle_returned(await self._call_hook(hook))
            except Exception as error:
                self.handle_failure(hook, error)

    def run_sync_hooks(self) -> _PendingAwaitable | None:
        """Run them in a thread; what one of them left to be awaited, if so."""
        for hook in self._iterate_remaining():
            try:
                value = self._call_hook(hook)
                if isinstance(value, Awaitable):  # a partial, a lambda, a decorator around a coroutine function
                    return _PendingAwaitable(value)
                self._handle_returned(value)
            except Exception as error:
                self.handle_failure(hook, error)
        return None

    async def await_returned(self, left: _PendingAwaitable) -> None:
        """Await it on the author's loop."""
        try:
            self._handle_returned(await left.value)
        except Exception as error:
            self.handle_failure(self.current_hook, error)

    def handle_failure(self, hook: Hook, error: Exception) -> None:
        """Raise what is to be raised, or log it: then those behind do not see what it has changed in place."""
        _raise_or_log_failure(hook, error)
        self._snapshot.restore()
        self._undo_handler(self._arguments)

    def _iterate_remaining(self) -> Iterator[Hook]:
        while self.position < len(self.hooks) and not self.stopped and not self.abandoned:
            self.started_at = time.monotonic()
            yield self.current_hook
            self.position += not self.abandoned

    def _call_hook(self, hook: Hook) -> Any:
        return hook.fn(**{name: self._arguments[name] for name in hook.takes})

    def _handle_returned(self, value: Any) -> None:
        if isinstance(value, Veto) and self.current_hook.event not in VETOABLE_EVENTS:
            can = ", ".join(VETOABLE_EVENTS)
            raise HookError(
                f"{_describe_hook(self.current_hook)} returned a Veto, and there is nothing to veto: {can} can"
            )
        if not self.abandoned:
            if _sees_messages(self.current_hook):
                self._snapshot.check_unchanged("messages[i]")
            self.stopped = bool(self._return_handler(self.current_hook, value, self._arguments))


@dataclass(frozen=True, slots=True)
class _PendingAwaitable:
    value: Awaitable[Any]


async def _run_group_in_time(run: AuthorRunner, group: _HookGroup) -> None:
    """Run ``group`` to its end, or until one of it has failed and that is logged."""
    try:
        async with asyncio.timeout(None) as limit:
            with _enforce_hook_timeout(group, limit):
                await _run_group(run, group)
    except TimeoutError:
        group.abandoned = True
        group.handle_failure(
            group.current_hook, TimeoutError(f"it did not return within {group.current_hook.timeout:g} s")
        )
        group.position += 1
    except asyncio.CancelledError:
        group.abandoned = True  # a thread goes on to its end: not to the hooks behind it
        raise


async def _run_group(run: AuthorRunner, group: _HookGroup) -> None:
    name = f"hook {group.current_hook.name}"
    try:
        left = await run(name, group.run_async_hooks if group.current_hook.is_async else group.run_sync_hooks)
        if isinstance(left, _PendingAwaitable):
            await run(name, group.await_returned, left)
            group.position += 1
    except (HookError, AbortError):
        raise
    except Exception as error:  # it was none when it was raised (sys.exit): it ended the task, or the thread's job
        group.handle_failure(group.current_hook, error)
        group.position += 1


@contextmanager
def _enforce_hook_timeout(group: _HookGroup, limit: asyncio.Timeout) -> Iterator[None]:
    """Let ``limit`` expire when the hook that runs has taken its time."""
    clock = asyncio.get_running_loop()
    waiting: list[asyncio.TimerHandle] = []

    def look() -> None:
        left = group.get_remaining_seconds()
        if left <= 0:
            limit.reschedule(clock.time())
        else:  # one behind it may have less time
            waiting[:] = [clock.call_later(min(left, *(one.timeout for one in group.hooks)), look)]

    look()
    try:
        yield
    finally:
        for timer in waiting:
            timer.cancel()


def _raise_or_log_failure(hook: Hook, error: Exception) -> None:
    """Raise what is to be raised, or log it."""
    if isinstance(error, AbortError):
        raise error
    named, why = _describe_hook(hook), f"{type(error).__name__}: {error}"
    if hook.on_error == "log":
        logger.warning("%s failed, and the call goes on: %s", named, why)
        return
    if isinstance(error, HookError) and error.message.startswith(f"{named} "):  # what it returned will not do
        raise error
    raise HookError(f"{named} failed: {why}") from error


def _describe_hook(hook: Hook) -> str:
    return f"the hook {hook.name} ({hook.event})"


# ---
# What hooks return, read: each function gives what is meant, or raises for what the hook may not return.


def read_hook_request(hook: Hook, returned: Any, request: ModelRequest) -> ModelRequest | Veto:
    """What is asked after a ``before_llm_call`` hook. Raises ``HookError``."""
    match returned:
        case None:
            return request
        case Veto():
            return returned
        case ModelRequest():
            if returned.model != request.model:
                raise _build_returned_error(
                    hook, f"changed the model to {returned.model!r}; on_iteration can: step.model = …"
                )
            return replace(returned, messages=_validate_returned_messages(hook, returned.messages))
        case list() | tuple():
            return replace(request, messages=_validate_returned_messages(hook, returned))
        case _:
            raise _build_return_type_error(
                hook, returned, "a ModelRequest (replace(request, …)), a list of messages or Veto"
            )


def read_hook_reply(hook: Hook, returned: Any, reply: Message) -> Message:
    """What the model has said after an ``after_llm_call`` hook; it was paid all the same. Raises ``HookError``."""
    match returned:
        case None:
            return reply
        case str():
            return reply.model_copy(update={"parts": replace_text(reply.parts, returned)})
        case Message(role="assistant"):
            kept = {"usage": reply.usage, "cost_usd": reply.cost_usd, "model": returned.model or reply.model}
            kept["finish_reason"] = returned.finish_reason or reply.finish_reason
            parts = sanitize_parts(returned.parts)
            if any(part.type in ("tool_result", "file") for part in parts):
                raise _build_returned_error(
                    hook, "returned a reply with tool results or files in it, which no model gives"
                )
            return returned.model_copy(update={**kept, "withheld": reply.withheld, "parts": parts})
        case _:
            raise _build_return_type_error(hook, returned, "an assistant message or text")


def read_hook_message(hook: Hook, returned: Any, message: Message) -> Message:
    """What a user has said after an ``on_user_message`` hook: from the same sender. Raises ``HookError``."""
    match returned:
        case None:
            return message
        case Veto(reason=reason):
            return withhold_message(message, reason)
        case str():
            return _copy_user_message(message, replace_text(message.parts, returned))
        case Message(role="user"):
            if not all(part.type in ("text", "file") for part in returned.parts) or not returned.parts:
                raise _build_returned_error(hook, "returned a user's message that does not consist of texts and files")
            return _copy_user_message(message, sanitize_parts(returned.parts))
        case _:
            raise _build_return_type_error(hook, returned, "a user's message, text or Veto")


def read_hook_text(hook: Hook, returned: Any, text: str) -> str:
    """The answer after an ``on_finish`` hook. Raises ``HookError``."""
    if returned is None:
        return text
    if not isinstance(returned, str):
        raise _build_return_type_error(hook, returned, "the answer's text")
    return clean_text(returned)


def read_hook_arguments(hook: Hook, returned: Any, arguments: dict[str, Any]) -> dict[str, Any] | Veto:
    """A call's arguments after a ``before_tool_call`` hook, which may have changed ``arguments`` in place. Raises
    ``HookError``."""
    if isinstance(returned, Veto):
        return returned
    if returned is None or isinstance(returned, dict):
        try:
            plain: dict[str, Any] = to_plain_json(arguments if returned is None else returned)
        except ValueError as error:
            raise _build_returned_error(hook, f"gave arguments that are not plain JSON: {error}") from None
        return arguments if returned is None and plain == arguments else plain
    raise _build_return_type_error(hook, returned, "a dictionary of arguments or Veto")


def replace_text(parts: Sequence[Part], text: str) -> tuple[Part, ...]:
    """``parts`` with ``text`` in the place of all their text: before the calls where they had none."""
    place = next((n for n, part in enumerate(parts) if isinstance(part, TextPart | ToolCallPart)), len(parts))
    others = [[part for part in some if not isinstance(part, TextPart)] for some in (parts[:place], parts[place:])]
    return (*others[0], *((TextPart(text=clean_text(text)),) if text else ()), *others[1])


def withhold_message(message: Message, reason: str) -> Message:
    """``message`` without what it said."""
    return _copy_user_message(message, (TextPart(text=clean_text(f"[withheld: {reason}]")),))


def _copy_user_message(message: Message, parts: tuple[Part, ...]) -> Message:
    return message.model_copy(update={"parts": parts or (TextPart(text="[withheld]"),)})


def _validate_returned_messages(hook: Hook, messages: Any) -> tuple[Message, ...]:
    given = tuple(messages)
    if not given or not all(isinstance(one, Message) for one in given):
        raise _build_returned_error(hook, "returned no messages, or something else among them")
    if any(one.role == "system" for one in given):
        raise _build_returned_error(
            hook, "returned a system message; change request.system: replace(request, system=…)"
        )
    return tuple(map(_sanitise_message, given))


def _sanitise_message(message: Message) -> Message:
    parts = sanitize_parts(message.parts)
    return message if parts == message.parts else message.model_copy(update={"parts": parts})


def _build_return_type_error(hook: Hook, returned: Any, what: str) -> HookError:
    return _build_returned_error(hook, f"returned {returned!r:.100}; it may return None, {what}")


def _build_returned_error(hook: Hook, why: str) -> HookError:
    return HookError(f"the hook {hook.name} ({hook.event}) {why}")
