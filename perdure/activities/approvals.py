"""Approvals on the worker's side: which calls of a reply wait for a person, and whether one that runs may.

The same question is asked twice: when the reply is planned, and when the tool is about to run. In between lie minutes
or months, and maybe a deploy: a rule that it brought holds for the calls that are in flight.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from ..agent.agent import Agent
from ..ports import NextTool, ToolCall
from ..tools import RunContext, Tool
from ..tools.approvals import UNKNOWN, Approval, Seen, first_rule, plain, stricter
from ..types.approvals import Asks, Decided, arguments_hash
from ..types.limits import seconds
from ..types.messages import ToolCallPart
from ..types.subagents import AsCollect, AsTell, Lineage
from ..types.tool_calls import After, AsActivity, AsCallback, AsRemote, AsSubagent, Call, Refused
from ..types.wire import ToolOutput
from .author_loop import AuthorLoop

logger = logging.getLogger("perdure.worker")

POLICY = 60.0
"""Seconds that an approval policy may take; after that a person is asked."""


_COMPOSED = {"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties"}
"""With these a JSON Schema may have more properties than it lists."""


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
        part = ToolCallPart(id=call.id, name=call.name, arguments=arguments)
        terms = await self._terms(agent, agent.toolbox.get(call.name), part, told, lineage)
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
        ruled = bool(agent.approvals or task.lineage is not None or (tool is not None and tool.needs_approval))
        if ruled:
            refused = await self._again(agent, tool, call, told)
            if refused is not None:
                return _refused(call, refused)
        if given is not None or ruled:
            call.refused = functools.partial(self._changed, agent, tool, call, told)
        return _explained(await next(call), given)

    async def _changed(
        self, agent: Agent, tool: Tool | None, call: ToolCall, told: Callable[[], Awaitable[Any]]
    ) -> ToolOutput | None:
        """The refusal of a call that a hook has given other arguments than were approved or ruled on, if so."""
        task, given = call.input, call.input.approval
        how = f"the hook {call.changed_by.name} changed its arguments; it was not run"
        if given is not None and given.standing is None:
            same = given.hash == arguments_hash(task.call_id, task.name, call.arguments)
            return None if same else _refused(call, f"{task.name} was approved with other arguments: {how}")
        terms = await self._now(agent, tool, call, told)
        if isinstance(terms, Denied):
            return _refused(call, f"{terms.text(task.name)}: {how}")
        if terms is not None and (given is None or terms.separate):
            return _refused(call, f"{task.name} needs a person's approval, which these arguments do not have: {how}")
        return None

    async def _again(
        self, agent: Agent, tool: Tool | None, call: ToolCall, told: Callable[[], Awaitable[Any]]
    ) -> str | None:
        """Why the call may not run as things stand now, if so."""
        task = call.input
        terms = await self._now(agent, tool, call, told)
        if isinstance(terms, Denied):
            return terms.text(task.name)
        if terms is not None and task.approval is None:
            text = f"{task.name} needs a person's approval since it was called; it was not run"
            return f"{text}. Call it again to request approval."
        return None

    async def _now(
        self, agent: Agent, tool: Tool | None, call: ToolCall, told: Callable[[], Awaitable[Any]]
    ) -> Approval | Denied | None:
        task, given = call.input, call.input.approval
        asks = given is None and tool is not None and callable(tool.needs_approval)
        context = await told() if asks else None
        part = ToolCallPart(id=task.call_id, name=task.name, arguments=dict(call.arguments))
        try:
            return await self._terms(agent, tool, part, context, task.lineage, policy=asks)
        finally:
            if context is not None:
                context.memory.close()

    async def _terms(
        self,
        agent: Agent,
        tool: Tool | None,
        call: ToolCallPart,
        told: Any,
        lineage: Lineage | None,
        *,
        policy: bool = True,
    ) -> Approval | Denied | None:
        """An ``Approval`` where the call waits for one, or None where it runs."""
        above = [found for one in (lineage.above if lineage is not None else ()) if (found := self._find(one))]
        asked = tool.needs_approval if tool is not None else False
        narrow = {name for one in (agent, *above) for rule in one.approvals for name in rule.arguments}
        seen = await self._seen(tool, call, narrow) if narrow or callable(asked) else Seen(call.arguments)
        terms = await self._own(agent, asked, call, seen, told, policy=policy)
        for one in above:  # what they deny or have asked for holds below them too; what they allow gives nothing
            rule = first_rule(one.approvals, call.name, seen)
            if isinstance(terms, Denied) or rule is None or rule.action == "allow":
                continue
            terms = Denied(one.name) if rule.action == "deny" else stricter(terms, rule.approval or Approval())
        return terms

    async def _own(
        self, agent: Agent, asked: Any, call: ToolCallPart, seen: Seen, told: Any, *, policy: bool
    ) -> Approval | Denied | None:
        """As far as its own agent says. ``asked`` is ``needs_approval`` of the tool."""
        rule = first_rule(agent.approvals, call.name, seen)
        if rule is not None and rule.action != "ask":
            return Denied(agent.name) if rule.action == "deny" else None
        terms = rule.approval if rule is not None else None
        if rule is not None and terms is not None and not rule.doubtful:
            return terms
        if callable(asked):
            given = {
                name: call.arguments.get(name) if of is UNKNOWN else of
                for name, of in seen.arguments.items()
                if of is not UNKNOWN or name in call.arguments or not seen.loose
            }
            part = call.model_copy(update={"arguments": given})
            asked = await self._policy(agent, asked, part, told) if policy else True
        if isinstance(asked, Approval):
            return stricter(terms, asked)
        return terms or (Approval() if asked or rule is not None else None)

    async def _seen(self, tool: Tool | None, call: ToolCallPart, names: Collection[str]) -> Seen:
        """What the tool is called with; where that is not known here, what the model said and the schema's defaults.

        Of the arguments ``names`` those are then unknown which neither gives, and which the tool may have by itself.
        """
        if tool is not None and not tool.read_elsewhere:
            try:
                if tool.validates_by_code:
                    name = f"validators of the tool {tool.name}"
                    values = await self._author.run(name, tool.validate, call.arguments)
                else:
                    values = tool.validate(call.arguments)
            except Exception as error:  # the call will fail, unless a validator of the author's changes its mind
                logger.debug("the arguments of call %s of %s are not valid: %s", call.id, call.name, error)
            else:
                return Seen({name: _plain(value) for name, value in values.items()})
        schema = tool.parameters if tool is not None else {}
        listed = schema.get("properties")
        known: dict[str, Any] = listed if isinstance(listed, dict) else {}
        missing = names if schema.keys() & _COMPOSED else [name for name in names if name in known]
        defaults = {name: of["default"] for name, of in known.items() if isinstance(of, dict) and "default" in of}
        return Seen({**dict.fromkeys(missing, UNKNOWN), **defaults, **call.arguments}, loose=True)

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


def _plain(value: Any) -> Any:
    try:
        return plain(value)
    except Exception:  # of a type of the author's
        return UNKNOWN


def _explained(output: ToolOutput, given: Decided | None) -> ToolOutput:
    """What came of the call; the model is told of arguments that are not its own."""
    if given is None or given.arguments is None or output.content is None or output.status == "aborted":
        return output
    changed = json.dumps(given.arguments, sort_keys=True, ensure_ascii=False)
    said = f"({given.by or 'somebody'} changed the arguments: {changed})\n{output.content}"
    return output.model_copy(update={"content": said})


def _refused(call: ToolCall, text: str) -> ToolOutput:
    return ToolOutput(key=call.key, content=text, is_error=True)
