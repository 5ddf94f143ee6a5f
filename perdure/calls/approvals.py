"""Approvals on the worker's side: which calls of a reply need a person's approval, and whether a call may still run.

The rules are checked twice: when the reply is planned, and when the tool is about to run. Minutes or months may pass
in between, and a deploy: its new rules apply to the calls in flight.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from ..agent.spec import AgentSpec
from ..tools import RunContext, Tool
from ..tools.approvals import UNKNOWN_ARGUMENT, Approval, CallArguments, combine_approvals, find_rule, to_plain_data
from ..types.approvals import ApprovalOutcome, hash_arguments
from ..types.messages import ToolCallPart
from ..types.subagents import CollectCall, Lineage, TellCall
from ..types.summaries import find_amount, render_summary, summarize_call
from ..types.tool_calls import (
    ActivityCall,
    AfterExternalCall,
    BeforeExternalCall,
    Call,
    CallbackCall,
    RefusedCall,
    RemoteCall,
    SubagentCall,
)
from ..types.wire import ToolInput, ToolOutput
from .agents import Agents
from .author_loop import AuthorLoop
from .call import NextTool, ToolCall, build_error_output
from .iteration_hooks import HookRunner

logger = logging.getLogger("perdure.worker")

POLICY_TIMEOUT = 60.0
"""Seconds that an approval policy may take; after that the call needs an approval."""


_COMPOSED_SCHEMA_KEYS = {"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties"}
"""With these a JSON Schema may have more properties than it lists."""


@dataclass(frozen=True, slots=True)
class Denial:
    """A rule of this agent denies the call."""

    agent: str

    def build_text(self, name: str) -> str:
        """Build the text for the model."""
        return f"Denied: a rule of agent {self.agent} does not allow this call of {name}"


class ApprovalGate:
    """Applies the agent's rules, then the tool's, and then the rules of the agents above it: what those deny, or
    require an approval for, applies to their subagents too. Authors' policies run on the author's side."""

    def __init__(self, author: AuthorLoop, find: Callable[[str], AgentSpec | None]) -> None:
        """``find`` returns an agent that this worker serves, by its name, or None."""
        self._author, self._find = author, find

    async def plan_approval(self, agent: AgentSpec, call: Call, ctx: RunContext[Any], lineage: Lineage | None) -> Call:
        """Return ``call``, marked to wait for an approval or refused, if a rule or its tool requires so; with a
        summary, if it waits for a person."""
        disposition = call.disposition
        if not isinstance(
            disposition, ActivityCall | RemoteCall | SubagentCall | CollectCall | TellCall | CallbackCall
        ):
            return call
        if isinstance(disposition, CallbackCall) and disposition.declared:  # its client may refuse to run it
            return call
        arguments = call.arguments or {}
        part = ToolCallPart(id=call.id, name=call.name, arguments=arguments)
        tool = agent.toolbox.get(call.name)
        terms = await self._find_terms(agent, tool, part, ctx, lineage)
        if terms is None:
            return await self._add_summary(call, tool) if isinstance(disposition, CallbackCall) else call
        if isinstance(terms, Denial):
            return call.model_copy(update={"disposition": RefusedCall(text=terms.build_text(call.name))})
        approval = terms.build_terms(call.id, call.name, arguments)
        if isinstance(disposition, ActivityCall):  # it cannot run inside the model's activity any more
            disposition = disposition.model_copy(update={"inline": False})
        planned = call.model_copy(update={"approval": approval, "disposition": disposition})
        return await self._add_summary(planned, tool)

    async def _add_summary(self, call: Call, tool: Tool | None) -> Call:
        """Return ``call`` with its summary, by the arguments as the tool gets them: what has no value of its own there
        has its default."""
        part = ToolCallPart(id=call.id, name=call.name, arguments=call.arguments or {})
        resolved = (await self._resolve_arguments(tool, part, ())).arguments
        given = {
            name: part.arguments.get(name) if value is UNKNOWN_ARGUMENT else value for name, value in resolved.items()
        }
        template = tool.summary if tool is not None else None
        text = summarize_call(call.name, part.arguments) if template is None else render_summary(template, given)
        amount = find_amount(template, tool.parameters if tool is not None else {}, given)
        return call.model_copy(update={"summary": text, "amount": amount})

    async def run_tool(
        self,
        agent: AgentSpec,
        tool: Tool | None,
        call: ToolCall,
        next: NextTool,
        build_context: Callable[[], Awaitable[Any]],
    ) -> ToolOutput:
        """Run ``call``, if it may; else return a result for the model that says why not."""
        task, approval = call.input, call.input.approval
        is_declared = isinstance(task.side, BeforeExternalCall) and task.side.declared
        if is_declared or isinstance(task.side, AfterExternalCall):  # it has run
            return await next(call)
        if approval is not None and approval.hash != hash_arguments(task.call_id, task.name, call.arguments):
            return build_error_output(call, f"{task.name} was approved with other arguments; it was not run")
        ruled = bool(agent.approvals or task.lineage is not None or (tool is not None and tool.needs_approval))
        find_terms = functools.partial(self._find_current_terms, agent, tool, call, build_context)
        if ruled and (reason := _describe_refusal(task, await find_terms())) is not None:
            return build_error_output(call, reason)
        if approval is not None or ruled:
            call.check_arguments = functools.partial(_refuse_changed_arguments, call, find_terms)
        return _add_argument_notice(await next(call), approval)

    async def _find_current_terms(
        self, agent: AgentSpec, tool: Tool | None, call: ToolCall, build_context: Callable[[], Awaitable[Any]]
    ) -> Approval | Denial | None:
        task, approval = call.input, call.input.approval
        runs_policy = approval is None and tool is not None and callable(tool.needs_approval)
        context = await build_context() if runs_policy else None
        part = ToolCallPart(id=task.call_id, name=task.name, arguments=dict(call.arguments))
        try:
            return await self._find_terms(agent, tool, part, context, task.lineage, policy=runs_policy)
        finally:
            if context is not None:
                context.memory.close()

    async def _find_terms(
        self,
        agent: AgentSpec,
        tool: Tool | None,
        call: ToolCallPart,
        ctx: Any,
        lineage: Lineage | None,
        *,
        policy: bool = True,
    ) -> Approval | Denial | None:
        """Return an ``Approval`` if the call needs one, a ``Denial``, or None if it may run."""
        names = lineage.ancestors if lineage is not None else ()
        ancestors = [ancestor for name in names if (ancestor := self._find(name)) is not None]
        needs_approval = tool.needs_approval if tool is not None else False
        in_rules = {name for each in (agent, *ancestors) for rule in each.approvals for name in rule.arguments}
        arguments = CallArguments(call.arguments)
        if in_rules or callable(needs_approval):
            arguments = await self._resolve_arguments(tool, call, in_rules)
        terms = await self._find_own_terms(agent, needs_approval, call, arguments, ctx, policy=policy)
        for ancestor in ancestors:  # their "deny" and "ask" apply to their subagents too; their "allow" grants nothing
            rule = find_rule(ancestor.approvals, call.name, arguments)
            if isinstance(terms, Denial) or rule is None or rule.action == "allow":
                continue
            if rule.action == "deny":
                terms = Denial(ancestor.name)
            else:
                terms = combine_approvals(terms, rule.approval or Approval())
        return terms

    async def _find_own_terms(
        self, agent: AgentSpec, needs_approval: Any, call: ToolCallPart, known: CallArguments, ctx: Any, *, policy: bool
    ) -> Approval | Denial | None:
        """Apply only the rules of the call's own agent. ``needs_approval`` is ``needs_approval`` of the tool."""
        rule = find_rule(agent.approvals, call.name, known)
        if rule is not None and rule.action != "ask":
            return Denial(agent.name) if rule.action == "deny" else None
        terms = rule.approval if rule is not None else None
        if rule is not None and terms is not None and not rule.is_uncertain:
            return terms
        if callable(needs_approval):
            given = {
                name: call.arguments.get(name) if of is UNKNOWN_ARGUMENT else of
                for name, of in known.arguments.items()
                if of is not UNKNOWN_ARGUMENT or name in call.arguments or not known.is_unvalidated
            }
            part = call.model_copy(update={"arguments": given})
            needs_approval = await self._run_policy(agent, needs_approval, part, ctx) if policy else True
        if isinstance(needs_approval, Approval):
            return combine_approvals(terms, needs_approval)
        return terms or (Approval() if needs_approval or rule is not None else None)

    async def _resolve_arguments(self, tool: Tool | None, call: ToolCallPart, names: Collection[str]) -> CallArguments:
        """Return the validated arguments of the call; where they are not known here, the model's arguments and the
        schema's defaults.

        Those of the arguments ``names`` that neither gives, but the tool may have, are then ``UNKNOWN_ARGUMENT``.
        """
        if tool is not None and not tool.read_elsewhere:
            try:
                if tool.validates_by_code:
                    name = f"validators of the tool {tool.name}"
                    values = await self._author.run(name, tool.validate, call.arguments)
                else:
                    values = tool.validate(call.arguments)
            except Exception as error:  # the call will fail, unless an author's validator then decides otherwise
                logger.debug("the arguments of call %s of %s are not valid: %s", call.id, call.name, error)
            else:
                return CallArguments({name: _dump_or_unknown(value) for name, value in values.items()})
        schema = tool.parameters if tool is not None else {}
        listed = schema.get("properties")
        known: dict[str, Any] = listed if isinstance(listed, dict) else {}
        missing = names if schema.keys() & _COMPOSED_SCHEMA_KEYS else [name for name in names if name in known]
        defaults = {
            name: schema_of["default"]
            for name, schema_of in known.items()
            if isinstance(schema_of, dict) and "default" in schema_of
        }
        return CallArguments(
            {**dict.fromkeys(missing, UNKNOWN_ARGUMENT), **defaults, **call.arguments}, is_unvalidated=True
        )

    async def _run_policy(self, agent: AgentSpec, policy: Any, part: ToolCallPart, ctx: Any) -> Any:
        """Return the author's policy's decision; True (an approval is needed) if the policy fails."""
        name = f"approval policy of {part.name}, agent {agent.name}"
        try:
            decision = await self._author.run(name, policy, part, ctx, timeout=POLICY_TIMEOUT)
        except Exception as error:
            logger.warning("the %s failed, so the call waits for approval: %s: %s", name, type(error).__name__, error)
            return True
        if decision is None or isinstance(decision, bool | Approval):
            return decision
        logger.warning(
            "the %s returned %r, so the call waits for approval: it must return True, False or Approval(…)",
            name,
            decision,
        )
        return True


class ApprovalStage:
    """Runs a tool call if the approval rules, which are checked once more, allow it; runs hooks on its question."""

    def __init__(
        self,
        agents: Agents,
        gate: ApprovalGate,
        hooks: HookRunner,
        build_context: Callable[[AgentSpec, ToolCall], Awaitable[RunContext[Any]]],
    ) -> None:
        self._agents = agents
        self._gate = gate
        self._hook_runner = hooks
        self._build_context = build_context

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call."""
        agent = self._agents.get(call.input.agent)
        tool = self._agents.find_tool(agent.name, call.input.name)
        build_context = functools.partial(self._build_context, agent, call)
        output = await self._gate.run_tool(agent, tool, call, next, build_context)
        return await self._hook_runner.run_question_hooks(agent, call, output, build_context)


def _describe_refusal(task: ToolInput, terms: Approval | Denial | None) -> str | None:
    """Return why the call may not run by the present rules; None if it may."""
    if isinstance(terms, Denial):
        return terms.build_text(task.name)
    if terms is not None and task.approval is None:
        text = f"{task.name} needs a person's approval since it was called; it was not run"
        return f"{text}. Call it again to request approval."
    return None


async def _refuse_changed_arguments(
    call: ToolCall, find_terms: Callable[[], Awaitable[Approval | Denial | None]], hook: str
) -> ToolOutput | None:
    """Return the refusal of a call whose arguments, as the hook of that name changed them, are not approved or not
    allowed; None if the call may run."""
    task, approval = call.input, call.input.approval
    reason = f"the hook {hook} changed its arguments; it was not run"
    if approval is not None and approval.standing is None:
        same = approval.hash == hash_arguments(task.call_id, task.name, call.arguments)
        return None if same else build_error_output(call, f"{task.name} was approved with other arguments: {reason}")
    terms = await find_terms()
    if isinstance(terms, Denial):
        return build_error_output(call, f"{terms.build_text(task.name)}: {reason}")
    if terms is not None and (approval is None or terms.separate):
        return build_error_output(
            call, f"{task.name} needs a person's approval, which these arguments do not have: {reason}"
        )
    return None


def _dump_or_unknown(value: Any) -> Any:
    try:
        return to_plain_data(value)
    except Exception:  # an author's type
        return UNKNOWN_ARGUMENT


def _add_argument_notice(output: ToolOutput, approval: ApprovalOutcome | None) -> ToolOutput:
    """Return ``output`` with a notice for the model, if the approver changed the arguments."""
    if approval is None or approval.arguments is None or output.content is None or output.status == "aborted":
        return output
    changed = json.dumps(approval.arguments, sort_keys=True, ensure_ascii=False)
    content = f"({approval.by or 'the approver'} changed the arguments: {changed})\n{output.content}"
    return output.model_copy(update={"content": content})
