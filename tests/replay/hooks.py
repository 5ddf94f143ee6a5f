"""Kinds of runs that hooks make: vetoed, changed, ended by a hook or a tool."""

from __future__ import annotations

from typing import Any

from perdure import Abort, Agent, Run, Veto, hook, tool
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import Message
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.engine import Engine
from tests.support.scripts import Gate


async def _run(engine: Engine, agent: Agent, message: str = "Go.") -> Run:
    async with engine.served(agent) as client:
        run = await client.start("recorded", message)
        await _end(run)
    return run


@scenario
async def vetoed_by_a_hook(engine: Engine) -> Run:
    """A tool call first, then the model itself."""

    @hook("before_tool_call")
    def guard(name: str) -> Any:
        return Veto("not today") if name == "add" else None

    @hook("before_llm_call")
    def closed(iteration: int) -> Any:
        return Veto("We are closed.") if iteration == 3 else None

    replies = [[call("add", a=1, b=1), call("double", n=1)], call("add", a=1, b=1)]
    return await _run(engine, Agent("recorded", ScriptedProvider(replies), tools=TOOLS, hooks=[guard, closed]))


@scenario
async def changed_by_hooks(engine: Engine) -> Run:
    @hook("on_user_message")
    def mask(message: Message) -> str:
        return message.text.replace("secret", "***")

    @hook("after_llm_call")
    def other(reply: Message) -> Any:
        return None if reply.tool_calls else f"{reply.text} Really."

    @hook("after_tool_call")
    def shout(result: Any) -> str:
        return f"{result.content}!"

    @hook("on_finish")
    def brief(content: str) -> str:
        return content.upper()

    hooks = [mask, other, shout, brief]
    replies = [call("add", a=1, b=1), "Done."]
    return await _run(engine, Agent("recorded", ScriptedProvider(replies), tools=TOOLS, hooks=hooks), "A secret.")


@scenario
async def aborted_by_a_tool(engine: Engine) -> Run:
    """While another call is under way, which is let end."""
    gate = Gate()

    @tool
    async def slow() -> str:
        """Take long."""
        await gate()
        return "slowly"

    @tool
    async def stop() -> str:
        """Stop."""
        gate.open()
        raise Abort("enough")

    return await _run(engine, Agent("recorded", ScriptedProvider([[call("slow"), call("stop")]]), tools=[slow, stop]))


@scenario
async def aborted_by_a_hook_of_an_inline_tool(engine: Engine) -> Run:
    @hook("after_tool_call")
    def enough() -> None:
        raise Abort("enough")

    @tool(inline=True, hooks=[enough])
    def quick() -> str:
        """Be quick."""
        return "quickly"

    replies = [[call("quick"), call("quick"), call("add", a=1, b=1)]]
    return await _run(engine, Agent("recorded", ScriptedProvider(replies), tools=[quick, *TOOLS]))
