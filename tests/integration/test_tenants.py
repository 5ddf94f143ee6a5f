"""Tenants and users of runs: given at the start, inherited, kept, and refused for others."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Client, Run
from perdure.errors import InvalidInputError, RunIdError
from perdure.ports.model import ModelRequest
from perdure.ports.store import RunRow
from perdure.testing import ScriptedProvider, call, scripted
from perdure.testing.store import MemoryStore
from perdure.types.interface import WORKFLOW_TYPE
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.wait import eventually

ACME = {"tenant": "acme", "user": "ann"}


def talker() -> Agent:
    return Agent("talker", ScriptedProvider(lambda request: f"Heard {len(request.messages)}."))


def team() -> Agent:
    helper = Agent("helper", ScriptedProvider(lambda _: "Found."), description="Finds.")

    def lead(request: ModelRequest) -> Any:
        return "Done." if request.messages[-1].role == "tool" else call("call_helper", task="Find.")

    return Agent("lead", ScriptedProvider(lead), subagents=[helper])


async def row(client: Client, id: str) -> RunRow:
    found = await (await client.store()).get_run(id)
    assert found is not None
    return found


async def labels(run: Run[Any]) -> tuple[str | None, str | None]:
    """What the store and Temporal's list say of the run's tenant and user."""
    stored = await row(run.client, run.id)
    [listed] = [each for each in await run.client.list() if each.id == run.id]
    assert (listed.tenant, listed.user) == (stored.tenant, stored.user)
    return stored.tenant, stored.user


async def start_plainly(client: Client, id: str, start: dict[str, Any]) -> Run[Any]:
    """As a program without perdure does."""
    await client.temporal.start_workflow(WORKFLOW_TYPE, start, id=id, task_queue=client.task_queue)
    return client.run(id)


async def test_a_run_and_its_subagents_have_them(engine: Engine) -> None:
    async with engine.served(team()) as client:
        run = await client.start("lead", "Go.", **ACME)
        other = await client.start("lead", "Go.", tenant="other", user="ann")
        await run.result()
        await other.result()
        assert await labels(run) == ("acme", "ann")
        [child] = [each.id for each in await client.list(agent="helper", tenant="acme")]
        assert child.startswith(f"{run.id}/")
        assert await labels(client.run(child)) == ("acme", "ann")
        assert {each.id for each in await client.list(**ACME)} == {run.id, child}
        assert [each.id for each in await client.list(**ACME, roots=True)] == [run.id]
        assert {each.id for each in await client.list(user="ann", roots=True)} == {run.id, other.id}
        assert await client.list(tenant="acm") == []
        rows = await (await client.store()).list_usage(tenant="acme")
        assert [(each.context_id, each.root, each.user) for each in rows] == [
            (run.id, None, "ann"),
            (child, run.id, "ann"),
            (run.id, None, "ann"),
        ]


async def test_a_run_without_them_is_nobodys(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        run = await client.start("talker", "Hi.")
        await run.result()
        assert await labels(run) == (None, None)
        assert await client.list(tenant="acme") == await client.list(user="ann") == []


async def test_what_begins_a_conversation_decides(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        chat = f"chat-{engine.task_queue}"
        turn = await client.send("talker", "One.", id=chat, **ACME)
        await turn.result()
        assert turn.run.id == f"@acme/{chat}"
        for name, given in ((chat, ACME), (chat, {"tenant": "acme"}), (turn.run.id, ACME)):
            await (await client.send("talker", "More.", id=name, **given)).result()
        heard = len(await turn.run.transcript())
        with pytest.raises(InvalidInputError, match=r"user: run .* was not begun for user 'eve'") as error:
            await client.send("talker", "Tell me all.", id=chat, tenant="acme", user="eve")
        assert "ann" not in str(error.value), "whose conversation it is stays unsaid"
        for tenant in ("evil", None):  # theirs is another conversation, whether or not there is this one
            other = await client.send("talker", "Tell me all.", id=chat, tenant=tenant)
            assert (await other.result()).content == "Heard 1."
            await other.run.close()
        assert len(await turn.run.transcript()) == heard
        assert await labels(turn.run) == ("acme", "ann")
        await turn.run.close()


async def test_the_run_itself_refuses_the_message_of_another(engine: Engine) -> None:
    """Whatever the client has checked: two may begin a conversation at once."""
    async with engine.served(talker()) as client:
        run = await client.start("talker", "One.", mode="session", **ACME)
        await run.turn().result()
        await run.handle.signal("inject_user_message", {"content": "Tell me all.", "tenant": "evil"})
        await run.handle.signal("inject_user_message", {"content": "Tell me all.", "tenant": 7})

        async def refusals() -> list[str]:
            refused = list((await run.status()).refused)
            return refused if len(refused) == 2 else []

        [other, invalid] = await eventually(refusals)
        assert "was not begun for tenant 'evil'" in other
        assert "tenant" in invalid
        await run.handle.signal("inject_user_message", {"content": "Two.", "id": "two", **ACME})
        answered = await client.send("talker", "Two.", id=run.id, message_id="two", tenant="acme")
        assert (await answered.result()).content == "Heard 3."
        await run.close()


async def test_a_closed_conversation_goes_on_for_those_who_began_it_alone(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        chat = f"closed-{engine.task_queue}"
        turn = await client.send("talker", "One.", id=chat, **ACME)
        await turn.result()
        await turn.run.close()
        await turn.run.result()
        with pytest.raises(InvalidInputError, match="was not begun for user 'eve'"):
            await client.send("talker", "Tell me all.", id=chat, tenant="acme", user="eve")
        again = await client.send("talker", "Two.", id=chat, tenant="acme")
        assert (await again.result()).content == "Heard 3."
        assert await labels(again.run) == ("acme", "ann")
        await again.run.close()


async def test_a_plain_client_that_reopens_a_conversation(engine: Engine) -> None:
    """Its id says whose it is, also where the input does not."""
    async with engine.served(talker()) as client:
        chat = f"@acme/plain-{engine.task_queue}"
        first = await start_plainly(client, chat, {"agent": "talker", "message": "One.", **ACME})
        await first.result()
        assert [(each.id, each.user) for each in await client.list(tenant="acme")] == [(chat, "ann")]
        again = {"agent": "talker", "message": "Two.", "resume": True}
        evil = await start_plainly(client, chat, {**again, "tenant": "evil"})
        with pytest.raises(InvalidInputError, match="of tenant 'evil' begins with '@evil/'"):
            await evil.result()
        eve = await start_plainly(client, chat, {**again, "user": "eve"})
        with pytest.raises(RunIdError):
            await eve.result()
        stored = await row(client, chat)
        assert (stored.tenant, stored.user, stored.status) == ("acme", "ann", "completed")
        assert users(await client.run(chat).transcript()) == ["One."]
        assert await client.list(tenant="evil") == []
        silent = await start_plainly(client, chat, again)
        assert (await silent.result()).content.startswith("Heard")
        usage = await (await client.store()).list_usage(tenant="acme")
        assert [each.context_id for each in usage] == [chat, chat]
        assert (await client.list(tenant="acme"))[0].id == chat


async def test_a_fork_and_a_resumed_run_inherit_them(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        run = await client.start("talker", "One.", **ACME)
        await run.result()
        fork = await run.fork("Two.")
        await fork.result()
        assert await labels(fork) == ("acme", "ann")


async def test_they_outlive_executions(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        run = await client.start("talker", "One.", mode="session", max_history_events=11, **ACME)
        for text in ("Two.", "Three.", "Four."):
            await (await run.send(text)).result()
        description = await run.describe()
        assert description.raw_info.first_run_id != description.run_id
        with pytest.raises(RunIdError):
            await client.send("talker", "Tell me all.", id=run.id, tenant="evil")
        assert await labels(run) == ("acme", "ann")
        await run.close()


async def test_a_run_of_another_is_not_attached_to(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        chat = f"attach-{engine.task_queue}"
        run = await client.start("talker", "One.", id=chat, **ACME)
        for given in ({"tenant": "acme"}, ACME):
            assert (await client.start("talker", "One.", id=chat, if_exists="attach", **given)).id == run.id
        with pytest.raises(RunIdError, match="this id cannot be used"):
            await client.start("talker", "One.", id=chat, if_exists="attach", tenant="acme", user="eve")
        evil = await client.start("talker", "One.", id=chat, if_exists="attach", tenant="evil")
        assert evil.id != run.id
        await evil.result()
        await run.result()


async def test_the_id_of_another_is_not_started_anew_when_temporal_has_forgotten_it() -> None:
    store, agent = MemoryStore(), Agent("talker", "openai:gpt-5")
    async with scripted(agent, ["Heard."], store=store) as kit:
        await (await kit.client.start(agent, "A secret.", id="chat", **ACME)).result()
    async with scripted(agent, ["Heard."], store=store) as kit:
        with pytest.raises(RunIdError, match="this id cannot be used"):
            await kit.client.start(agent, "Hi.", id="chat", tenant="acme", user="eve")
        assert (await (await kit.client.start(agent, "Hi.", id="chat", **ACME)).result()).content == "Heard."


@pytest.mark.parametrize("value", ["", "a" * 201, 7, ["acme"], {"a": 1}, "a\0b", "a\ud800", True])
async def test_what_is_no_label_is_refused(engine: Engine, value: Any) -> None:
    async with engine.served(talker()) as client:
        for name in ("tenant", "user"):
            with pytest.raises(InvalidInputError, match=f"fit: {name}: "):
                await client.start("talker", "One.", **{name: value})
            with pytest.raises(InvalidInputError, match=f"fit: {name}: "):
                await client.send("talker", "One.", id="chat", **{name: value})


async def test_a_plain_start_with_what_is_no_label_fails(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        wrong = {"agent": "talker", "message": "One.", "tenant": ["acme"]}
        run = await start_plainly(client, f"wrong-{engine.task_queue}", wrong)
        with pytest.raises(InvalidInputError, match="fit: tenant: "):
            await run.result()
        none = await start_plainly(client, f"none-{engine.task_queue}", wrong | {"tenant": None, "user": None})
        assert (await none.result()).content == "Heard 1."
