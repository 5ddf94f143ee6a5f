"""What requests ask of Temporal and of the store: counted, since times are the machine's."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from temporalio.client import Client as TemporalClient
from temporalio.service import ServiceClient

from perdure import Agent, Client
from perdure.ports.model import Completed, ModelRequest, StreamEvent
from perdure.testing import ScriptedProvider
from perdure.types.messages import TextPart
from tests.support.engine import Engine
from tests.support.following import Slow, left_tasks
from tests.support.wait import eventually
from tests.support.web import read_frames, serve

STREAM = {"accept": "text/event-stream"}
ASK, DESCRIBE = "update_workflow_execution", "describe_workflow_execution"
LIST, WAIT = "list_workflow_executions", "get_workflow_execution_history"


class CountingService(ServiceClient):
    """Hands requests on to another service, and counts them by method."""

    def __init__(self, inner: ServiceClient) -> None:
        super().__init__(inner.config)
        self.counts: Counter[str] = Counter()
        self._inner = inner

    @property
    def worker_service_client(self) -> Any:
        return self._inner.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        self._inner.update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        self._inner.update_api_key(api_key)

    async def _rpc_call(self, rpc: str, *arguments: Any, **options: Any) -> Any:
        self.counts[rpc] += 1
        return await self._inner._rpc_call(rpc, *arguments, **options)

    def take(self) -> dict[str, int]:
        """The counts since the last time."""
        counts = dict(self.counts)
        self.counts.clear()
        return counts


async def connect(engine: Engine) -> tuple[Client, CountingService]:
    """A client, and the counts of its requests to Temporal."""
    client = await engine.client()
    service = CountingService(client.temporal.service_client)
    client.temporal = TemporalClient(service)
    return client, service


def answering() -> Agent:
    return Agent("echo", ScriptedProvider(lambda request: f"heard: {request.messages[-1].text}"))


@asynccontextmanager
async def web(engine: Engine, *agents: Agent) -> AsyncIterator[tuple[Client, httpx.AsyncClient, CountingService]]:
    """A client for the test, a caller of a service, and what the service asks of Temporal."""
    async with engine.served(*agents) as client:
        own, service = await connect(engine)
        async with serve(own) as replica, replica.connect() as http:
            yield client, http, service


async def read(http: httpx.AsyncClient, path: str) -> Any:
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_turn_by_http_asks_no_more_than_one_by_python(engine: Engine) -> None:
    models = [SlowLater("One ", "two."), SlowLater("One ", "two.")]
    async with web(engine, Agent("first", models[0]), Agent("second", models[1])) as (client, http, service):
        for name in ("first", "second"):
            await (await client.send(name, "Ready?", id=name)).result()
        sent = await http.post("/sessions/first/events", json={"type": "message", "content": "Go."})
        assert service.take() == {ASK: 1}
        by_http = asyncio.create_task(read(http, f"/sessions/first/turns/{sent.json()['task_id']}?wait=30"))
        await eventually(lambda: service.counts[ASK])  # it has looked, and the turn is in progress
        models[0].gate.open()
        assert (await by_http)["response"]["content"] == "One two."
        python, python_service = await connect(engine)
        turn = await python.send("second", "Go.", id="second")
        python_service.take()
        by_python = asyncio.create_task(turn.result())
        await eventually(lambda: python_service.counts[ASK])
        models[1].gate.open()
        assert (await by_python).content == "One two."
        # Both look once at first, and once when the store has the end, or again where the workflow is late.
        for counts in (service.take(), python_service.take()):
            assert counts[DESCRIBE] == 1
            assert counts[ASK] <= 4
            assert counts.keys() == {DESCRIBE, ASK}


async def test_a_wait_for_a_turn_ends_with_its_time_or_with_the_run(engine: Engine) -> None:
    model = SlowLater("One ", "two.")
    async with web(engine, Agent("slow", model)) as (client, http, _):
        await (await client.send("slow", "Ready?", id="s")).result()
        turn = await client.send("slow", "Go.", id="s")
        path = f"/sessions/s/turns/{turn.task_id}"
        assert (await read(http, f"{path}?wait=0.01"))["state"] == "running"
        waiting = asyncio.create_task(read(http, f"{path}?wait=30"))
        await client.run("s").cancel()
        assert (await waiting)["state"] == "cancelled"
        assert (await http.get("/sessions/s/turns/other?wait=30")).status_code == 404
        assert not left_tasks()


async def test_a_workflow_is_asked_once_for_a_completed_turn(engine: Engine) -> None:
    async with web(engine, answering()) as (client, http, service):
        sent = await client.send("echo", "one", id="s")
        await sent.result()
        path = f"/sessions/s/turns/{sent.task_id}"
        asked = await read(http, path)
        assert service.take() == {DESCRIBE: 1, ASK: 1}
        assert await read(http, path) == asked
        assert await read(http, f"{path}?wait=30") == asked
        assert service.take() == {}
        with contextlib.closing(sqlite3.connect(engine.store_path)) as store, store:  # as a call behind a reset does
            store.execute("UPDATE turns SET asked_at = '2999-01-01T00:00:00.000000Z'")
        assert await read(http, path) == asked
        assert service.take() == {DESCRIBE: 1, ASK: 1}


async def test_the_result_of_a_closed_session_is_asked_for_once(engine: Engine) -> None:
    async with web(engine, answering()) as (client, http, service):
        await (await client.send("echo", "one", id="s")).result()
        await client.run("s").close()
        await client.run("s").result()
        first = await read(http, "/sessions/s")
        assert service.take() == {DESCRIBE: 1, WAIT: 1}
        assert await read(http, "/sessions/s") == first
        assert service.take() == {DESCRIBE: 1}
        assert first["state"] == "completed"
        await (await client.send("echo", "two", id="s")).result()
        assert (await read(http, "/sessions/s"))["state"] == "idle"


async def test_a_page_of_events_asks_temporal_at_their_end_alone(engine: Engine) -> None:
    async with web(engine, answering()) as (client, http, service):
        await (await client.send("echo", "one", id="s")).result()
        page = await read(http, "/sessions/s/events?limit=2")
        assert [event["seq"] for event in page["data"]] == [1, 2]
        assert service.take() == {}
        rest = await read(http, f"/sessions/s/events?after={page['last']}")
        assert [event["seq"] for event in rest["data"]] == [*range(3, rest["last"] + 1)]
        assert service.take() == {DESCRIBE: 1}
        assert (await http.get("/sessions/other/events")).status_code == 404


async def test_a_page_of_sessions_is_one_listing(engine: Engine) -> None:
    """Of the runs of the time, also of those that the store does not have; a further page asks for closed ones, which
    may have been opened again since."""
    async with web(engine, answering()) as (client, http, service):
        for n in range(5):
            await (await client.send("echo", "one", id=f"s{n}", tenant="t")).result()
        await client.run("s0", tenant="t").close()
        await client.run("s0", tenant="t").result()
        await (await client.send("echo", "two", id="s0", tenant="t")).result()  # of this one there are two executions
        page = await read(http, "/sessions")
        assert sorted(row["id"] for row in page["data"]) == [f"@t/s{n}" for n in range(5)]
        assert {row["status"] for row in page["data"]} == {"idle"}
        assert {row["tenant"] for row in page["data"]} == {"t"}
        assert service.take() == {LIST: 1}
        first = await read(http, "/sessions?limit=3")
        assert [row["id"] for row in first["data"]] == ["@t/s4", "@t/s3", "@t/s2"]
        assert service.take() == {LIST: 1}
        second = await read(http, f"/sessions?limit=3&cursor={first['cursor']}")
        assert [(row["id"], row["status"]) for row in second["data"]] == [("@t/s1", "idle"), ("@t/s0", "idle")]
        assert service.take() == {LIST: 2}


class SlowLater(Slow):
    """Answers its first message at once: the store has the run then."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        if len(request.messages) == 1:
            yield Completed((TextPart(text="Yes."),), model=request.model)
            return
        async for event in super().stream(request):
            yield event


class Stream:
    """A follower by HTTP."""

    def __init__(self, http: httpx.AsyncClient, path: str) -> None:
        self.types: list[str] = []
        self.task = asyncio.create_task(self._follow(http, path))

    async def _follow(self, http: httpx.AsyncClient, path: str) -> None:
        async with http.stream("GET", path, headers=STREAM) as answer:
            async for _, event in read_frames(answer):
                self.types.append(event["type"])


async def test_followers_of_a_run_share_the_wait_for_its_end(engine: Engine) -> None:
    model = SlowLater("One ", "two ", "three.")
    async with web(engine, Agent("slow", model)) as (client, http, service):
        await (await client.send("slow", "Ready?", id="s")).result()
        await client.send("slow", "Go.", id="s")
        streams = [Stream(http, "/sessions/s/events") for _ in range(20)]
        await eventually(lambda: all("model.delta" in stream.types for stream in streams))
        assert service.take() == {DESCRIBE: 1, WAIT: 1}
        for stream in streams[:10]:  # the first is among them
            stream.task.cancel()
        await asyncio.gather(*(stream.task for stream in streams[:10]), return_exceptions=True)
        model.gate.open()
        await client.run("s").close()
        await asyncio.gather(*(stream.task for stream in streams[10:]))
        assert {tuple(stream.types[-3:]) for stream in streams[10:]} == {("turn", "run", "run")}
        assert service.take().keys() <= {DESCRIBE}
        await eventually(lambda: not left_tasks(), what="no task that is left")


async def test_followers_of_a_turn_share_the_questions_to_its_workflow(engine: Engine) -> None:
    model = SlowLater("One ", "two.")
    async with web(engine, Agent("slow", model)) as (client, http, service):
        await (await client.send("slow", "Ready?", id="s")).result()
        turn = await client.send("slow", "Go.", id="s")
        streams = [Stream(http, f"/sessions/s/turns/{turn.task_id}/events") for _ in range(20)]
        await eventually(lambda: all("model.delta" in stream.types for stream in streams))
        before = service.take()
        assert before[WAIT] == 1
        model.gate.open()
        await asyncio.gather(*(stream.task for stream in streams))
        assert all("turn" in stream.types[-2:] for stream in streams)
        # Each request has asked whether there is such a turn; behind its end it is asked once for all.
        assert before[ASK] > 20
        assert service.take()[ASK] < 10
        await eventually(lambda: not left_tasks(), what="no task that is left")


async def test_a_follower_that_comes_when_the_run_is_open_again_follows_on(engine: Engine) -> None:
    async with engine.served(answering()) as client:
        await (await client.send("echo", "one", id="s")).result()
        run = client.run("s")
        late = run.events()
        assert (await anext(late)).seq == 1  # it reads no further: its watch stays
        await run.close()
        await run.result()
        await eventually(lambda: not [name for name in left_tasks() if "_wait_for_end" in name])
        turn = await client.send("echo", "two", id="s")
        await turn.result()
        live = client.run("s").events()
        heard = [await anext(live)]
        while heard[-1].type != "turn" or heard[-1].task_id != turn.task_id or heard[-1].state == "started":
            heard.append(await anext(live))
        await live.aclose()
        await late.aclose()
        assert not left_tasks()
