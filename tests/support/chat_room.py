"""Users who chat with tests/workers/chatting.py, the model behind it, and the one right transcript of each."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from perdure import Client, Turn
from tests.servers.model_server import Call, Reply

T = TypeVar("T")
Persist = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Makes a request; where it may fail, again until it does not."""
ASKED = re.compile(r"message (\d+) of (user-\d+)")


def text(user: str, n: int) -> str:
    return f"message {n} of {user}"


def notes(n: int) -> list[int]:
    """Which of the first ``n`` messages are remembered: two of three."""
    return [one for one in range(n) if one % 3 != 2]


def answer(user: str, n: int) -> str:
    """The one right answer to the message."""
    return f"answer {n} to {user}" + ("" if n % 3 == 2 else f", {len(notes(n + 1))} noted")


def whole_turn(user: str, n: int) -> list[tuple[str, str]]:
    """Role and text of each message of a turn."""
    if n % 3 == 2:
        return [("user", text(user, n)), ("assistant", answer(user, n))]
    noted = ("tool", str(len(notes(n + 1))))
    return [("user", text(user, n)), ("assistant", ""), noted, ("assistant", answer(user, n))]


def said(request: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and text of each message of a request, but for instructions."""
    spoken = [message for message in request["messages"] if message["role"] not in ("system", "developer")]
    return [(message["role"], message.get("content") or "") for message in spoken]


class ChatModel:
    """Calls a tool for two of three messages: an activity, or inline. Remembers when it was asked for what."""

    def __init__(self) -> None:
        self.asked: dict[str, list[float]] = defaultdict(list)
        """By user, message and step (0, and 1 behind the tool): the moments."""
        self.wrong: list[str] = []
        """Requests whose conversation is not the one right one: a message lost, doubled or out of order."""

    def __call__(self, request: dict[str, Any]) -> Reply:
        spoken = said(request)
        found = ASKED.fullmatch([part for role, part in spoken if role == "user"][-1])
        assert found is not None, spoken[-1]
        n, user, (role, last) = int(found[1]), found[2], spoken[-1]
        step = int(role == "tool")
        self.asked[f"{user}/{n}/{step}"].append(time.time())
        if spoken != (right := build_conversation(user, n, step)):
            self.wrong.append(f"{user}/{n}/{step}: {spoken}, not {right}")
        if n % 3 != 2 and not step:
            return Reply(calls=[Call("jot" if n % 3 else "note", {"n": n})], delay=0.01)
        return Reply(text=f"answer {n} to {user}" + (f", {last} noted" if step else ""), delay=0.01)


def build_conversation(user: str, n: int, step: int) -> list[tuple[str, str]]:
    """What the model is asked with for message ``n``: before the tool, or behind it."""
    before = [part for one in range(n) for part in whole_turn(user, one)]
    return before + whole_turn(user, n)[: 3 if step else 1]


async def ask_once(request: Callable[[], Awaitable[T]]) -> T:
    """The request itself, whose failure is the test's."""
    return await request()


async def chat(
    client: Client,
    index: int,
    *,
    id: str,
    turns: int,
    max_events: int,
    longest: float,
    told: Callable[[int, str], None],
    persist: Persist = ask_once,
) -> None:
    """One user's conversation. Some messages are sent twice at once, as by a page that is loaded again; each third
    user waits as clients without perdure do; each fifth has ``max_events`` as limit of an execution's history.

    ``told`` is called with the number and text of each answer. A turn may take ``longest`` seconds.
    """
    user = f"user-{index}"
    context = {"user": user}
    if index % 5 == 0:
        options: dict[str, Any] = {"mode": "session", "context": context, "max_history_events": max_events}
        await persist(lambda: client.start("chatting", id=id, if_exists="attach", **options))
    opened: list[str | None] = []

    async def send(n: int) -> Turn:
        message = text(user, n)
        return await persist(
            lambda: client.send("chatting", message, id=id, message_id=f"m{n}", context=context),
        )

    async def wait(turn: Turn) -> str:
        return (await turn.result()).content

    for n in range(turns):
        async with asyncio.timeout(longest):
            sent = await asyncio.gather(*(send(n) for _ in range(2 if n % 5 == index % 5 else 1)))
            assert len({turn.task_id for turn in sent}) == 1, "a message that is sent twice counts once"
            turn = sent[0]
            assert turn.task_id not in opened, "the answer was there, so the next message opens a turn"
            opened.append(turn.task_id)
            waits = wait if index % 3 != 2 else wait_for_answer
            content: str = await persist(lambda turn=turn, waits=waits: waits(turn))
        assert content == answer(user, n)
        told(n, content)


async def wait_for_answer(turn: Turn) -> str:
    """As a client without perdure waits for it."""
    while (waited := await turn.run.handle.execute_update("wait_for_turn", turn.task_id))["state"] == "running":
        pass
    return str(waited["response"]["content"])
