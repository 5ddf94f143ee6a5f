"""What a run may do for another one: no more than that, and nothing that who asked for it could then approve."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Approval, Client, Run, Step, allow, ask, background, deny, hook, tool
from perdure.client.inbox import PendingCall
from perdure.errors import ApprovalForbiddenError
from perdure.testing import ScriptedProvider, call, scripted
from tests.support.checks import assert_closed, results
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.wait import eventually

RAN: list[str] = []
REFUSED = "Denied: a rule of agent {} does not allow this call of remove"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@tool
def remove(path: str = "a") -> str:
    """Remove a file."""
    RAN.append(path)
    return f"removed {path}"


apart = tool(remove.fn, name="remove", needs_approval=Approval(separate=True))
REPLIES: list[list[Any]] = [
    [call("call_foreman", task="Go."), "Done."],
    [call("call_remover", task="Go."), "Done."],
    [call("remove"), "Done."],
]


def tree(*, boss: Any = (), foreman: Any = (), remover: Any = (), uses: Any = remove) -> list[Agent]:
    """A boss has a foreman ask a worker, who removes something; with the rules of each."""
    models = [ScriptedProvider(list(replies)) for replies in REPLIES]
    last = Agent("remover", models[2], tools=[uses], approvals=remover)
    middle = Agent("foreman", models[1], subagents=[last], approvals=foreman)
    return [Agent("boss", models[0], subagents=[middle], approvals=boss), middle, last]


async def waiting(client: Client, run: Run) -> PendingCall:
    """The call of ``run``, or of a run below it, that waits, when one does. Other tests use the server too."""
    found: list[PendingCall] = []

    async def there() -> bool:
        found[:] = [one for one in await client.approvals(agent="remover") if f"{one.run_id}/".startswith(f"{run.id}/")]
        return bool(found)

    await eventually(there, what="a call that waits")
    (one,) = found
    return one


async def told(run: Run) -> list[str]:
    transcript = await run.transcript()
    assert_closed(transcript)
    return results(transcript)


@pytest.mark.parametrize(
    ("rules", "denies"),
    [
        ({"boss": [deny("remove")]}, "boss"),
        ({"boss": [deny("rem*", path="a")], "remover": [allow("*")]}, "boss"),  # the default of an argument counts
        ({"foreman": [deny("remove")], "boss": [allow("*")]}, "foreman"),
        ({"remover": [deny("remove")], "boss": [deny("remove")]}, "remover"),
        ({"remover": [deny("remove")], "boss": [allow("*")]}, "remover"),
        ({"boss": [ask("remove")], "foreman": [deny("remove")]}, "foreman"),
        ({"boss": [allow("remove", path="a"), deny("remove")]}, None),
        ({"boss": [deny("remove", path="b")]}, None),
    ],
)
def test_what_an_agent_denies_is_denied_to_all_below_it(rules: dict[str, Any], denies: str | None) -> None:
    boss, foreman, worker = tree(**rules)
    with scripted(boss, REPLIES[0], others={foreman: REPLIES[1], worker: REPLIES[2]}) as script:
        boss.call_sync("Go.", on_approval="raise")
        said = results(script.requests_of(worker)[-1].messages)
    assert ([] if denies else ["a"]) == RAN
    assert said == [REFUSED.format(denies) if denies else "removed a"]


@pytest.mark.server
async def test_what_an_agent_has_asked_for_waits_below_it_too_on_the_strictest_terms(engine: Engine) -> None:
    rules = {"boss": [ask("remove", Approval(separate=True))], "remover": [ask("remove", Approval(expires="1d"))]}
    async with engine.served(*tree(**rules)) as client:
        run = await client.start("boss", "Go.", by="ana")
        one = await waiting(client, run)
        assert (one.run_id, one.agent, one.expires is not None) == (
            await find_child_id(client, run.id, 1, 1),
            "remover",
            True,
        )
        with pytest.raises(ApprovalForbiddenError, match="ana requested what led to"):
            await one.approve(by="ana")
        await one.approve(by="bea")
        await run.result()
        assert await told(client.run(one.run_id)) == ["removed a"]


@pytest.mark.server
async def test_a_rule_that_a_deploy_brings_above_holds_for_calls_that_wait_below(engine: Engine) -> None:
    async with engine.served(*tree(uses=apart)) as client:
        run = await client.start("boss", "Go.", by="ana")
        one = await waiting(client, run)
    new = tree(uses=apart, boss=[deny("remove")])
    for agent, left in zip(new, (["Done."], ["Done."], ["Done."]), strict=True):
        agent.provider = ScriptedProvider(left)
    async with engine.served(*new) as client:
        await client.run(one.run_id).approve(by="bea")
        await client.run(run.id).result()
        assert await told(client.run(one.run_id)) == [REFUSED.format("boss")]
    assert RAN == []


@pytest.mark.server
async def test_whoever_asked_for_it_cannot_approve_what_a_subagent_does(engine: Engine) -> None:
    worker = Agent("remover", ScriptedProvider([call("remove"), "Done."] * 3), tools=[apart])

    @hook("on_iteration", agents=[worker])
    async def ask_first(step: Step) -> None:
        await step.branch(worker, "Go.")

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    start, collect = call("start_agent", agent_name="remover", message="Go."), call("collect_agent", handle="b1")
    bosses = [
        Agent("foreground", ScriptedProvider([call("call_remover", task="Go."), "Done."]), subagents=[worker]),
        Agent("background", ScriptedProvider([start, collect, "Done."]), tools=[look, *background([worker])]),
        Agent("branch", ScriptedProvider([call("look"), "Done."]), tools=[look], hooks=[ask_first]),
    ]
    async with engine.served(*bosses, worker) as client:
        for boss in bosses:
            run = await client.start(boss, "Go.", by="ana")
            one = await waiting(client, run)
            with pytest.raises(ApprovalForbiddenError, match="ana requested what led to"):
                await one.approve(by="ana")
            assert RAN == []
            await one.approve(by="bea")
            await run.result()
            assert RAN == ["a"]
            RAN.clear()


async def test_a_fork_of_a_subagent_keeps_the_rules_above_it(engine: Engine) -> None:
    model = ScriptedProvider([*REPLIES[2], *REPLIES[2]])
    last = Agent("remover", model, tools=[remove])
    middle = Agent("foreman", ScriptedProvider(list(REPLIES[1])), subagents=[last])
    boss = Agent("boss", ScriptedProvider(list(REPLIES[0])), subagents=[middle], approvals=[deny("remove")])
    async with engine.served(boss, middle, last) as client:
        run = await client.start("boss", "Go.")
        await run.result()
        child = client.run(await find_child_id(client, run.id, 1, 1))
        assert await told(child) == [REFUSED.format("boss")]
        fork = await child.fork("Once more.", at=0)
        await fork.result()
        assert await told(fork) == [REFUSED.format("boss")]
    assert RAN == []
