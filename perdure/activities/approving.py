"""Approvals on the worker's side: which calls of a reply wait for a person, and whether one that runs may.

The same question is asked twice: when the reply is planned, and when the tool is about to run. In between lie minutes
or months, and maybe a deploy: a rule that it brought holds for the calls that are in flight.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..agent import Agent
from ..ports import NextTool, ToolCall
from ..tools import RunContext, Tool
from ..tools.approval import Approval, first_rule, stricter
from ..types.approval import Asks, Decided, arguments_hash
from ..types.background import AsCollect, AsTell
from ..types.duration import seconds
from ..types.elsewhere import After
from ..types.lineage import Lineage
from ..types.messages import ToolCallPart
from ..types.question import AsCallback
from ..types.wire import AsActivity, AsRemote, AsSubagent, Call, Refused, ToolOutput
from .author_loop import AuthorLoop

logger = logging.getLogger("perdure.worker")

POLICY = 60.0
"""Seconds that an approval policy may take; after that a person is asked."""


@dataclass(frozen=True, slots=True)
class Denied:
    """A rule of this agent says that the call does not run."""

    agent: str

    def text(self, name: str) -> str:
        """What the model is told."""
        return f"Denied: a rule of agent {self.agent} does not allow this call of {name}"


class Approving:
    """Asks the agent's rules, then the tool, and then the rules of the agents that it works for: what those deny or
    have asked for holds below them too. Policies of authors run on the author's side."""

    def __init__(self, author: AuthorLoop, find: Callable[[str], Agent | None]) -> None:
        """``find`` gives the agents that this worker serves."""
        self._author, self._find = author, find

    async def plan(self, agent: Agent, call: Call, told: RunContext[Any], lineage: Lineage | None) -> Call:
        """``call``, to wait for a person or refused, where a rule or its tool says so."""
        how = call.disposition
        if not isinstance(how, AsActivity | AsRemote | AsSubagent | AsCollect | AsTell | AsCallback):
            return call
        arguments = call.arguments or {}
        tool = agent.toolbox.get(call.name)
        terms = await self._terms(agent, tool, call.id, call.name, arguments, told)
        terms = self._above(lineage, tool, call.name, arguments, terms)
        if terms is None:
            return call
        if isinstance(terms, Denied):
            return call.model_copy(update={"disposition": Refused(text=terms.text(call.name))})
        asks = Asks(
            hash=arguments_hash(call.id, call.name, arguments),
            expires=None if terms.expires is None else seconds(terms.expires),
            on_expiry=terms.on_expiry,
            separate=terms.separate,
            remind=None if terms.remind is None else seconds(terms.remind),
        )
        if isinstance(how, AsActivity):  # it cannot run inside the model's activity any more
            how = how.model_copy(update={"inline": False})
        return call.model_copy(update={"approval": asks, "disposition": how})

    async def tool(
        self, agent: Agent, tool: Tool | None, call: ToolCall, next: NextTool, told: Callable[[], Awaitable[Any]]
    ) -> ToolOutput:
        """Run ``call``, if it may. A result for the model says why not."""
        task, given = call.input, call.input.approval
        if isinstance(task.side, After):  # it has run
            return await next(call)
        if given is not None and given.hash != arguments_hash(task.call_id, task.name, call.arguments):
            return _refused(call, f"{task.name} was approved with other arguments; it was not run")
        if agent.approvals or task.lineage is not None or (tool is not None and tool.needs_approval):
            refused = await self._again(agent, tool, call, told)
            if refused is not None:
                return _refused(call, refused)
        return _explained(await next(call), given)

    async def _again(
        self, agent: Agent, tool: Tool | None, call: ToolCall, told: Callable[[], Awaitable[Any]]
    ) -> str | None:
        """Why the call may not run as things stand now, if so."""
        task, given = call.input, call.input.approval
        asks = given is None and tool is not None and callable(tool.needs_approval)
        context = await told() if asks else None
        try:
            terms = await self._terms(agent, tool, task.call_id, task.name, call.arguments, context, policy=asks)
        finally:
            if context is not None:
                context.memory.close()
        terms = self._above(task.lineage, tool, task.name, call.arguments, terms)
        if isinstance(terms, Denied):
            return terms.text(task.name)
        if terms is not None and given is None:
            text = f"{task.name} needs a person's approval since it was called; it was not run"
            return f"{text}. Call it again, and somebody is asked."
        return None

    async def _terms(
        self,
        agent: Agent,
        tool: Tool | None,
        call_id: str,
        name: str,
        arguments: Mapping[str, Any],
        told: Any,
        *,
        policy: bool = True,
    ) -> Approval | Denied | None:
        """An ``Approval`` where the call waits for one, or None where it runs, as far as its own agent says."""
        rule = first_rule(agent.approvals, name, _whole(tool, arguments))
        if rule is not None and rule.action != "ask":
            return Denied(agent.name) if rule.action == "deny" else None
        if rule is not None and rule.approval is not None:
            return rule.approval
        asked = tool.needs_approval if tool is not None else False
        if callable(asked):
            part = ToolCallPart(id=call_id, name=name, arguments=dict(arguments))
            asked = await self._policy(agent, asked, part, told) if policy else True
        if isinstance(asked, Approval):
            return asked
        return Approval() if asked or rule is not None else None

    def _above(
        self,
        lineage: Lineage | None,
        tool: Tool | None,
        name: str,
        arguments: Mapping[str, Any],
        terms: Approval | Denied | None,
    ) -> Approval | Denied | None:
        """``terms``, and what the rules of the agents above deny or have asked for; what they allow gives nothing."""
        for one in lineage.above if lineage is not None else ():
            above = self._find(one)
            rule = first_rule(above.approvals, name, _whole(tool, arguments)) if above is not None else None
            if isinstance(terms, Denied) or rule is None or rule.action == "allow":
                continue
            terms = Denied(one) if rule.action == "deny" else stricter(terms, rule.approval or Approval())
        return terms

    async def _policy(self, agent: Agent, policy: Any, part: ToolCallPart, told: Any) -> Any:
        """What the author's policy says. One that fails has a person asked."""
        name = f"approval policy of {part.name}, agent {agent.name}"
        try:
            said = await self._author.run(name, policy, part, told, timeout=POLICY)
        except Exception as error:
            logger.warning("the %s failed, so a person is asked: %s: %s", name, type(error).__name__, error)
            return True
        if said is None or isinstance(said, bool | Approval):
            return said
        logger.warning("the %s returned %r, so a person is asked: it gives True, False or Approval(…)", name, said)
        return True


def _whole(tool: Tool | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``arguments`` with what the function's defaults say of the others: a rule means what the tool is called with."""
    known = tool.parameters.get("properties", {}) if tool is not None and tool.toolset is None else {}
    defaults = {name: schema["default"] for name, schema in known.items() if "default" in schema}
    return {**defaults, **arguments}


def _explained(output: ToolOutput, given: Decided | None) -> ToolOutput:
    """What came of the call; the model is told of arguments that are not its own."""
    if given is None or given.arguments is None or output.content is None or output.status == "aborted":
        return output
    changed = json.dumps(given.arguments, sort_keys=True, ensure_ascii=False)
    said = f"({given.by or 'somebody'} changed the arguments: {changed})\n{output.content}"
    return output.model_copy(update={"content": said})


def _refused(call: ToolCall, text: str) -> ToolOutput:
    return ToolOutput(key=call.key, content=text, is_error=True)
