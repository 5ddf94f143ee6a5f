"""Hooks: a guard that vetoes a tool call, a result cut short, secrets kept out, tokens counted, and an audit log."""

import asyncio
from typing import Any

from perdure import Agent, ToolContext, Veto, hook, local, tool
from perdure.contrib.hooks import TokenCollector, audit_log, check_audit_log, redact
from perdure.types.messages import ToolResultPart


@tool
async def read_file(path: str) -> str:
    """Read a file."""
    return f"{path}: " + "0123456789" * 100


@hook("before_tool_call")
def guard(arguments: dict[str, Any], ctx: ToolContext) -> Veto | None:  # the worker runs it, never the workflow
    if arguments["path"].startswith("/etc"):
        return Veto(f"{ctx.user} may not read {arguments['path']}")  # the model is told, and goes on
    return None


@hook("after_tool_call")
async def shorten(result: ToolResultPart) -> str | None:
    return None if len(result.content) < 60 else result.content[:50] + "… (cut)"


tokens = TokenCollector()
reader = Agent(
    "reader",
    "openai:gpt-5-mini",
    tools=[read_file],
    hooks=[redact(), guard, shorten, tokens, audit_log("audit.jsonl")],  # in this order, before and after each call
)


async def main() -> None:
    async with local(agents=[reader]) as client:
        message = "Read /etc/passwd and notes.txt. My key is sk-abcdefghijklmnopqrst."
        run = await client.start(reader, message, user="ana")
        response = await run.result()
        for result in (part for said in response.messages for part in said.tool_results):
            print(result.content)
        print(response.content)
        counted = await tokens.of(client.memory, run.id)
        print(f"{counted['calls']} model calls; {check_audit_log('audit.jsonl')} lines in the audit log")


asyncio.run(main())
