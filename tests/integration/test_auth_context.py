"""``auth_context``: it reaches an author's code on the worker, and stands nowhere on the way in the clear."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure import Agent, Client, Run, RunContext, Step, ToolContext, Toolset, hook, tool
from perdure._encryption import KEYS_VARIABLE
from perdure.context.auth import RunFacts
from perdure.embedded.home import current_home
from perdure.embedded.record import ServerInfo, write_record
from perdure.errors import AbortError, AuthContextError, AuthContextUnavailableError, RunCancelledError
from perdure.ports.toolset import ListedTool
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import WORKFLOW_TYPE
from tests.support.checks import results, users
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

SECRET = "tok-7f3a9c-do-not-tell"
ANA = {"user": "ana", "token": SECRET}
K1, K2 = (f"{name}:{base64.b64encode(name.encode() * 16).decode()}" for name in ("k1", "k2"))


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, K1)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))


@tool
async def whoami(ctx: ToolContext) -> str:
    """Who is it?"""
    assert ctx.auth_context is not None
    return f"{ctx.auth_context['user']}, with {len(ctx.auth_context['token'])} characters"


@tool(inline=True)
def quick(ctx: ToolContext) -> str:
    """Who is it, quickly?"""
    assert ctx.auth_context is not None
    return f"quick {ctx.auth_context['user']}"


def user(ctx: RunContext) -> str:
    return str(ctx.auth_context["user"]) if ctx.auth_context else "nobody"


def prompt(ctx: RunContext) -> str:
    return f"You act for {user(ctx)}."


def speaker() -> Agent:
    """Says for whom it is asked."""
    return Agent("speaker", ScriptedProvider(lambda request: request.system or ""), instructions=prompt)


async def history(run: Run) -> str:
    """All of it, payloads decoded."""
    raw = (await run.handle.fetch_history()).to_json_dict()

    def texts(value: Any) -> list[str]:
        if isinstance(value, Mapping):
            return [text for one in value.values() for text in texts(one)]
        if isinstance(value, list):
            return [text for one in value for text in texts(one)]
        if not isinstance(value, str):
            return []
        try:
            return [value, base64.b64decode(value, validate=True).decode()]
        except ValueError:
            return [value]

    return "\n".join(texts(raw))


@pytest.mark.server
async def test_it_reaches_all_code_of_the_author_and_stands_nowhere(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    @hook("before_llm_call")
    def before(ctx: RunContext) -> None:
        heard.append(f"model {user(ctx)}")

    @hook("before_tool_call")
    async def around(ctx: ToolContext, name: str) -> None:
        heard.append(f"{name} {user(ctx)}")

    @hook("on_finish")
    def end(ctx: RunContext) -> None:
        heard.append(f"end {user(ctx)}")

    script = ScriptedProvider([[call("whoami"), call("quick")], "Done."])
    agent = Agent("keeper", script, instructions=prompt, tools=[whoami, quick], hooks=[before, around, end])
    with caplog.at_level(logging.DEBUG):
        async with engine.served(agent) as client:
            run = await client.start(agent, "Go.", auth_context=ANA)
            response = await run.result()
            said = [event.model_dump_json() async for event in run.events()]
            status = (await run.status()).model_dump_json()
    assert results(response.messages) == [f"ana, with {len(SECRET)} characters", "quick ana"]
    assert response.messages[0].text == "You act for ana."
    assert sorted(heard) == ["end ana", "model ana", "model ana", "quick ana", "whoami ana"]
    everything = await history(run)
    assert "perdure1:k1:" in everything  # it is there, sealed
    stored = b"".join(path.read_bytes() for path in engine.store_path.parent.glob(f"{engine.store_path.name}*"))
    assert b"You act for ana." in stored  # its bytes can be searched
    for place in (everything, stored.decode(errors="replace"), "".join(said), status, caplog.text):
        assert SECRET not in place


async def test_it_reaches_toolsets_and_the_step_policy(engine: Engine) -> None:
    stepped: list[str] = []

    class Crm(Toolset):
        name = "crm"

        async def list(self, ctx: RunContext) -> list[ListedTool]:
            return [ListedTool(f"find_for_{user(ctx)}", "Find a customer.", {"type": "object", "properties": {}})]

        async def call(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> str:
            return f"{name}, asked by {user(ctx)}"

        def audience(self, ctx: RunContext) -> str:
            return user(ctx)

    @hook("on_iteration")
    def policy(step: Step, ctx: RunContext) -> None:
        stepped.append(user(ctx))

    script = ScriptedProvider([[call("find_for_ana")], "Done.", [call("find_for_ben")], "Done."])
    agent = Agent("keeper", script, toolsets=[Crm()], hooks=[policy])
    async with engine.served(agent) as client:
        for name in ("ana", "ben"):
            response = await (await client.start(agent, "Go.", auth_context={"user": name})).result()
            assert results(response.messages) == [f"find_for_{name}, asked by {name}"]
    assert stepped == ["ana", "ben"]


@pytest.mark.server
async def test_without_a_key_the_run_waits_and_says_for_which(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await engine.client()
    run = await client.start("speaker", "Hi.", auth_context=ANA)
    monkeypatch.setenv(KEYS_VARIABLE, K2)  # the worker's
    async with engine.served(speaker()):

        async def stuck() -> str | None:
            reason = (await run.status()).reason
            return reason if reason and "encrypted with key" in reason else None

        reason = await eventually(stuck, what="a reason")
    assert "encrypted with key 'k1', and this worker does not have it (it has: k2)" in reason
    monkeypatch.setenv(KEYS_VARIABLE, f"{K2},{K1}")
    async with engine.served(speaker()):
        assert (await run.result()).content == "You act for ana."
        again = await client.start("speaker", "Hi.", auth_context=ANA)
        assert (await again.result()).content == "You act for ana."
    assert "perdure1:k2:" in await history(again)


@pytest.mark.server
async def test_a_run_whose_key_the_worker_lacks_can_be_cancelled(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await engine.client()
    run = await client.start("speaker", "Hi.", auth_context=ANA)
    monkeypatch.setenv(KEYS_VARIABLE, K2)  # the worker's
    async with engine.served(speaker()), asyncio.timeout(60):

        async def stuck() -> bool:
            return "encrypted with key" in ((await run.status()).reason or "")

        await eventually(stuck, what="a call that waits for the key")
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
    row = await (await client.store()).get_run(run.id)
    assert row is not None
    assert (row.status, users(await run.transcript())) == ("cancelled", ["Hi."])


@pytest.mark.server
async def test_a_client_without_a_key_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_VARIABLE)
    client = await engine.client()
    named = f"c-{uuid.uuid4().hex}"
    with pytest.raises(AuthContextUnavailableError, match="openssl rand -base64 32"):
        await client.start("speaker", "Hi.", id=named, auth_context=ANA)
    with pytest.raises(AuthContextUnavailableError):
        await client.send("speaker", "Hi.", id=named, auth_context=ANA)
    assert [run.id for run in await client.list() if run.id == named] == []


@pytest.mark.server
async def test_the_embedded_server_needs_no_keys(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_VARIABLE)
    home = current_home().create()
    write_record(home, ServerInfo(1, engine.address, "127.0.0.1:1", "1", "now", "1", None))
    async with engine.served(speaker()) as client:
        run = await client.start("speaker", "Hi.", auth_context=ANA)
        assert (await run.result()).content == "You act for ana."
    assert SECRET not in await history(run)


async def test_each_message_of_a_session_may_bring_its_own(engine: Engine) -> None:
    named = f"c-{uuid.uuid4().hex}"

    async def said(client: Client, **options: Any) -> str:
        return (await (await client.send("speaker", "Hi.", id=named, **options)).result()).content

    async with engine.served(speaker()) as client:
        assert await said(client) == "You act for nobody."
        assert await said(client, auth_context=ANA) == "You act for ana."
        assert await said(client) == "You act for ana."
        turn = await client.run(named).send("Hi.", auth_context={"user": "ben"})
        assert (await turn.result()).content == "You act for ben."
        assert await said(client, auth_context={}) == "You act for nobody."


async def test_a_run_that_is_opened_again_acts_as_before(engine: Engine) -> None:
    async with engine.served(speaker()) as client:
        run = await client.start("speaker", "Hi.", auth_context=ANA)
        await run.result()
        assert (await (await run.send("Again.")).result()).content == "You act for ana."
        other = await client.send("speaker", "Who am I?", id=run.id)  # opens it with what this one brings
        assert (await other.result()).content == "You act for nobody."


async def test_a_token_of_another_run_is_refused(engine: Engine) -> None:
    async with engine.served(speaker()) as client:
        run = await client.start("speaker", "Hi.", auth_context=ANA)
        await run.result()
        first = await anext(run.handle.fetch_history_events())
        started = first.workflow_execution_started_event_attributes.input.payloads[0]
        stolen = json.loads(started.data)["auth_context"]
        start = {"agent": "speaker", "message": "Hi.", "auth_context": stolen}
        options: Any = {"task_queue": engine.task_queue}
        for name in (await find_child_id(client, run.id, 7), f"{run.id}-7"):  # the first as a subagent's would be
            other = await client.temporal.start_workflow(WORKFLOW_TYPE, start, id=name, **options)
            with pytest.raises(AuthContextError, match="made for another run, or was changed"):
                await client.run(other.id).result()


@pytest.mark.server
async def test_a_plain_client_sends_a_reference(engine: Engine) -> None:
    asked: list[tuple[str, RunFacts]] = []

    async def resolve(ref: str, run: RunFacts) -> dict[str, str]:
        asked.append((ref, run))
        if len(asked) == 1:
            raise OSError("the session store is down")
        return {"user": "ana", "token": SECRET}

    agent = Agent("keeper", ScriptedProvider([[call("whoami")], "Done."]), tools=[whoami], instructions=prompt)
    async with engine.served(agent, resolve_auth=resolve) as client:
        start = {"agent": "keeper", "message": "Go.", "auth_ref": "session-9", "context": {"tenant": "t"}}
        raw = await client.temporal.start_workflow(
            WORKFLOW_TYPE, start, id=f"c-{uuid.uuid4().hex}", task_queue=engine.task_queue
        )
        run = client.run(raw.id)
        response = await run.result()
    assert results(response.messages) == [f"ana, with {len(SECRET)} characters"]
    assert [ref for ref, _ in asked] == ["session-9"] * 4  # one attempt failed, two model calls, one tool call
    assert asked[0][1] == RunFacts(run.id, response.task_id, "keeper", {"tenant": "t"}, None)
    assert SECRET not in await history(run)


@pytest.mark.server
async def test_a_reference_that_nobody_can_resolve(engine: Engine) -> None:
    async def gone(ref: str, run: RunFacts) -> dict[str, str]:
        raise AbortError(f"session {ref} was revoked")

    client = await engine.client()
    run = await client.start("speaker", "Hi.", auth_ref="session-9")
    async with engine.served(speaker()):

        async def stuck() -> str | None:
            reason = (await run.status()).reason
            return reason if reason and "auth_ref" in reason else None

        assert "this worker has no resolve_auth" in await eventually(stuck, what="a reason")
    async with engine.served(speaker(), resolve_auth=gone):
        with pytest.raises(AbortError, match="session session-9 was revoked"):
            await run.result()


@pytest.mark.server
async def test_in_the_clear_it_is_refused_before_history_has_it(engine: Engine) -> None:
    async with engine.served(speaker()) as client:
        run = await client.start("speaker", "Hi.", mode="session")
        await run.turn().result()
        message = {"content": "Hi.", "auth_context": ANA}
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await run.handle.execute_update("send_message", message)
        assert "send an auth_ref" in str(caught.value.cause)
        assert SECRET not in str(caught.value.cause)
        await run.close()
        await run.result()
    assert SECRET not in await history(run)


async def test_a_message_that_joins_is_acted_on_when_it_is_taken(engine: Engine) -> None:
    """The calls of the reply before it run on behalf of who asked for them."""
    gate = Gate()

    @tool
    async def slow(ctx: ToolContext) -> str:
        """Take a while."""
        await gate()
        return user(ctx)

    replies: Any = [[call("slow"), call("whoami")], lambda request: f"{request.system} {users(request.messages)[-1]}"]
    agent = Agent("keeper", ScriptedProvider(replies), tools=[slow, whoami], instructions=prompt)
    async with engine.served(agent) as client:
        run = await client.start("keeper", "Go.", auth_context=ANA)
        await eventually(lambda: gate.entered, what="a tool call")
        await run.send("I am Ben.", auth_context={"user": "ben", "token": "t"})
        gate.open()
        response = await run.result()
    assert results(response.messages) == ["ana", f"ana, with {len(SECRET)} characters"]
    assert response.content == "You act for ben. I am Ben."
