"""The hook stage: hooks around model calls see the whole conversation and run under the journal.

The outcome that a retry finds in the journal was recorded after the hooks, so they do not run again. Outside of them
the iteration makes the request and reads the reply; inside are the limits of a call, which a slow hook does not use up.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from ..agent.spec import AgentSpec
from ..agent.validation import check_model_settings
from ..errors import DefinitionError
from ..hooks import AuthorRunner, Hook, HookArguments, HookEvent, HookSet, Veto, run_hooks, select_hooks
from ..hooks.dispatch import build_hook_error, extract_file_blobs, read_hook_reply, read_hook_request
from ..ports.model import ModelRequest
from ..types.messages import Message, TextPart, Usage, clean_text
from ..types.transcript import Transcript, iter_pieces
from .call import NextRequest, RequestCall


class ModelHookStage:
    """Runs the hooks of the worker, then the agent's around the bare call.

    ``run`` calls an author's function on the author's side.
    """

    def __init__(self, run: AuthorRunner, worker: HookSet | None = None) -> None:
        self._run_author_code = run
        self._worker_hooks = worker

    async def request(self, call: RequestCall, next: NextRequest) -> Message:
        """Around a request. Raises ``HookError``, ``AbortError``."""
        before = self._select_hooks("before_llm_call", call)
        if before and (veto := await self._run_before_hooks(before, call)) is not None:
            return _build_veto_reply(veto)
        reply = await next(call)
        after = self._select_hooks("after_llm_call", call)
        return await self._run_after_hooks(after, call, reply) if after else reply

    def _select_hooks(self, event: HookEvent, call: RequestCall) -> tuple[Hook, ...]:
        return select_hooks(event, self._worker_hooks, call.agent.hooks)

    async def _run_before_hooks(self, hooks: tuple[Hook, ...], call: RequestCall) -> Veto | None:
        """Let hooks change the request. Return the ``Veto`` of a hook that forbids it, else None."""
        agent = call.agent
        given: HookArguments = {"model": agent.model, "iteration": call.input.iteration, "ctx": call.run_context}

        def show(request: ModelRequest) -> None:
            given.update(request=request, messages=tuple(request.messages), tools=tuple(request.tools))

        def take(hook: Hook, returned: Any, given: HookArguments) -> None:
            changed = read_hook_request(hook, returned, given["request"])
            if changed is not given["request"]:
                _check_hook_settings(hook, agent, changed)
                show(_move_request_files_to_blobs(changed))

        # Settings are the agent's own dictionaries: what a hook changes in them in place is for this call alone.
        # Messages become a transcript: a change of a list in place would not be checked.
        settings, options = copy.deepcopy((call.request.settings, call.request.provider_options))
        messages = Transcript(iter_pieces(call.request.messages))
        show(replace(call.request, messages=messages, settings=settings, provider_options=options))
        veto = await run_hooks(self._run_author_code, hooks, given, take)
        call.request = given["request"]
        return veto

    async def _run_after_hooks(self, hooks: tuple[Hook, ...], call: RequestCall, reply: Message) -> Message:
        given: HookArguments = {
            "messages": tuple(call.request.messages),
            "usage": reply.usage,
            "cost_usd": reply.cost_usd,
            "iteration": call.input.iteration,
            "ctx": call.run_context,
            "reply": reply,
            "response": reply,
        }

        def take(hook: Hook, returned: Any, given: HookArguments) -> None:
            changed_reply = read_hook_reply(hook, returned, given["reply"])
            if changed_reply is not given["reply"]:
                changed_reply = changed_reply.model_copy(
                    update={"parts": tuple(call.call_ids.assign_hook_ids(changed_reply.parts))}
                )
                given.update(reply=changed_reply, response=changed_reply)

        await run_hooks(self._run_author_code, hooks, given, take)
        changed: Message = given["reply"]
        return changed


def _build_veto_reply(veto: Veto) -> Message:
    """Build the message that stands in the transcript in the place of the vetoed reply."""
    parts = (TextPart(text=clean_text(str(veto.reason))),)
    return Message(role="assistant", parts=parts, finish_reason="veto", usage=Usage(), cost_usd=0.0)


def _check_hook_settings(hook: Hook, agent: AgentSpec, request: ModelRequest) -> None:
    """Raise ``HookError`` for settings of a hook that the models do not take. An agent's are checked when it is
    defined; a hook's only now."""
    try:
        check_model_settings(agent.chain, request.settings, request.provider_options)
    except DefinitionError as error:
        raise build_hook_error(hook, f"changed the settings: {error.message}", error.hint) from None


def _move_request_files_to_blobs(request: ModelRequest) -> ModelRequest:
    """Return ``request`` with the bytes of files that a hook put into its messages moved into ``files``."""
    messages, blobs = extract_file_blobs(request.messages)
    if not blobs:
        return request
    return replace(request, messages=messages, files={**request.files, **{blob.hash: blob.body for blob in blobs}})
