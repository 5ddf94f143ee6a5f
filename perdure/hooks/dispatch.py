"""Runs hooks in the order in which they were given, off the worker's event loop, and reads what they return.

Consecutive hooks of one kind, sync or async, are passed to the author's side together: the way there and back costs
more than most hooks do.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..errors import AbortError, DefinitionError, HookError
from ..loop.transcript import sanitize_parts
from ..types.messages import FilePart, Message, Part, TextPart, ToolCallPart, clean_text
from ..types.plain_json import to_plain_json
from ..types.transcript import Transcript
from .hook import VETOABLE_EVENTS, Hook, Veto

if TYPE_CHECKING:
    from ..ports.model import ModelRequest
    from ..ports.store import Blob

logger = logging.getLogger("perdure.worker")

AuthorRunner = Callable[..., Awaitable[Any]]
"""``run(name, fn, *args)``: calls an author's function, sync or async, off the worker's event loop."""
HookArguments = dict[str, Any]
"""The arguments of hooks, by the names of their parameters."""
ReturnHandler = Callable[[Hook, Any, HookArguments], object]
"""``on_return(hook, returned, arguments)``: handles what a hook returned, and may change the arguments of the hooks
after it. Returns true to skip those. It is not called with a ``Veto``. Raises for a value that the hook may not
return."""
FailureHandler = Callable[[HookArguments], object]
"""``on_failure(arguments)``: undoes what a failed hook may have changed in place."""


# ---
# Messages that author code may change: files become blobs, changes in place are undone.


def extract_file_blobs(messages: Iterable[Message]) -> tuple[tuple[Message, ...], list[Blob]]:
    """Replace the bytes of files in ``messages`` by references to blobs. Return the messages and the blobs. Raises
    ``InvalidInputError``."""
    from ..ports.store import move_file_to_blob

    blobs: list[Blob] = []

    def extract(part: Part) -> Part:
        return move_file_to_blob(part, blobs) if isinstance(part, FilePart) else part

    extracted: list[Message] = []
    for message in messages:
        if any(isinstance(part, FilePart) and part.data is not None for part in message.parts):
            message = message.model_copy(update={"parts": tuple(map(extract, message.parts))})
        extracted.append(message)
    return tuple(extracted), blobs


class ArgumentsSnapshot:
    """A copy of the arguments of tool calls, the only part of a message that can be changed in place. The worker has
    each message once, for all its readers."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._packed_arguments = [
            (part, _marshal_arguments(part.arguments)) for message in messages for part in message.tool_calls
        ]

    def restore(self) -> list[str]:
        """Undo changes. Return the names of the tools whose calls were changed."""
        changed = []
        for part, packed in self._packed_arguments:
            if packed is not None and _marshal_arguments(part.arguments) != packed:
                changed.append(part.name)
                part.arguments.clear()
                part.arguments.update(marshal.loads(packed))  # noqa: S302  # we have written it ourselves
        return changed

    def check_unchanged(self, where: str) -> None:
        """Undo changes, and raise ``DefinitionError`` if there were any. ``where``: the message to replace instead."""
        if changed := self.restore():
            reason = f"the arguments of a call of {changed[0]} were changed in place; such a change is not recorded"
            hint = f"Put another message in its place: {where} = message.model_copy(update={{'parts': …}})."
            raise DefinitionError(reason, hint=hint)


def is_same_json(first: Any, second: Any) -> bool:
    """Whether two values are the same plain JSON: true is not 1, and 1 is not 1.0."""
    return bool(first == second) and _marshal_arguments(first) == _marshal_arguments(second)


def _marshal_arguments(arguments: Any) -> Any:
    try:
        return marshal.dumps(arguments, 2)  # the version that depends on the values alone
    except ValueError:  # an author's code put in other values than plain JSON, or it has hundreds of levels
        return None


# ---
# Running hooks.


async def run_hooks(
    run: AuthorRunner,
    hooks: Sequence[Hook],
    arguments: HookArguments,
    on_return: ReturnHandler = lambda *_: None,
    on_failure: FailureHandler = lambda *_: None,
) -> Veto | None:
    """Run ``hooks`` one after the other; each gets the arguments that ``on_return`` made of the earlier results. Return
    the ``Veto`` of a hook, which skips the hooks after it.

    Raises ``HookError`` that names the hook that failed, or did not return in time, unless that is only logged; and
    ``AbortError`` of a hook unchanged.
    """
    # A step policy has a snapshot of its own: it sees more, and may put other messages there.
    shows_messages = "step" not in arguments and any(map(_sees_messages, hooks))
    snapshot = ArgumentsSnapshot(arguments["messages"] if shows_messages else ())
    rest = tuple(hooks)
    try:
        while rest:
            _, same_kind = next(groupby(rest, key=lambda hook: hook.is_async))
            group = _HookGroup(tuple(same_kind), arguments, on_return, on_failure, snapshot)
            await _run_group(run, group)
            if group.stopped:
                return group.veto
            rest = rest[group.position :]
    finally:
        snapshot.restore()
    return None


async def run_observing_hooks(run: AuthorRunner, hooks: Sequence[Hook], arguments: HookArguments) -> None:
    """Run each of ``hooks``, whose failures are only logged. Raises ``AbortError``."""
    for hook in hooks:
        try:
            await run_hooks(run, [hook], arguments)
        except AbortError as abort:
            raise abort.plain() from arguments.get("error")
        except Exception as error:
            logger.warning("%s", error)


def _sees_messages(hook: Hook) -> bool:
    return "messages" in hook.takes or "request" in hook.takes


@dataclass(slots=True, eq=False)
class _HookGroup:
    """Consecutive hooks of one kind. The author's side sets ``position`` and ``started_at``; the worker reads them."""

    hooks: tuple[Hook, ...]
    arguments: HookArguments
    on_return: ReturnHandler
    on_failure: FailureHandler
    snapshot: ArgumentsSnapshot
    position: int = 0
    """Index of the hook that runs, or runs next."""
    started_at: float | None = None
    """When that hook started; None while the first waits for a thread, which does not count."""
    stopped: bool = False
    """The hooks after it are skipped."""
    veto: Veto | None = None
    """Why, if a hook has returned one."""
    abandoned: bool = False
    """A hook took too long. It may still run in a thread; its result is ignored."""
    pending: Awaitable[Any] | None = None
    """An awaitable that a sync hook returned."""

    def get_remaining_seconds(self) -> float:
        """Return the seconds that the running hook has left. Time in which it waits for the store does not count."""
        remaining, now = self.hooks[self.position :], time.monotonic()
        if not remaining:
            return 1.0
        if self.started_at is not None and getattr(getattr(self.arguments.get("ctx"), "memory", None), "waits", False):
            self.started_at = now
        return (now if self.started_at is None else self.started_at) + remaining[0].timeout - now

    @property
    def current_hook(self) -> Hook:
        """The hook that runs."""
        return self.hooks[self.position]

    async def run_async_hooks(self) -> None:
        """Run the hooks on the author's loop. The task has the hook's name, for the warning about what blocks the
        loop."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        for hook in self._iterate_remaining():
            task.set_name(f"hook {hook.name}")
            try:
                self._handle_returned(hook, await self._call_hook(hook))
            except Exception as error:
                self._handle_raised(hook, error)

    def run_sync_hooks(self) -> None:
        """Run the hooks in a thread, up to one that returns an awaitable."""
        for hook in self._iterate_remaining():
            try:
                value = self._call_hook(hook)
                if isinstance(value, Awaitable):  # a partial, a lambda, a decorator around a coroutine function
                    self.pending = value
                    return
                self._handle_returned(hook, value)
            except Exception as error:
                self._handle_raised(hook, error)

    async def await_pending(self) -> None:
        """Await the awaitable on the author's loop."""
        assert self.pending is not None, "checked"
        hook = self.current_hook
        try:
            self._handle_returned(hook, await self.pending)
        except Exception as error:
            self._handle_raised(hook, error)

    def handle_failure(self, hook: Hook, error: Exception) -> None:
        """Raise the error of a hook, or log it and undo what the hook has changed in place."""
        if isinstance(error, AbortError):
            raise error
        name, reason = _describe_hook(hook), f"{type(error).__name__}: {error}"
        if hook.on_error != "log":
            if isinstance(error, HookError) and error.message.startswith(f"{name} "):  # what it returned is invalid
                raise error
            raise HookError(f"{name} failed: {reason}") from error
        logger.warning("%s failed, and the call goes on: %s", name, reason)
        self.snapshot.restore()
        self.on_failure(self.arguments)

    def _iterate_remaining(self) -> Iterator[Hook]:
        while self.position < len(self.hooks) and not self.stopped and not self.abandoned:
            self.started_at = time.monotonic()
            yield self.current_hook
            self.position += not self.abandoned

    def _call_hook(self, hook: Hook) -> Any:
        return hook.fn(**{name: self.arguments[name] for name in hook.takes})

    def _handle_raised(self, hook: Hook, error: Exception) -> None:
        if not self.abandoned:  # else it has failed already, and later hooks may be running
            self.handle_failure(hook, error)

    def _handle_returned(self, hook: Hook, value: Any) -> None:
        if self.abandoned:
            return
        if isinstance(value, Veto) and hook.event not in VETOABLE_EVENTS:
            events = ", ".join(VETOABLE_EVENTS)
            raise build_hook_error(hook, f"returned a Veto, which only hooks on {events} may return")
        if _sees_messages(hook):
            self.snapshot.check_unchanged("messages[i]")
        if isinstance(value, Veto):
            self.veto, self.stopped = value, True
        else:
            self.stopped = bool(self.on_return(hook, value, self.arguments))


async def _run_group(run: AuthorRunner, group: _HookGroup) -> None:
    """Run ``group`` to its end, or until one of its hooks has failed or timed out and that is logged."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def check_deadline() -> None:
        nonlocal timer
        remaining = group.get_remaining_seconds()
        if remaining <= 0:
            limit.reschedule(loop.time())
        else:  # a later hook may have less time
            timer = loop.call_later(min(remaining, *(hook.timeout for hook in group.hooks)), check_deadline)

    name = f"hook {group.current_hook.name}"
    try:
        async with asyncio.timeout(None) as limit:
            check_deadline()
            await run(name, group.run_async_hooks if group.current_hook.is_async else group.run_sync_hooks)
            if group.pending is not None:
                await run(name, group.await_pending)
                group.position += 1
    except (HookError, AbortError):
        raise
    except asyncio.CancelledError:
        group.abandoned = True  # a thread goes on to its end: not to the hooks after it
        raise
    except Exception as error:  # the hook's time is up; or it ended its task, or the thread's job (sys.exit)
        hook = group.current_hook
        group.abandoned = limit.expired()
        reason = f"it did not return within {hook.timeout:g} s"
        group.handle_failure(hook, TimeoutError(reason) if group.abandoned else error)
        group.position += 1
    finally:
        if timer is not None:
            timer.cancel()


def _describe_hook(hook: Hook) -> str:
    return f"the hook {hook.name} ({hook.event})"


# ---
# Reading what hooks return. Each function raises ``HookError`` for a value that the hook may not return.


def read_hook_request(hook: Hook, returned: Any, request: ModelRequest) -> ModelRequest:
    """Return the request after a ``before_llm_call`` hook."""
    from ..ports.model import ModelRequest

    match returned:
        case None:
            return request
        case ModelRequest():
            if returned.model != request.model:
                why = f"changed the model to {returned.model!r}; on_iteration can: step.model = …"
                raise build_hook_error(hook, why)
            return replace(returned, messages=_validate_returned_messages(hook, returned.messages))
        case list() | tuple() | Transcript():
            return replace(request, messages=_validate_returned_messages(hook, returned))
        case _:
            allowed = "a ModelRequest (replace(request, …)), a list of messages or Veto"
            raise build_return_type_error(hook, returned, allowed)


def read_hook_reply(hook: Hook, returned: Any, reply: Message) -> Message:
    """Return the reply after an ``after_llm_call`` hook, with the original usage and cost."""
    match returned:
        case None:
            return reply
        case str():
            return reply.model_copy(update={"parts": replace_text(reply.parts, returned)})
        case Message(role="assistant"):
            facts = {"usage": reply.usage, "cost_usd": reply.cost_usd, "model": returned.model or reply.model}
            facts["finish_reason"] = returned.finish_reason or reply.finish_reason
            parts = sanitize_parts(returned.parts)
            if any(part.type in ("tool_result", "file") for part in parts):
                raise build_hook_error(hook, "returned a reply with tool results or files, which no model gives")
            return returned.model_copy(update={**facts, "withheld": reply.withheld, "parts": parts})
        case _:
            raise build_return_type_error(hook, returned, "an assistant message or text")


def read_hook_message(hook: Hook, returned: Any, message: Message) -> Message:
    """Return a user's message after an ``on_user_message`` hook, with the same sender."""
    match returned:
        case None:
            return message
        case str():
            return _copy_user_message(message, replace_text(message.parts, returned))
        case Message(role="user"):
            if not all(part.type in ("text", "file") for part in returned.parts) or not returned.parts:
                raise build_hook_error(hook, "returned a user's message that does not consist of texts and files")
            return _copy_user_message(message, sanitize_parts(returned.parts))
        case _:
            raise build_return_type_error(hook, returned, "a user's message, text or Veto")


def read_hook_text(hook: Hook, returned: Any, text: str) -> str:
    """Return the answer after an ``on_finish`` hook."""
    if returned is None:
        return text
    if not isinstance(returned, str):
        raise build_return_type_error(hook, returned, "the answer's text")
    return clean_text(returned)


def read_hook_arguments(hook: Hook, returned: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments after a ``before_tool_call`` hook, which may have changed ``arguments`` in place."""
    if returned is not None and not isinstance(returned, dict):
        raise build_return_type_error(hook, returned, "a dictionary of arguments or Veto")
    try:
        plain: dict[str, Any] = to_plain_json(arguments if returned is None else returned)
    except ValueError as error:
        raise build_hook_error(hook, f"gave arguments that are not plain JSON: {error}") from None
    return arguments if returned is None and plain == arguments else plain


def replace_text(parts: Sequence[Part], text: str) -> tuple[Part, ...]:
    """Replace all text in ``parts`` by ``text``; if they have none, put it before the calls."""
    index = next((n for n, part in enumerate(parts) if isinstance(part, TextPart | ToolCallPart)), len(parts))
    texts = [TextPart(text=clean_text(text))] if text else []
    return (*parts[:index], *texts, *(part for part in parts[index:] if not isinstance(part, TextPart)))


def withhold_message(message: Message, reason: str) -> Message:
    """Replace the content of ``message`` by ``reason``."""
    return _copy_user_message(message, (TextPart(text=clean_text(f"[withheld: {reason}]")),))


def _copy_user_message(message: Message, parts: tuple[Part, ...]) -> Message:
    return message.model_copy(update={"parts": parts or (TextPart(text="[withheld]"),)})


def _validate_returned_messages(hook: Hook, messages: Any) -> tuple[Message, ...]:
    returned = tuple(messages)
    if not returned or not all(isinstance(message, Message) for message in returned):
        raise build_hook_error(hook, "returned no messages, or other values among them")
    if any(message.role == "system" for message in returned):
        why = "returned a system message; change request.system: replace(request, system=…)"
        raise build_hook_error(hook, why)
    return tuple(map(_sanitise_message, returned))


def _sanitise_message(message: Message) -> Message:
    parts = sanitize_parts(message.parts)
    return message if parts == message.parts else message.model_copy(update={"parts": parts})


def build_return_type_error(hook: Hook, returned: Any, allowed: str) -> HookError:
    return build_hook_error(hook, f"returned {returned!r:.100}; it may return None, {allowed}")


def build_hook_error(hook: Hook, why: str, hint: str | None = None) -> HookError:
    """Build the error of a hook, whose name stands before ``why``."""
    return HookError(f"{_describe_hook(hook)} {why}", hint=hint)
