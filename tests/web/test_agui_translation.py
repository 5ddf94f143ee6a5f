"""perdure's events as AG-UI's: whatever a model does, and wherever a client is cut off."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.client.decisions import RunWait
from perdure.events import (
    CallSaid,
    Event,
    MessageInjected,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    PathStep,
    RunEvent,
    ToolCompleted,
    ToolProgress,
    ToolStarted,
    TurnEvent,
)
from perdure.types.approvals import WaitingCall
from perdure.web.agui_events import AguiTranslator
from tests.web.agui_rules import StrictClient

CHILD = "s/1"


def build_reply(draw: Any, where: dict[str, Any], iteration: int, calls: list[CallSaid]) -> tuple[list[Event], str]:
    """The events of one model call: attempts that are retracted, and the one that counts."""
    events: list[Event] = []
    at = {**where, "iteration": iteration}
    for is_last in [False] * draw(st.integers(0, 2)) + [True]:
        text = draw(st.text(alphabet="abc ", max_size=6))
        pieces: list[tuple[str, str, int]] = [("thinking", "hm", 0)] if draw(st.booleans()) else []
        pieces += [("text", text, 0)] if text else []
        pieces += [("tool_call", json.dumps(call.arguments), index) for index, call in enumerate(calls)]
        cut = len(pieces) if is_last else draw(st.integers(0, len(pieces)))
        events.append(ModelStarted(**at))
        for kind, whole, index in pieces[:cut] if draw(st.booleans()) else []:
            half = draw(st.integers(0, len(whole)))
            named = {"call_id": calls[index].id, "name": calls[index].name} if kind == "tool_call" else {}
            for offset, part in ((0, whole[:half]), (half, whole[half:])):
                if part and (is_last or draw(st.booleans()) or offset == 0):
                    delta: Any = {"kind": kind, "text": part, "offset": offset, "index": index, **named, **at}
                    events.append(ModelDelta(**delta))
        if is_last:
            events.append(ModelCompleted(text=text, calls=tuple(calls), model="m", **at))
            return events, text
        if draw(st.booleans()):
            events.append(ModelRetracted(reason="RateLimitError", **at))
        else:  # the attempt of a lost worker is retracted by the store, and its number is not known
            events.append(ModelRetracted(reason="WorkerLost", **where))
    raise AssertionError


@st.composite
def turns(draw: Any) -> tuple[list[Event], list[str]]:
    """The events of a turn, with a subagent, and the texts of its replies in order of their first events."""
    top: dict[str, Any] = {"context_id": "s", "task_id": "k"}
    events: list[Event] = [TurnEvent(state="started", **top), MessageInjected(id="k|u1", content="hello", **top)]
    texts: list[str] = []
    for iteration in range(1, draw(st.integers(1, 3))):
        calls = [
            CallSaid(id=f"c{iteration}{n}", name="look", arguments={"n": n}) for n in range(draw(st.integers(0, 2)))
        ]
        replied, text = build_reply(draw, top, iteration, calls)
        events, texts = events + replied, [*texts, text]
        for call in calls:
            named: dict[str, Any] = {"call_id": call.id, "name": call.name, **top}
            kind = draw(st.sampled_from(["tool", "agent", "unknown"]))
            if kind == "tool":
                events += [ToolStarted(**named), ToolProgress(message="half", **named)]
            if kind == "agent":
                child: dict[str, Any] = {
                    "context_id": f"s/{call.id}", "task_id": "x", "path": (PathStep(agent="sub", call_id=call.id),)
                }  # fmt: skip
                said, text = build_reply(draw, child, 1, [])
                events += [ToolStarted(child_context_id=f"s/{call.id}", **named), RunEvent(state="started", **child)]
                events, texts = [*events, *said, TurnEvent(state="completed", **child)], [*texts, text]
            if kind != "unknown":
                events.append(ToolCompleted(content="seen", **named))
    replied, text = build_reply(draw, top, 9, [])
    events = [*events, *replied, TurnEvent(state="completed", content=text, **top)]
    numbered = [event.model_copy(update={"seq": seq}) for seq, event in enumerate(events, 1)]
    return numbered, [text for text in [*texts, text] if text]


def run_stream(
    events: list[Event], client: StrictClient, translator: AguiTranslator, messages: list[dict[str, Any]] | None
) -> None:
    frames = translator.start(messages)
    for frame in copy.deepcopy(frames):
        client.take(frame)
    for event in events:
        for frame in copy.deepcopy(translator.feed(event)):
            client.take(frame)
    for frame in copy.deepcopy(translator.finish()):
        client.take(frame)


@given(turns())
def test_a_client_ends_with_the_text_of_the_transcript(turn: tuple[list[Event], list[str]]) -> None:
    events, texts = turn
    sent = [{"id": "u1", "role": "user", "content": "hello"}]
    client = StrictClient(sent)
    run_stream(events, client, AguiTranslator("s", "k", version="1.0"), sent)
    assert client.texts() == texts
    assert client.end["outcome"] == {"type": "success"}
    assert client.unanswered == []


@given(turns(), st.data())
def test_a_stream_may_be_cut_and_continued_anywhere(turn: tuple[list[Event], list[str]], data: st.DataObject) -> None:
    events, texts = turn
    cut = data.draw(st.integers(0, len(events)))
    later = AguiTranslator("s", "k", version="1.0")
    later.rebuild(events[:cut], "k")
    ended = {event.context_id for event in events[cut:] if isinstance(event, ModelCompleted)}
    rest = [event for event in events[cut:] if not isinstance(event, ModelDelta) or event.context_id not in ended]
    client = StrictClient([{"id": "stale", "role": "assistant", "content": "stale"}])
    run_stream(rest, client, later, None)
    assert sorted(client.texts()) == sorted(texts)


@given(turns(), st.data())
def test_what_a_client_holds_keeps_its_place_wherever_it_was_cut_off(
    turn: tuple[list[Event], list[str]], data: st.DataObject
) -> None:
    """A client updates in place what a snapshot names, and appends the rest: both must come to the same order."""
    events, texts = turn
    cut = data.draw(st.integers(2, len(events)))
    sent = [{"id": "u0", "role": "user", "content": "before"}, {"id": "u1", "role": "user", "content": "hello"}]
    before, first = StrictClient(sent), AguiTranslator("s", "k", version="1.0")
    frames = first.start(sent) + [frame for event in events[:cut] for frame in copy.deepcopy(first.feed(event))]
    for frame in copy.deepcopy(frames[: data.draw(st.integers(1, len(frames)))]):
        before.take(frame)
    held = [{"content": "", **message, "id": message_id} for message_id, message in before.messages.items()]
    later = AguiTranslator("s", "k", version="1.0")
    later.rebuild(events[:cut], "k")
    assert later.merge(held, [])
    restated = [message["id"] for message in later.messages]
    assert len(set(restated)) == len(restated)
    kept = [message["id"] for message in held if message["id"] in restated]
    assert restated[: len(kept)] == kept
    ended = {event.context_id for event in events[cut:] if isinstance(event, ModelCompleted)}
    rest = [event for event in events[cut:] if not isinstance(event, ModelDelta) or event.context_id not in ended]
    client = StrictClient(held)
    run_stream(rest, client, later, None)
    assert sorted(client.texts()) == sorted(texts)


def test_a_client_that_has_not_seen_the_turn_begin_gets_the_whole_conversation() -> None:
    at: dict[str, Any] = {"context_id": "s", "task_id": "k"}
    translator = AguiTranslator("s", "k2", version="1.0")
    history: list[Event] = [TurnEvent(state="started", **at), MessageInjected(id="k|u1", content="hello", **at)]
    translator.rebuild(history, "k")
    held = [{"id": "u9", "role": "user", "content": "mine"}]
    assert not translator.merge(held, [])
    assert translator.merge(held, [], is_whole=True)
    assert [message["id"] for message in translator.messages] == ["u9", "u1"]


def test_a_failed_turn_is_an_error_and_an_interrupted_one_is_cancelled() -> None:
    base: dict[str, Any] = {"context_id": "s", "task_id": "k"}
    failed, stopped = StrictClient(), StrictClient()
    error = TurnEvent(state="failed", error_type="MaxIterationsError", error="too many", **base)
    run_stream([error], failed, AguiTranslator("s", "k", version="1.0"), [])
    assert (failed.end["type"], failed.end["code"]) == ("RUN_ERROR", "MaxIterationsError")
    end = TurnEvent(state="completed", finish_reason="interrupted", **base)
    run_stream([end], stopped, AguiTranslator("s", "k", version="1.0"), [])
    assert stopped.end["outcome"] == {"type": "cancelled"}


def build_wait(name: str, call_id: str, kind: str = "callback") -> RunWait:
    return RunWait("s", WaitingCall.model_validate({"call_id": call_id, "tool": name, "hash": "h", "kind": kind}))


def test_calls_of_the_pages_tools_end_the_run_with_success_and_others_interrupt_it() -> None:
    at: dict[str, Any] = {"context_id": "s", "task_id": "k", "iteration": 1}
    calls = (CallSaid(id="c1", name="open_page", arguments={}), CallSaid(id="c2", name="ask", arguments={}))
    events: list[Event] = [ModelStarted(**at), ModelCompleted(calls=calls, **at)]
    page, both = build_wait("open_page", "c1"), build_wait("ask", "c2", "question")
    outcomes = []
    for waits in ([page], [page, both]):
        translator = AguiTranslator("s", "k", version="1.0", frontend_tools=["open_page"])
        client = StrictClient()
        for frame in translator.start([]) + [frame for event in events for frame in translator.feed(event)]:
            client.take(copy.deepcopy(frame))
        for frame in translator.finish(waits):
            client.take(frame)
        outcomes.append(client.end["outcome"])
    assert outcomes[0] == {"type": "success", "pendingToolCallIds": ["c1"]}
    assert [interrupt["id"] for interrupt in outcomes[1]["interrupts"]] == ["s|c2|h"]


def test_a_result_of_a_tool_of_the_page_is_not_repeated_to_it() -> None:
    at: dict[str, Any] = {"context_id": "s", "task_id": "k"}
    calls = (CallSaid(id="c1", name="open_page", arguments={}),)
    translator = AguiTranslator("s", "k2", version="1.0", frontend_tools=["open_page"])
    translator.rebuild([ModelStarted(iteration=1, **at), ModelCompleted(iteration=1, calls=calls, **at)], "k")
    translator.start()
    assert translator.feed(ToolCompleted(call_id="c1", name="open_page", content="opened", **at)) == []
    assert translator.messages[-1]["content"] == "opened"


def test_a_client_of_0_x_gets_no_fields_of_1_0() -> None:
    translator = AguiTranslator("s", "k")
    frames = translator.start([]) + translator.finish()
    assert [sorted(frame) for frame in frames] == [["runId", "threadId", "type"], ["runId", "threadId", "type"]]
