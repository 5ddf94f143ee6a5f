"""Programs that type checkers accept, and what they make of them. `make types` checks this file; nothing runs it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypedDict, assert_type

from pydantic import BaseModel

from perdure import (
    Agent,
    AgentSpec,
    Client,
    Response,
    Run,
    RunContext,
    ToolContext,
    Turn,
    Worker,
    delegate,
    hook,
    load_agent,
    local,
    tool,
)
from perdure.contrib.hooks import redact
from perdure.testing import call, finish, scripted
from perdure.workflow import run_agent

MODEL = "openai:gpt-5"


class User(BaseModel):
    name: str


class Admin(User):
    level: int


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Keys(TypedDict):
    name: str


class Answer(BaseModel):
    text: str


class Refusal(BaseModel):
    why: str


# --- functions


@tool
def plain(x: int) -> str:
    return str(x)


@tool
def bare(ctx: ToolContext, x: int) -> str:
    return str(ctx.context["x"])


@tool
def first(ctx: ToolContext[User], x: int) -> str:
    return ctx.context.name


@tool(timeout=30, idempotent=True)
async def last(x: int, y: str, ctx: ToolContext[User]) -> str:
    return ctx.context.name


@tool
def by_name(x: int, *, ctx: RunContext[User]) -> str:
    return ctx.context.name


@tool
def of_protocol(ctx: ToolContext[Named]) -> str:
    return ctx.context.name


@hook("before_tool_call", timeout=5)
async def before(name: str, ctx: ToolContext[User]) -> None: ...


@hook("on_user_message")
def bare_hook(ctx: RunContext) -> None: ...


@hook("on_finish")
def on_finish(output: Answer, ctx: RunContext[User]) -> None: ...


def instructions(ctx: RunContext[User]) -> str:
    return ctx.context.name


def check(output: Answer) -> Answer:
    return output


async def check_in_context(output: Answer, ctx: RunContext[User]) -> None: ...


def check_text(output: str) -> str:
    return output


@dataclass
class Search:
    limit: int = 3

    def __call__(self, query: str) -> str:
        return query

    def find(self, query: str, ctx: ToolContext[User]) -> str:
        return query


# --- an agent by its arguments


def infers_from_arguments(anything: Any, kind: type[Any]) -> None:
    assert_type(Agent("a", MODEL), Agent[Any, str])
    assert_type(Agent("a", MODEL, output=Answer), Agent[Any, Answer])
    assert_type(Agent("a", MODEL, output=list[Answer]), Agent[Any, list[Answer]])
    assert_type(Agent("a", MODEL, output=dict[str, int]), Agent[Any, dict[str, int]])
    assert_type(Agent("a", MODEL, output=Keys), Agent[Any, Keys])
    assert_type(Agent("a", MODEL, output=int), Agent[Any, int])
    assert_type(Agent("a", MODEL, context=User), Agent[User, str])
    assert_type(Agent("a", MODEL, context=Keys, output=Answer), Agent[Keys, Answer])
    assert_type(Agent("a", MODEL, output=Answer | Refusal), Agent[Any, Any])
    assert_type(Agent("a", MODEL, context=User, output=Answer | None), Agent[User, Any])
    assert_type(Agent("a", MODEL, output=Literal["yes", "no"]), Agent[Any, Any])
    assert_type(Agent("a", MODEL, output=anything), Agent[Any, Any])
    assert_type(Agent("a", MODEL, output=kind), Agent[Any, Any])
    assert_type(load_agent("agent.json"), Agent[Any, Any])


def says_what_is_not_inferred() -> None:
    agent = Agent[User, Answer | Refusal](
        "a", MODEL, context=User, output=Answer | Refusal, output_validators=[lambda output: output]
    )
    assert_type(agent, Agent[User, Answer | Refusal])
    either: Agent[User, Answer | Refusal] = Agent("a", MODEL, context=User, output=Answer | Refusal)
    assert_type(either.call_sync("x").output, Answer | Refusal)
    of_two = Agent[User | Keys, str]("a", MODEL, context=User | Keys)
    of_two.call_sync("x", context=User(name="ana"))


def keeps_the_context_whatever_the_functions_take() -> None:
    assert_type(Agent("a", MODEL, context=User, tools=[bare]), Agent[User, str])
    assert_type(Agent("a", MODEL, context=User, tools=[bare, plain, by_name]), Agent[User, str])
    assert_type(Agent("a", MODEL, context=User, hooks=[bare_hook]), Agent[User, str])
    assert_type(Agent("a", MODEL, context=User, hooks=[bare_hook, redact()]), Agent[User, str])
    assert_type(Agent("a", MODEL, context=User, output=Answer, tools=[first, bare]), Agent[User, Answer])
    assert_type(Agent("a", MODEL, context=User, output=Answer, hooks=[on_finish]), Agent[User, Answer])


def takes_functions_of_the_context() -> None:
    agent = Agent(
        "a",
        MODEL,
        context=User,
        output=Answer,
        instructions=instructions,
        tools=[plain, bare, first, last, by_name, of_protocol, Search(), Search().find, partial(str, "x"), check_text],
        hooks=[before, bare_hook, on_finish, redact()],
        output_validators=[check, check_in_context],
    )
    assert_type(agent, Agent[User, Answer])


def takes_functions_of_a_base_of_the_context() -> None:
    agent = Agent("a", MODEL, context=Admin, instructions=instructions, tools=[first, last], hooks=[before])
    assert_type(agent, Agent[Admin, str])


def takes_functions_of_any_context_without_one() -> None:
    agent = Agent("a", MODEL, instructions=lambda ctx: str(ctx.context["x"]), tools=[bare, plain], hooks=[bare_hook])
    assert_type(agent, Agent[Any, str])


def keeps_lists_of_agents(one: Agent[User, Answer], other: Agent[Any, str]) -> None:
    agents: list[Agent] = [one, other, Agent("a", MODEL, output=int)]
    boss = Agent("boss", MODEL, subagents=[one, other, "third"], tools=[delegate([one, other]), one.as_tool()])
    assert_type(boss, Agent[Any, str])
    wider: Agent[User, object] = one
    print(agents, wider)


def keeps_the_agent_in_its_copies(one: Agent[User, Answer]) -> None:
    assert_type(one.overridden({"model": "openai:gpt-5-mini"}), Agent[User, Answer])
    assert_type(one.with_tools("key", lambda: [plain]), Agent[User, Answer])
    assert_type(copy(one), Agent[User, Answer])
    assert_type(Agent("a", MODEL).overridden(None), Agent[Any, str])
    assert_type(Agent("a", MODEL, context=User).overridden(None).call_sync("x"), Response[str])


# --- decorators


async def keeps_the_functions_under_decorators(ctx: ToolContext[User]) -> None:
    assert_type(plain(3), str)
    assert_type(first(ctx, 3), str)
    assert_type(first(ctx=ctx, x=3), str)
    assert_type(await last(3, "y", ctx), str)
    assert_type(tool(Search().find, name="find")("x", ctx), str)
    agent = Agent("a", MODEL, context=User, output=Answer)

    @agent.output_validator
    def inner(output: Answer, ctx: RunContext[User]) -> Answer:
        return output

    @agent.output_validator
    async def inner_async(output: Answer) -> Answer:
        return output

    @agent.output_validator
    def of_base(output: BaseModel, ctx: RunContext[Named]) -> None: ...

    @agent.instructions
    def added(ctx: RunContext[User]) -> str:
        return ctx.context.name

    @agent.tool
    def own(ctx: ToolContext[User], x: int) -> str:
        return ctx.context.name

    @agent.tool(timeout=30)
    async def timed(x: int) -> str:
        return str(x)

    assert_type(inner(output=Answer(text=""), ctx=ctx), Answer)
    assert_type(await inner_async(Answer(text="")), Answer)
    assert_type(of_base(Answer(text=""), ctx), None)
    assert_type(added(ctx), str)
    assert_type(own(ctx, 3), str)
    assert_type(await timed(3), str)
    assert_type(agent, Agent[User, Answer])


# --- calls and handles


async def gives_the_output(agent: Agent[User, Answer], client: Client) -> None:
    assert_type(await agent.call("x"), Response[Answer])
    assert_type((await agent.call("x", context=User(name="ana"))).output, Answer)
    assert_type((await agent.call("x", context=Admin(name="ana", level=1))).output, Answer)
    assert_type(agent.call_sync("x", context={"name": "ana"}).output, Answer)
    assert_type(agent.stream("x", context=User(name="ana")), AsyncGenerator[str])
    assert_type(agent.stream_output("x", context={"name": "ana"}), AsyncGenerator[Answer])
    assert_type(agent.read_output({"text": ""}), Answer)
    run = await client.start(agent, "x", id="7", mode="session", context=User(name="ana"))
    assert_type(run, Run[Answer])
    assert_type(await run.result(), Response[Answer])
    assert_type(run.turn(), Turn[Answer])
    assert_type(await run.send("x"), Turn[Answer])
    assert_type(await run.fork("x"), Run[Answer])
    turn = await client.send(agent, "x", id="7", context={"name": "ana"})
    assert_type(turn, Turn[Answer])
    assert_type(turn.task_id, str)
    assert_type((await turn.result()).output, Answer)
    assert_type(client.run("7", agent), Run[Answer])
    await client.schedule(agent, "x", id="daily", every="1d", context=User(name="ana"))
    assert_type(await run_agent(agent, "x"), Response[Answer])


async def takes_definitions_of_agents(
    spec: AgentSpec[User, Answer], one: Agent[User, Answer], other: Agent[Any, str], client: Client
) -> None:
    wider: AgentSpec[User, Answer] = one
    print(wider)
    assert_type(await client.start(spec, "x", context=User(name="ana")), Run[Answer])
    assert_type(client.run("7", spec), Run[Answer])
    assert_type(await run_agent(spec, "x"), Response[Answer])
    assert_type(spec.overridden(None), AgentSpec[User, Answer])
    Agent("boss", MODEL, subagents=[spec, other])
    specs: Iterable[AgentSpec] = [one, other]
    async with local(specs):
        pass
    with scripted(spec, [finish(text="x")], others={spec: ["x"], other: ["x"]}) as script:
        assert_type(script.send_sync("x", id="7"), Response[Answer])


async def gives_what_output_says_by_name(client: Client, name: str, of_user: User) -> None:
    assert_type(await client.start(name, "x"), Run[Any])
    assert_type(await client.start(name, "x", context=of_user, output=Answer), Run[Answer])
    assert_type(await client.start(name, "x", output=Answer | Refusal), Run[Any])
    assert_type(await client.send(name, "x", id="7"), Turn[Any])
    assert_type(await client.send(name, "x", id="7", output=list[Answer]), Turn[list[Answer]])
    assert_type(client.run("7"), Run[Any])
    assert_type(client.run("7", output=Answer), Run[Answer])
    assert_type(await run_agent(name, "x"), Response[Any])
    await client.schedule(name, "x", id="daily", every="1d", context=of_user)


async def takes_what_is_not_typed(client: Client, agent: Agent, run: Run, response: Response, ctx: ToolContext) -> None:
    assert_type(agent, Agent[Any, Any])
    assert_type(response.output, Any)
    assert_type(ctx.context, Any)
    assert_type(await client.start(agent, "x", context=User(name="ana")), Run[Any])
    await client.start(agent, "x", history=run)
    await client.start(agent, "x", history=response)


def gives_the_output_in_tests(agent: Agent[User, Answer], other: Agent[Any, str]) -> None:
    with scripted(agent, [finish(text="x")], others={other: ["x"]}) as script:
        assert_type(script.send_sync("x", id="7", context=User(name="ana")), Response[Answer])
        assert_type(agent.call_sync("x"), Response[Answer])
    others = {other: [call("look", at=1), "text"]}
    replies = [call("look", at=1), ["text", finish(text="x")], "text"]
    with scripted(agent, replies, others=others) as script:
        assert_type(script.send_sync("x", id="7", context=User(name="ana")), Response[Answer])
    assert_type(agent.call_sync("x", on_approval="approve", approve_as="ana"), Response[Answer])
    with scripted(Agent("a", MODEL), ["x"]) as texts:
        assert_type(texts.send_sync("x", id="7"), Response[str])


async def serves_agents_of_all_types(one: Agent[User, Answer], other: Agent[Any, str], temporal: Client) -> None:
    async with local([one, other]) as client:
        assert_type(client, Client)
        assert_type(await client.start(one, "x"), Run[Answer])
    worker = Worker(temporal, [one, other, Agent("a", MODEL, output=int)])
    print(worker)


def takes_handles_of_a_narrower_type(run: Run[Answer], turn: Turn[Answer], response: Response[Answer]) -> None:
    wider: tuple[Run[BaseModel], Turn[object], Response[BaseModel]] = (run, turn, response)
    context: RunContext[Mapping[str, object]] = RunContext[dict[str, int]]()
    print(wider, context)
