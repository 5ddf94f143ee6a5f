"""Hooks around a tool call: they change or veto it before it runs, and change its result afterwards.

The call always has a result: a hook that fails makes it an error that names the hook, and the error of a hook that
fails after the tool says that the tool has acted.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any, Protocol

from ..agent.spec import AgentSpec
from ..context.memory import MemoryWrites
from ..hooks import (
    AuthorRunner,
    Hook,
    HookArguments,
    HookEvent,
    HookSet,
    Veto,
    list_hook_events,
    run_hooks,
    select_hooks,
)
from ..hooks.dispatch import is_same_json, read_hook_arguments, run_observing_hooks
from ..hooks.hook import TOOL_HOOK_EVENTS
from ..ports.store import Blob, move_file_to_blob
from ..tools import ArgumentsError, Tool, ToolContext, read_result
from ..types.messages import ToolResultPart, clean_text
from ..types.tool_calls import AfterExternalCall, ExternalCallHooks
from ..types.wire import ToolOutput
from .call import NextTool, ToolCall, build_error_output

FindTool = Callable[[str, str], Tool | None]
"""``find(agent, tool)``: returns the tool of an agent's call, by their names."""


class ToolContextFactory(Protocol):
    """Makes contexts of tool calls."""

    def __call__(self, call: ToolCall, writes: MemoryWrites) -> ToolContext[Any]:
        """Build a context whose memory writes into ``writes``."""
        ...


class ToolHookStage:
    """Runs the hooks of the worker, then the agent's, then the tool's around the bare call.

    ``run`` calls an author's function on the author's side; ``find_agent``, ``find_tool`` and ``contexts`` return the
    agent, the tool and the context of a call.
    """

    def __init__(
        self,
        run: AuthorRunner,
        find_agent: Callable[[str], AgentSpec],
        find_tool: FindTool,
        contexts: ToolContextFactory,
        worker: HookSet | None = None,
    ) -> None:
        self._run_author_code = run
        self._find_agent = find_agent
        self._find_tool = find_tool
        self._build_context = contexts
        self._worker_hooks = worker

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call."""
        agent = self._find_agent(call.input.agent)
        tool = self._find_tool(call.input.agent, call.input.name)
        sets = self._worker_hooks, agent.hooks, None if tool is None else tool.hooks
        if list_hook_events(*sets).isdisjoint(TOOL_HOOK_EVENTS):
            return await next(call)
        hooks = {event: select_hooks(event, *sets) for event in TOOL_HOOK_EVENTS}
        context = self._build_context(call, call.hook_writes)
        try:
            return await _ToolCallHooks(self._run_author_code, agent, context, hooks).run_call(call, next)
        finally:
            context.memory.close()


class _ToolCallHooks:
    """The hooks of one call. What they write into memory is recorded whatever the outcome of the call.

    A tool runs once more if another call has changed what it read (``MemoryChangedError``). The hooks before it do not
    run again; those after it see each result.
    """

    def __init__(
        self, run: AuthorRunner, agent: AgentSpec, context: ToolContext[Any], hooks: dict[HookEvent, tuple[Hook, ...]]
    ) -> None:
        self._run_author_code = run
        self._agent = agent
        self._context = context
        self._hooks = hooks

    async def run_call(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Run the call between its hooks."""
        name, has_run = call.input.name, isinstance(call.input.side, AfterExternalCall)
        try:
            await self._read_context()
            veto = None if has_run or call.before_hook_writes is not None else await self._run_before_hooks(call)
        except Exception as error:
            what = f"{name} was run, and its result cannot be shown" if has_run else f"{name} was not run"
            return build_error_output(call, error, f"\n({what})")
        if veto is not None:
            return build_error_output(call, clean_text(f"Vetoed: {veto.reason}"))
        if (
            call.changed_by is not None
            and call.check_arguments is not None
            and (refused := await call.check_arguments(call.changed_by.name)) is not None
        ):
            return refused
        call.before_hook_writes = (
            tuple(call.hook_writes) if call.before_hook_writes is None else call.before_hook_writes
        )
        output = self._explain_changed_arguments(call, await next(call))
        if output.status == "asking":  # the call goes on after the answer, and the hooks run around that
            return output
        if output.cleared is not None:  # an external call: the hooks after it run when its result comes back
            return output.model_copy(
                update={"cleared": output.cleared.model_copy(update={"around": self._build_around()})}
            )
        if not output.is_error:
            self._context.memory.absorb(call.recording.memory_writes)
            call.recording.memory_writes.clear()
        failed_after = f"{name} {'failed' if output.is_error else 'was run'}, and its result cannot be shown"
        try:
            await self._run_error_hooks(call)
            return output if output.status == "aborted" else await self._run_after_hooks(call, output)
        except asyncio.CancelledError:
            if call.input.idempotent or has_run:  # only hooks run, which may run again
                raise
            text = f"Cancelled: {failed_after}: the call was cancelled before its hooks had ended"
            return ToolOutput(key=call.key, content=text, is_error=True, status="cancelled")
        except Exception as error:
            return build_error_output(call, error, f"\n({failed_after})")

    def _build_around(self) -> ExternalCallHooks:
        """Build the plan of the hooks that run when the result comes back."""
        return ExternalCallHooks(after=bool(self._hooks["after_tool_call"]), errors=bool(self._hooks["on_error"]))

    async def _read_context(self) -> None:
        """Convert ``ctx.context`` to the agent's type, on the author's side: its validators are the author's code."""
        if self._agent.has_context and any("ctx" in hook.takes for hooks in self._hooks.values() for hook in hooks):
            name = f"context of agent {self._agent.name}"
            self._context.context = await self._run_author_code(name, self._agent.read_context, self._context.context)

    async def _run_before_hooks(self, call: ToolCall) -> Veto | None:
        given = self._build_hook_arguments(call)
        before = copy.deepcopy(given["arguments"])

        def take(hook: Hook, returned: Any, given: HookArguments) -> None:
            nonlocal before
            changed = read_hook_arguments(hook, returned, given["arguments"])
            if returned is not None or not is_same_json(changed, before):  # returned, or changed in place
                given["arguments"], call.changed_by = changed, hook
                before = copy.deepcopy(changed)

        def undo(given: HookArguments) -> None:
            given["arguments"] = copy.deepcopy(before)

        veto = await run_hooks(self._run_author_code, self._hooks["before_tool_call"], given, take, undo)
        if call.changed_by is not None:
            call.arguments = given["arguments"]
        return veto

    def _explain_changed_arguments(self, call: ToolCall, output: ToolOutput) -> ToolOutput:
        """Add to an arguments error that a hook had changed the arguments: the model must not take them for its own."""
        if call.changed_by is None or not isinstance(call.error, ArgumentsError):
            return output
        text = f"{output.content}\n(the hook {call.changed_by.name} had changed the arguments)"
        return output.model_copy(update={"content": text})

    async def _run_error_hooks(self, call: ToolCall) -> None:
        """Run the ``on_error`` hooks. ``AbortError`` ends the run; every other failure of a hook is only logged."""
        if call.error is None or not self._hooks["on_error"]:
            return
        given, side = self._build_hook_arguments(call), call.input.side
        kind = (isinstance(side, AfterExternalCall) and side.error_type) or type(call.error).__name__
        given |= {"error": call.error, "error_type": kind, "attempt": call.attempt}
        await run_observing_hooks(self._run_author_code, self._hooks["on_error"], given)

    async def _run_after_hooks(self, call: ToolCall, output: ToolOutput) -> ToolOutput:
        if not self._hooks["after_tool_call"]:
            return output

        def take(_: Hook, returned: Any, given: HookArguments) -> None:
            if returned is not None:
                given["result"] = merge_returned_result(given["result"], returned, call.recording.blobs)

        task = call.input
        before = ToolResultPart(
            call_id=task.call_id,
            name=task.name,
            content=output.content or "",
            is_error=output.is_error,
            files=output.files,
            given_by=task.side.answered_by if isinstance(task.side, AfterExternalCall) else None,
        )
        given = self._build_hook_arguments(call) | {"result": before}
        await run_hooks(self._run_author_code, self._hooks["after_tool_call"], given, take)
        result: ToolResultPart = given["result"]
        if result is before:
            return output
        update = {"content": result.content, "is_error": result.is_error, "files": result.files}
        return output.model_copy(update=update)

    def _build_hook_arguments(self, call: ToolCall) -> HookArguments:
        task = call.input
        arguments = copy.deepcopy(dict(call.arguments))  # changes in place reach the call only through take() above
        return {"name": task.name, "arguments": arguments, "call_id": task.call_id, "ctx": self._context}


def merge_returned_result(before: ToolResultPart, returned: Any, blobs: list[Blob]) -> ToolResultPart:
    """Merge what a hook returned into the result: a ``ToolResultPart``, or a value as a tool returns it. With such a
    value an error stays an error. The bytes of files are added to ``blobs``."""
    if isinstance(returned, ToolResultPart):
        text, files, is_error = clean_text(returned.content), returned.files, returned.is_error
    else:
        result = read_result(returned)
        text, files, is_error = result.text, tuple(file.part for file in result.files), before.is_error
    update = {"content": text, "files": tuple(move_file_to_blob(file, blobs) for file in files), "is_error": is_error}
    return before.model_copy(update=update)
