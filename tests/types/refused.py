"""Programs with errors that type checkers find. `make types` checks this file; nothing runs it.

``# E: arg-type, reportArgumentType`` is a line's error: its code under mypy, and its rule under basedpyright. ``-`` is
a checker that does not find it: then it is found where the agent is defined (tests/unit/agent/test_function_types.py).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from perdure import Agent, AgentSpec, Client, Response, Run, RunContext, ToolContext, hook, tool
from perdure.testing import finish, scripted
from perdure.workflow import run_agent

MODEL = "openai:gpt-5"


class User(BaseModel):
    name: str


class Admin(User):
    level: int


class Other(BaseModel):
    size: int


class Answer(BaseModel):
    text: str


@tool
def first(ctx: ToolContext[Other], x: int) -> str:
    return ""


@tool(timeout=30)
async def last(x: int, y: str, ctx: ToolContext[Other]) -> str:
    return ""


@tool
def fourth(x: int, y: str, z: str, ctx: RunContext[Other]) -> str:
    return ""


@tool
def by_name(x: int, *, ctx: RunContext[Other]) -> str:
    return ""


@tool
def of_admin(ctx: ToolContext[Admin]) -> str:
    return ""


@tool
def with_any(fields: dict[str, Any], ctx: ToolContext[Other]) -> str:
    return ""


@tool
def fine(ctx: ToolContext[User]) -> str:
    return ""


def no_tool(ctx: ToolContext[Other]) -> str:
    return ""


@hook("before_tool_call")
def before(name: str, ctx: ToolContext[Other]) -> None: ...


@hook("after_llm_call", timeout=5)
async def after(ctx: RunContext[Other]) -> None: ...


@hook("before_tool_call")
def hook_with_any(arguments: dict[str, Any], ctx: ToolContext[Other]) -> None: ...


def instructions(ctx: RunContext[Other]) -> str:
    return ""


def check_other(output: Other) -> None: ...


def check_in_other(output: Answer, ctx: RunContext[Other]) -> None: ...


def functions_of_another_context() -> None:
    Agent("a", MODEL, context=User, tools=[first])  # E: misc, reportCallIssue
    Agent("a", MODEL, context=User, tools=[fine, last])  # E: list-item, reportCallIssue
    Agent("a", MODEL, context=User, tools=[fine, fourth])  # E: list-item, reportCallIssue
    Agent("a", MODEL, context=User, tools=[of_admin])  # E: misc, reportCallIssue
    Agent("a", MODEL, context=User, output=Answer, tools=[first])  # E: misc, reportCallIssue
    Agent("a", MODEL, context=User, output=Answer | None, tools=[first])  # E: misc, reportCallIssue
    Agent("a", MODEL, context=User, hooks=[before])  # E: misc, reportCallIssue
    Agent("a", MODEL, context=User, output=Answer, hooks=[after])  # E: misc, reportCallIssue
    Agent("a", MODEL, context=User, instructions=instructions)  # E: arg-type, reportCallIssue
    Agent("a", MODEL, context=User, output=Answer, instructions=instructions)  # E: arg-type, reportCallIssue


def functions_of_another_context_that_are_found_at_definition() -> None:
    Agent("a", MODEL, context=User, tools=[no_tool])
    Agent("a", MODEL, context=User, tools=[by_name])
    Agent("a", MODEL, context=User, tools=[with_any])  # E: -, reportCallIssue
    Agent("a", MODEL, context=User, hooks=[hook_with_any])  # E: -, reportCallIssue
    Agent("a", MODEL, tools=[first])


def validators_of_another_type() -> None:
    Agent("a", MODEL, output=Answer, output_validators=[check_other])  # E: list-item, reportCallIssue
    Agent("a", MODEL, context=User, output=Answer, output_validators=[check_in_other])  # E: list-item, reportCallIssue
    Agent("a", MODEL, output_validators=[check_other])  # E: list-item, reportArgumentType
    agent = Agent("a", MODEL, context=User, output=Answer)
    agent.output_validator(check_other)  # E: call-overload, reportCallIssue
    agent.output_validator(check_in_other)  # E: call-overload, reportCallIssue


async def another_context_at_a_call(agent: Agent[User, Answer], client: Client) -> None:
    await agent.call("x", context=Other(size=3))  # E: arg-type, reportArgumentType
    agent.call_sync("x", context=Other(size=3))  # E: arg-type, reportArgumentType
    agent.stream("x", context="ana")  # E: arg-type, reportArgumentType
    await client.start(agent, "x", context=Other(size=3))  # E: misc, reportCallIssue
    await client.send(agent, "x", id="7", context=Other(size=3))  # E: misc, reportCallIssue
    await client.schedule(agent, "x", id="daily", every=5, context=Other(size=3))  # E: misc, reportArgumentType


def definitions_are_not_called(spec: AgentSpec[User, Answer], agent: Agent[User, Answer]) -> None:
    spec.call_sync("x")  # E: attr-defined, reportAttributeAccessIssue
    callable_here: Agent[User, Answer] = spec  # E: assignment, reportAssignmentType
    other: AgentSpec[User, Other] = agent  # E: assignment, reportAssignmentType
    print(callable_here, other)


async def output_of_another_type(agent: Agent[User, Answer], client: Client) -> None:
    print((await agent.call("x")).output.size)  # E: attr-defined, reportAttributeAccessIssue
    print((await (await client.start(agent, "x")).result()).output.size)  # E: attr-defined, reportAttributeAccessIssue
    print((await client.run("7", output=Answer).result()).output.size)  # E: attr-defined, reportAttributeAccessIssue
    print((await run_agent(agent, "x")).output.size)  # E: attr-defined, reportAttributeAccessIssue
    answer = await client.run("7", agent).result()
    response: Response[Other] = answer  # E: assignment, reportAssignmentType
    started = await client.start(agent, "x")
    run: Run[Other] = started  # E: assignment, reportAssignmentType
    with scripted(agent, [finish(text="x")]) as script:
        print(script.send_sync("x", id="7").output.size)  # E: attr-defined, reportAttributeAccessIssue
    print(run, response)


def agents_of_another_type(agent: Agent[User, Answer]) -> None:
    of_other: Agent[Other, Answer] = agent  # E: assignment, reportAssignmentType
    to_other: Agent[User, Other] = agent  # E: assignment, reportAssignmentType
    print(of_other, to_other)


def names_that_do_not_exist() -> None:
    from perdure import Agnet  # E: attr-defined, reportAttributeAccessIssue
    from perdure.events import ModelDetla  # E: attr-defined, reportAttributeAccessIssue
    from perdure.ports.store import Toolsets  # E: attr-defined, reportAttributeAccessIssue

    print(Agnet, ModelDetla, Toolsets)  # E: -, reportUnknownArgumentType


async def arguments_that_do_not_exist(agent: Agent[User, Answer], client: Client) -> None:
    Agent("a", MODEL, instruction="x")  # E: call-overload, reportCallIssue
    await client.start(agent, "x", contxt=User(name="ana"))  # E: call-overload, reportCallIssue
    await client.send("a", "x")  # E: call-overload, reportCallIssue
    tool(timeot=3)  # E: call-overload, reportCallIssue
    first("x")  # E: call-arg, reportCallIssue
