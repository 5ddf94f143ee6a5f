"""``agent.call``: one call, one answer; what it passes on, where it waits, and what stays when it is given up."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Client, Message, RunContext
from perdure.errors import DefinitionError, InvalidInputError, NoWorkerError, RunCancelledError
from perdure.local_engine import engine as local_engine
from perdure.testing import ScriptedProvider
from tests.support import forkserver
from tests.support.checks import users
from tests.support.engine import ROOT, Engine
from tests.support.program import without_warnings
from tests.support.scripts import Gate
from tests.support.wait import eventually


class User(BaseModel):
    name: str


@pytest.fixture
def here(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """``Agent.call`` goes to the tests' server, queue and store."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", engine.address)
    monkeypatch.setenv("PERDURE_STORE_URL", str(engine.store_url))
    monkeypatch.setenv("PERDURE_TASK_QUEUE", engine.task_queue)
    return engine


def greeting(ctx: RunContext[User]) -> str:
    return f"Talk to {ctx.context.name}."


def talker(replies: Any) -> Agent:
    return Agent("talker", ScriptedProvider(replies), context=User, instructions=greeting)


@pytest.mark.server
async def test_context_and_history_reach_the_run(here: Engine) -> None:
    provider = ScriptedProvider(["Hi Ana.", "You said hi.", "Still Ana."])
    agent = Agent("talker", provider, context=User, instructions=greeting)
    first = await agent.call("Hi.", context=User(name="Ana"))
    assert first.messages[0].text == "Talk to Ana."
    second = await agent.call("What did I say?", context={"name": "Ana"}, history=first)
    assert users(second.messages) == ["Hi.", "What did I say?"]
    written = [Message.user("I am Ana."), Message.assistant("Hello Ana.")]
    third = await agent.call("Who am I?", context={"name": "Ana"}, history=written)
    assert [message.text for message in provider.requests[2].messages] == ["I am Ana.", "Hello Ana.", "Who am I?"]
    assert third.content == "Still Ana."


async def test_wrong_arguments_are_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(**options: Any) -> Any:
        raise AssertionError("it connects")

    monkeypatch.setattr(Client, "connect", never)
    agent = talker([])
    with pytest.raises(InvalidInputError, match="name: Field required"):
        await agent.call("Hi.")
    with pytest.raises(DefinitionError, match="tools names 'fly'"):
        await agent.call("Hi.", context=User(name="Ana"), override={"tools": ["fly"]})


async def test_with_a_client_its_workers_answer(engine: Engine) -> None:
    async with engine.served(talker(["Hi from the worker."])) as client:
        mine = talker(["never asked"])
        response = await mine.call("Hi.", context=User(name="Ana"), client=client)
        plain = await engine.client(store=False)
        again = await mine.call("Hi.", id=response.context_id, context=User(name="Ana"), client=plain)
    assert (response.content, again.content) == ("Hi from the worker.", "Hi from the worker.")
    assert response.messages
    assert again.messages == ()


@pytest.mark.server
@pytest.mark.parametrize("id", [None, "kept"])
async def test_without_a_worker_it_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch, id: str | None) -> None:
    client = await engine.client()
    run_id = id and f"{id}-{uuid.uuid4().hex[:8]}"
    agent = Agent("plain", ScriptedProvider(["Hi."]))
    with monkeypatch.context() as impatient:
        impatient.setattr(local_engine, "NO_WORKER_SECONDS", 0.5)
        with pytest.raises(NoWorkerError, match=f"no worker has polled task queue '{engine.task_queue}'") as caught:
            await agent.call("Hi.", id=run_id, client=client)
    if run_id is None:
        assert "The run was cancelled." in str(caught.value)
        (seen,) = await eventually(lambda: started(client))
        run_id = seen.id
    async with engine.served(agent):
        if id is None:
            with pytest.raises(RunCancelledError):
                await client.run(run_id).result()
            assert agent.provider.requests == []  # type: ignore[union-attr]
        else:
            assert (await agent.call("Hi.", id=run_id, client=client)).content == "Hi."


async def started(client: Client) -> list[Any]:
    """Runs on the client's task queue, and on those of calls beside it, as Temporal lists them."""
    return [run async for run in client.temporal.list_workflows(f"TaskQueue STARTS_WITH '{client.task_queue}'")]


async def held(engine: Engine, **options: Any) -> tuple[Agent, Gate, asyncio.Task[Any]]:
    """A call whose model is being asked."""
    gate = Gate()

    async def reply(request: Any) -> str:
        await gate()
        return "Done."

    agent = Agent("held", ScriptedProvider(reply))
    calling = asyncio.create_task(agent.call("Go.", **options))
    await eventually(lambda: gate.entered)
    return agent, gate, calling


@pytest.mark.server
async def test_a_call_that_is_given_up_cancels_its_run(here: Engine) -> None:
    _, gate, calling = await held(here)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert gate.left == 1  # the model is no longer asked
    client = await here.client()
    (seen,) = await eventually(lambda: started(client))
    with pytest.raises(RunCancelledError):
        await client.run(seen.id).result()


@pytest.mark.server
async def test_one_with_an_id_stays_and_is_gone_on_with(here: Engine) -> None:
    run_id = f"mine-{uuid.uuid4().hex[:8]}"
    agent, gate, calling = await held(here, id=run_id)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    client = await here.client()
    assert (await client.run(run_id).handle.describe()).close_time is None
    gate.open()
    assert (await agent.call("Go.", id=run_id)).content == "Done."
    assert (await agent.call("Go.", id=run_id)).content == "Done."  # and when it has ended
    assert len(agent.provider.requests) == 2  # type: ignore[union-attr]


@pytest.mark.server
def test_call_sync_with_a_client_of_another_loop(here: Engine) -> None:
    async def connected() -> Client:
        return await Client.connect()

    agent = Agent("plain", ScriptedProvider(["First.", "Second."]))
    client = asyncio.run(connected())
    said = [agent.call_sync(text, id=f"{here.task_queue}-{text}").content for text in ("a", "b")]
    assert said == ["First.", "Second."]
    attached = [agent.call_sync(text, id=f"{here.task_queue}-{text}", client=client).content for text in ("a", "b")]
    assert attached == said
    asyncio.run(client.close())


SCRIPT = """
    import asyncio, sys
    from perdure import Agent
    from perdure.testing import ScriptedProvider

    async def reply(request):
        print("asked", flush=True)
        await asyncio.Event().wait()

    agent = Agent("interrupted", ScriptedProvider(reply))
    try:
        agent.call_sync("Go.", id=sys.argv[1] if len(sys.argv) > 1 else None)
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
"""


@pytest.mark.server
@pytest.mark.parametrize("keep", [False, True], ids=["without id", "with id"])
async def test_ctrl_c_in_call_sync_is_a_keyboard_interrupt_and_nothing_else(
    here: Engine, tmp_path: Path, keep: bool
) -> None:
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(SCRIPT))
    run_id = f"kept-{uuid.uuid4().hex[:8]}"
    process = await forkserver.create_process(
        sys.executable,
        file,
        *([run_id] if keep else []),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"asked\n"
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    process.close()
    assert (without_warnings(out.decode()), err, process.returncode) == ("KeyboardInterrupt\n", b"", 0)
    client = await here.client()
    if keep:
        assert (await client.run(run_id).handle.describe()).close_time is None
    else:
        (seen,) = await eventually(lambda: started(client))
        with pytest.raises(RunCancelledError):
            await client.run(seen.id).result()
