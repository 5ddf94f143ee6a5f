"""Rewrites the stored histories for a change of names: python -m tests.replay.transform

Until 0.1.0 names and formats change freely, and histories are not recorded anew for it, since a scenario could lose its
point unnoticed. What stands here is the last change; git has those before it. A diff shows changed names and nothing
else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.replay.record import HISTORIES

Json = dict[str, Any]

RUN_STATE = {
    "heard": "parent_seen_at",
    "sought": "parent_checks",
    "seen": "turn_by_message_id",
    "seen_bytes": "turn_by_message_id_bytes",
    "named": "used_task_hashes",
    "waiting": "measured_inbox_count",
    "waiting_bytes": "measured_inbox_bytes",
    "background": "background_runs",
    "backgrounds": "background_count",
    "indexed": "search_attributes",
    "noted": "memo_is_written",
    "carry": "unsent",
    "clock": "worked_until",
    "past": "past_turns",
}
CALL_STATE = {
    "waiting": "approval_wait",
    "expects": "answer_wait",
    "decided": "approval",
    "cleared": "clearance",
    "returned": "external_result",
}
COMPACTION_STATE = {"tighter": "window_halvings", "behind": "refused_head", "due": "is_due", "done": "summaries"}
TURN_STATE = {"unasked": "replies_without_model"}
BRANCH = {"said": "label"}
MODEL_INPUT = {"behind": "refused_head", "tighter": "window_halvings"}
MODEL_OUTPUT = {"unasked": "is_synthetic", "indexed": "search_attributes", "noted": "memo_is_written"}


def rename(value: Json, names: Mapping[str, str]) -> Json:
    """``value`` with other names of its fields, in their order."""
    return {names.get(name, name): inner for name, inner in value.items()}


def change(value: Json, name: str, convert: Callable[[Any], Any]) -> None:
    """Convert the field ``name``, if it is there."""
    if value.get(name) is not None:
        value[name] = convert(value[name])


def each(convert: Callable[[Json], Json]) -> Callable[[list[Json]], list[Json]]:
    return lambda values: [convert(value) for value in values]


def convert_state(state: Json) -> Json:
    state = rename(state, RUN_STATE)
    change(state, "calls", each(lambda call: rename(call, CALL_STATE)))
    change(state, "turn", lambda turn: rename(turn, TURN_STATE))
    change(state, "compaction", lambda compaction: rename(compaction, COMPACTION_STATE))
    change(state, "branching", convert_branching)
    change(state, "uncollected", each(convert_uncollected))
    return state


def convert_branching(step: Json) -> Json:
    def convert_branch(branch: Json) -> Json:
        branch = rename(branch, {"asked": "request"})
        for name in ("request", "outcome"):
            change(branch, name, lambda value: rename(value, BRANCH))
        return branch

    change(step, "branches", each(convert_branch))
    return step


def convert_uncollected(activity: Json) -> Json:
    change(activity, "input", convert_model_input if activity["activity"] == "perdure.model" else lambda value: value)
    return activity


def convert_model_input(task: Json) -> Json:
    task = rename(task, MODEL_INPUT)
    change(task, "branches", each(lambda outcome: rename(outcome, BRANCH)))
    return task


def convert_model_output(output: Json) -> Json:
    output = rename(output, MODEL_OUTPUT)
    change(output, "branches", each(lambda request: rename(request, BRANCH)))
    return output


def convert_collect(value: Json, convert_model: Callable[[Json], Json]) -> Json:
    change(value, "model", convert_model)
    return value


# ---
# Where they stand in a history.


def transform_history(history: Json) -> None:
    types: dict[str, str] = {}
    for event in history["events"]:
        for kind, attributes in event.items():
            match kind:
                case "workflowExecutionStartedEventAttributes" | "workflowExecutionContinuedAsNewEventAttributes":
                    rewrite(attributes.get("input"), convert_start)
                case "activityTaskScheduledEventAttributes":
                    name = types[event["eventId"]] = attributes["activityType"]["name"]
                    if name == "perdure.model":
                        rewrite(attributes["input"], convert_model_input)
                    elif name == "perdure.collect":
                        rewrite(attributes["input"], lambda value: convert_collect(value, convert_model_input))
                case "activityTaskCompletedEventAttributes":
                    name = types[attributes["scheduledEventId"]]
                    if name == "perdure.model":
                        rewrite(attributes["result"], convert_model_output)
                    elif name == "perdure.collect":
                        rewrite(attributes["result"], lambda value: convert_collect(value, convert_model_output))


def convert_start(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"state", "continues"}:
        value["state"] = convert_state(value["state"])
    return value


def rewrite(payloads: Json | None, convert: Callable[[Any], Any]) -> None:
    """Convert the JSON of payloads. One that is not changed keeps its bytes."""
    for payload in (payloads or {}).get("payloads", ()):
        try:
            before = json.loads(base64.b64decode(payload["data"]))
        except ValueError:
            continue  # a client's, which is no JSON
        text = json.dumps(before)
        after = convert(before)
        if json.dumps(after) != text:
            data = json.dumps(after, ensure_ascii=False, separators=(",", ":")).encode()
            payload["data"] = base64.b64encode(data).decode()


def transform_files() -> Iterator[str]:
    """Rewrite the files; the names of those that changed."""
    for file in sorted(HISTORIES.glob("*/*.json")):
        history = json.loads(file.read_text())
        before = json.dumps(history)
        transform_history(history)
        if json.dumps(history) != before:
            events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in history["events"])
            file.write_text(f'{{"events":[\n{events}\n]}}\n')
            yield file.name


if __name__ == "__main__":
    print(*transform_files(), sep="\n")
