"""Search attributes, on a real server: what they say of runs, what they cost, and what is done without them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.client import Client as TemporalClient

from perdure import Agent, Client, Limits, Run, Worker, tool
from perdure.client.bulk_actions import BulkFilter
from perdure.errors import InvalidInputError, RuntimeSetupError
from perdure.ports.model import ModelRequest
from perdure.temporal import attributes as search_attributes
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import (
    AGENT_ATTRIBUTE,
    PENDING_ATTRIBUTE,
    SEARCH_ATTRIBUTES,
    STATUS_ATTRIBUTE,
    TENANT_ATTRIBUTE,
    USER_ATTRIBUTE,
)
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.namespaces import a_namespace
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
async def look() -> str:
    """Look."""
    return "seen"


def agent(engine: Engine, *replies: Any, **options: Any) -> Agent:
    """One whose name no other test of this server has."""
    return Agent(name_of(engine), ScriptedProvider(list(replies)), **{"tools": [refund, look], **options})


def name_of(engine: Engine) -> str:
    return f"desk-{engine.task_queue}"


async def told(run: Run) -> dict[str, Any]:
    """What visibility has of a run, as far as it is perdure's."""
    seen = await run.handle.describe()
    return {pair.key.name: pair.value for pair in seen.typed_search_attributes if pair.key.name in SEARCH_ATTRIBUTES}


async def says(run: Run, **expected: Any) -> None:
    wanted = {
        {"agent": AGENT_ATTRIBUTE, "status": STATUS_ATTRIBUTE, "pending": PENDING_ATTRIBUTE}[name]: value
        for name, value in expected.items()
    }

    async def so() -> bool:
        return await told(run) == wanted

    await eventually(so, what=f"{wanted}")


async def upserts(run: Run) -> int:
    """Events that search attributes have cost the present execution of a run."""
    kind = EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES
    seen = await run.handle.describe()
    history = await run.client.temporal.get_workflow_handle(run.id, run_id=seen.run_id).fetch_history()
    found = [event for event in history.events if event.event_type == kind]  # the SDK's patches cost one too
    told = [event.upsert_workflow_search_attributes_event_attributes.search_attributes for event in found]
    return sum(bool(SEARCH_ATTRIBUTES.keys() & one.indexed_fields.keys()) for one in told)


async def found(client: Client, query: str) -> list[str]:
    return [seen.id async for seen in client.temporal.list_workflows(query)]


async def until_found(client: Client, query: str, ids: list[str]) -> None:
    async def so() -> bool:
        return sorted(await found(client, query)) == sorted(ids)

    await eventually(so, what=f"{len(ids)} runs of {query}")


async def test_a_run_costs_an_event_for_each_change_of_what_waits_and_a_session_one(engine: Engine) -> None:
    """Also one that a plain client started, which is indexed at its first wait."""
    replies = [call("look"), "Done.", call("refund", order="a"), "Done.", "One.", "Two.", "Three."]
    async with engine.served(agent(engine, *replies)) as client:
        run = await client.start(name_of(engine), "Go.")
        await run.result()
        assert await told(run) == {AGENT_ATTRIBUTE: name_of(engine)}
        assert await upserts(run) == 0, "it did not wait"

        plain = client.run(f"plain-{engine.task_queue}")
        start = {"agent": name_of(engine), "message": "Go."}
        await client.temporal.start_workflow("AgentWorkflow", start, id=plain.id, task_queue=engine.task_queue)
        await says(plain, agent=name_of(engine), status="waiting", pending=1)
        await plain.approve()
        await plain.result()
        assert await upserts(plain) == 2

        session = client.run(f"session-{engine.task_queue}")
        for text in ("a", "b", "c"):
            await (await client.send(name_of(engine), text, id=session.id)).result()
        await says(session, agent=name_of(engine), status="running", pending=0)
        assert await upserts(session) == 1
        await session.close()


async def test_what_waits_is_found_by_one_query_and_then_no_more(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            await gate()
            return "Done."
        return [call("refund", order="a"), call("refund", order="b"), call("look")]

    desk = Agent(name_of(engine), ScriptedProvider(reply), tools=[refund, look])
    async with engine.served(desk) as client:
        run = await client.start(desk.name, "Go.")
        await says(run, agent=desk.name, status="waiting", pending=2)
        await until_found(
            client,
            f"{PENDING_ATTRIBUTE} > 0 AND {AGENT_ATTRIBUTE} = '{desk.name}' AND {STATUS_ATTRIBUTE} = 'waiting'",
            [run.id],
        )
        assert await upserts(run) == 1
        first, second = await client.approvals(agent=desk.name)
        await first.approve()
        await says(run, agent=desk.name, status="waiting", pending=1)
        await second.approve()
        await says(run, agent=desk.name, status="running", pending=0)
        await until_found(client, f"{PENDING_ATTRIBUTE} > 0 AND {AGENT_ATTRIBUTE} = '{desk.name}'", [])
        assert await client.approvals(agent=desk.name) == []
        gate.open()
        await run.result()
        assert await upserts(run) == 3


async def test_what_is_indexed_survives_continue_as_new(engine: Engine) -> None:
    calls = [call("refund", order="a"), *(call("look") for _ in range(4))]
    async with engine.served(agent(engine, calls, "Done.")) as client:
        run = await client.start(name_of(engine), "Go.", max_history_events=15)

        async def continued() -> bool:
            seen = await run.handle.describe()
            return seen.run_id != run.handle.first_execution_run_id and (await run.status()).doing == "approval"

        await eventually(continued)
        await says(run, agent=name_of(engine), status="waiting", pending=1)
        assert await upserts(run) == 0, "it came with the new execution"
        await until_found(
            client,
            f"{PENDING_ATTRIBUTE} > 0 AND {AGENT_ATTRIBUTE} = '{name_of(engine)}' AND ExecutionStatus = 1",
            [run.id],
        )
        await run.approve()
        await run.result()
        assert await told(run) == {AGENT_ATTRIBUTE: name_of(engine), STATUS_ATTRIBUTE: "running", PENDING_ATTRIBUTE: 0}


async def test_what_is_paused_is_listed(engine: Engine) -> None:
    limited = agent(engine, *[call("look") for _ in range(3)], "Done.", limits=Limits(tool_calls=1), on_limit="pause")
    async with engine.served(limited) as client:
        run = await client.start(limited.name, "Go.")
        await says(run, agent=limited.name, status="paused", pending=0)
        await until_found(client, f"{STATUS_ATTRIBUTE} = 'paused' AND {AGENT_ATTRIBUTE} = '{limited.name}'", [run.id])
        (paused,) = await client.list(agent=limited.name, status="paused")
        assert (paused.id, paused.status) == (run.id, "paused")
        assert [one.id for one in await client.list(agent=limited.name, status="open")] == [run.id]
        assert await client.list(agent=limited.name, status="waiting") == []
        await run.resume(limits={"tool_calls": 9})
        await run.result()
        assert (await told(run))[STATUS_ATTRIBUTE] == "running"


async def test_a_subagent_is_indexed_for_itself(engine: Engine) -> None:
    helper = Agent(
        f"helper-{engine.task_queue}", ScriptedProvider([call("refund", order="a"), "Helped."]), tools=[refund]
    )
    lead = agent(engine, call(f"call_{helper.name}", task="Help."), "Done.", subagents=[helper])
    async with engine.served(lead, helper) as client:
        run = await client.start(lead.name, "Go.")
        await until_found(
            client,
            f"{PENDING_ATTRIBUTE} = 1 AND {AGENT_ATTRIBUTE} = '{helper.name}'",
            [await find_child_id(client, run.id, 1)],
        )
        (asked,) = await client.approvals(agent=helper.name)
        assert await told(run) == {AGENT_ATTRIBUTE: lead.name}
        await asked.approve()
        await run.result()


async def test_runs_are_found_by_their_tenant_and_user(engine: Engine) -> None:
    """Those of a program without perdure, too, which the runs index themselves, and subagents'."""
    tenant, bob = f'O\'Brien \\ 50% of \u2603 "{engine.task_queue}"', f"bob-{engine.task_queue}"
    labels = {TENANT_ATTRIBUTE: tenant, USER_ATTRIBUTE: "ann"}
    helper = Agent(f"helper-{engine.task_queue}", ScriptedProvider(["Helped."]), description="Helps.")
    replies = [call(f"call_{helper.name}", task="Help."), "Done.", call("look"), "Done.", "Session."]
    async with engine.served(agent(engine, *replies, subagents=[helper])) as client:
        run = await client.start(name_of(engine), "Go.", tenant=tenant, user="ann")
        await run.result()
        child = client.run(await find_child_id(client, run.id, 1))
        assert await told(run) == {AGENT_ATTRIBUTE: name_of(engine), **labels}
        assert await told(child) == {AGENT_ATTRIBUTE: helper.name, **labels}
        assert await upserts(run) == await upserts(child) == 0, "they were given at the starts"

        start = {"agent": name_of(engine), "message": "Go.", "tenant": tenant, "user": "ann"}
        plain = client.run(f"plain-{engine.task_queue}", tenant=tenant)
        await client.temporal.start_workflow("AgentWorkflow", start, id=plain.id, task_queue=engine.task_queue)
        await plain.result()
        assert await told(plain) == labels
        assert await upserts(plain) == 1
        turn = await client.send(name_of(engine), "Go.", id=f"session-{engine.task_queue}", tenant=tenant, user=bob)
        await turn.result()
        await until_found(client, f"{USER_ATTRIBUTE} = '{bob}'", [turn.run.id])

        async def listed(**filters: Any) -> list[str]:
            return [each.id for each in await client.list(tenant=tenant, **filters)]

        assert sorted(await listed()) == sorted([run.id, child.id, plain.id, turn.run.id])
        assert sorted(await listed(user="ann", roots=True)) == sorted([run.id, plain.id])
        assert await listed(agent=helper.name) == [child.id]
        await turn.run.close()
        await turn.run.result()


# --- a namespace of one's own


@pytest.fixture
async def bare(temporal_address: str) -> TemporalClient:
    """A client of a new namespace, which has no search attributes."""
    return await a_namespace(temporal_address)


Setup = Callable[..., Awaitable[None]]


async def add(client: TemporalClient, **types: str) -> None:
    kinds = {name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}") for name, kind in types.items()}
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds)
    await client.operator_service.add_search_attributes(request)


async def remove(client: TemporalClient, *names: str) -> None:
    request = RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=names)
    await client.operator_service.remove_search_attributes(request)


async def test_without_attributes_everything_works_and_setup_takes_effect_without_a_restart(
    bare: TemporalClient, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_attributes, "RECHECK_SECONDS", 0.0)
    client = Client(bare, store_url=f"sqlite:///{tmp_path}/store.db", task_queue="q", actor="tests")

    def reply(request: ModelRequest) -> Any:
        return "Done." if request.messages[-1].role == "tool" else call("refund", order="a")

    desk = Agent("desk", ScriptedProvider(reply), tools=[refund])
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        async with Worker(client, [desk], drain=1.0):
            first = await client.start("desk", "Go.", tenant="acme", user="ann")
            await eventually(lambda: _doing(first, "approval"))
            await until_found(client, "ExecutionStatus = 'Running'", [first.id])
            (asked,) = await client.approvals(agent="desk")
            assert asked.run_id == first.id
            assert [one.id for one in await client.list(agent="desk")] == [first.id]
            with pytest.raises(InvalidInputError, match=f"no search attribute {STATUS_ATTRIBUTE}"):
                await client.list(status="waiting")
            with pytest.raises(InvalidInputError, match=f"no search attribute {STATUS_ATTRIBUTE}"):
                await client.list(status="waiting", tenant="acme")
            assert [one.id for one in await client.list(tenant="acme")] == [first.id], "the memo says so"
            assert await client.list(tenant="other") == await client.list(user="bob") == []
            assert await upserts(first) == 0

            assert await search_attributes.register_search_attributes(bare.service_client, bare.namespace) == tuple(
                SEARCH_ATTRIBUTES
            )
            assert await search_attributes.register_search_attributes(bare.service_client, bare.namespace) == ()
            second = await client.start("desk", "Go.")
            await says(second, agent="desk", status="waiting", pending=1)
            await until_found(client, f"{PENDING_ATTRIBUTE} > 0", [second.id])
            # Of the first nothing is indexed: it is asked.
            both = await client.approvals(agent="desk")
            assert [one.run_id for one in both] == [first.id, second.id]
            for one in both:
                await one.approve()
                await one.run.result()
    said = [record for record in caplog.records if "perdure server setup" in record.getMessage()]
    assert len(said) == 1
    assert (
        f"namespace {bare.namespace}: missing: {AGENT_ATTRIBUTE}, {STATUS_ATTRIBUTE}, {PENDING_ATTRIBUTE}"
        in said[0].getMessage()
    )
    await client.close()


async def test_without_attributes_a_bulk_action_resumes_what_is_paused(bare: TemporalClient, tmp_path: Path) -> None:
    client = Client(bare, store_url=f"sqlite:///{tmp_path}/store.db", task_queue="q", actor="tests")
    gate = Gate()

    @tool
    async def hold() -> str:
        """Hold."""
        await gate()
        return "held"

    desk = Agent("desk", ScriptedProvider([call("hold"), "Done."]), tools=[hold])
    async with Worker(client, [desk], drain=1.0):
        run = await client.start("desk", "Go.")
        await eventually(lambda: gate.entered)
        await run.pause()
        gate.open()

        async def is_listed() -> bool:
            return (await client.bulk_actions.preview("resume", chosen)).counts == {"pending": 1}

        chosen = BulkFilter(ids=(run.id,))
        await eventually(is_listed)
        action = await client.bulk_actions.start("resume", chosen)
        ended = await client.bulk_actions.wait(action.id, seconds=30)
        assert ended.counts == {"acted": 1}, (await client.bulk_actions.runs(action.id)).runs
        assert (await run.result()).content == "Done."
    await client.close()


async def _doing(run: Run, what: str) -> bool:
    return (await run.status()).doing == what


async def test_an_attribute_of_another_type_is_left_alone(bare: TemporalClient, tmp_path: Path) -> None:
    await add(bare, **{PENDING_ATTRIBUTE: "Keyword", STATUS_ATTRIBUTE: "Keyword"})
    with pytest.raises(RuntimeSetupError, match=f"{PENDING_ATTRIBUTE} is of type Keyword and must be Int"):
        await search_attributes.register_search_attributes(bare.service_client, bare.namespace)
    client = Client(bare, store_url=f"sqlite:///{tmp_path}/store.db", task_queue="q", actor="tests")
    desk = Agent("desk", ScriptedProvider([call("refund", order="a"), "Done."]), tools=[refund])
    async with Worker(client, [desk], drain=1.0):
        run = await client.start("desk", "Go.")
        await says(run, status="waiting")
        await run.approve()
        await run.result()
    await client.close()


async def test_a_start_does_not_fail_for_an_attribute_that_is_gone(bare: TemporalClient, tmp_path: Path) -> None:
    await add(bare, **{AGENT_ATTRIBUTE: "Keyword"})
    client = Client(bare, store_url=f"sqlite:///{tmp_path}/store.db", task_queue="q", actor="tests")
    desk = Agent("desk", ScriptedProvider(["Done.", "Done.", "Done."]))
    async with Worker(client, [desk], drain=1.0):
        run = await client.start("desk", "Go.")
        await run.result()
        assert await told(run) == {AGENT_ATTRIBUTE: "desk"}
        await remove(bare, AGENT_ATTRIBUTE)
        later = await client.start("desk", "Go.")
        await later.result()
        await add(bare, **{AGENT_ATTRIBUTE: "Keyword"})
        await search_attributes.get_search_attributes(bare)
        search_attributes.forget_search_attributes(bare)
        assert AGENT_ATTRIBUTE in (await search_attributes.get_search_attributes(bare)).names  # type: ignore[union-attr]  # it can be told here
        await remove(bare, AGENT_ATTRIBUTE)
        turn = await client.send("desk", "Go.", id="s")
        assert (await turn.result()).content == "Done."
        await client.run("s").close()
    await client.close()


async def test_what_a_namespace_has_can_be_read_from_its_description(bare: TemporalClient) -> None:
    """For servers whose operator service is not for every client."""
    await search_attributes.register_search_attributes(bare.service_client, bare.namespace)
    assert await search_attributes._read_aliases(bare.service_client, bare.namespace) == SEARCH_ATTRIBUTES


async def test_setup_of_a_namespace_that_is_not_there(temporal_address: str) -> None:
    client = await TemporalClient.connect(temporal_address)
    with pytest.raises(RuntimeSetupError, match="there is no namespace 'nowhere'"):
        await search_attributes.register_search_attributes(client.service_client, "nowhere")
