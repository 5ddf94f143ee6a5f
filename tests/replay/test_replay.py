"""Every stored history replays with the workflow as it is now: a deploy does not break runs that are under way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from perdure.loop import lifecycle
from perdure.worker.replay import replay_histories
from perdure.workflows import agent
from tests.replay.record import HISTORIES
from tests.replay.scenarios import SCENARIOS
from tests.support.histories import idle_tasks

STORED = sorted(HISTORIES.glob("*/*.json"))


def _name(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


def read(file: Path, *changes: tuple[str, str]) -> WorkflowHistory:
    """A stored history, with texts in it replaced."""
    body = file.read_text()
    for old, new in changes:
        assert old in body, f"{old!r} is not in {file}"
        body = body.replace(old, new)
    started = json.loads(body)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], body)


async def replays(history: WorkflowHistory) -> str | None:
    """Why it does not: the workflow would do something else now."""
    (one,) = (await replay_histories({"history": history})).histories
    return one.error


@pytest.mark.fault("Workers", "A deploy changes perdure.", "Histories that older versions recorded are replayed.")
@pytest.mark.parametrize("file", STORED, ids=map(_name, STORED))
async def test_a_stored_history_replays(file: Path) -> None:
    if (error := await replays(read(file))) is not None:
        pytest.fail(
            f"{_name(file)} no longer replays: runs that are under way would get stuck after a deploy.\n{error}\n"
            "Guard the change with workflow.patched(...), or undo it. Do not record the history anew to make this pass."
        )


def test_every_kind_of_run_is_stored() -> None:
    stored = {file.name.partition(".")[0] for file in STORED}
    assert set(SCENARIOS) <= stored, "python -m tests.replay.record <version> <scenario>"


@pytest.mark.parametrize("file", STORED, ids=map(_name, STORED))
def test_each_task_that_received_something_ends_with_a_command(file: Path) -> None:
    """Else the SDK merges it with the next task: docs/decisions/028-commands-of-a-task.md."""
    assert [task for task in idle_tasks(read(file).events) if task.received] == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("one_tool", ('"tool.add"', '"tool.subtract"')),  # another activity
        ("parallel_tools", ('"activityId":"3"', '"activityId":"7"')),  # another order
        ("limit_finish", ('"perdure.model"', '"perdure.modell"')),
    ],
)
async def test_a_history_of_other_commands_does_not_replay(name: str, change: tuple[str, str]) -> None:
    """The check can fail."""
    error = await replays(read(HISTORIES / "0.1" / f"{name}.json", change))
    assert str(error).startswith("NondeterminismError: ")


async def test_a_history_that_ends_otherwise_does_not_replay() -> None:
    whole = json.loads((HISTORIES / "0.1" / "one_tool.json").read_text())
    ending = whole["events"][-1]
    last = [event for event in whole["events"] if "activityTaskCompletedEventAttributes" in event][-1]
    # The run completes right behind its last model call; here it would have completed before it.
    scheduled = last["activityTaskCompletedEventAttributes"]["scheduledEventId"]
    cut = whole["events"][: int(scheduled) - 1]
    history = {"events": [*cut, {**ending, "eventId": str(len(cut) + 1)}]}
    started = whole["events"][0]["workflowExecutionStartedEventAttributes"]
    error = await replays(WorkflowHistory.from_json(started["workflowId"], json.dumps(history)))
    assert str(error).startswith("NondeterminismError: ")


@pytest.mark.parametrize("name", ["one_tool", "session_closed_in_a_turn"])
async def test_a_run_goes_on_by_the_rules_with_which_it_began(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rules that count as newer, a history that began without a marker is replayed by the first ones."""
    began = []
    create = lifecycle.create_run_state
    monkeypatch.setattr(lifecycle, "create_run_state", lambda *given: began.append(given[-1]) or create(*given))
    monkeypatch.setattr(agent, "RULES", 3)
    assert await replays(read(HISTORIES / "0.1" / f"{name}.json")) is None
    assert began == [1]
