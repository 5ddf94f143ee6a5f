"""Rewrites the stored histories for a change of names: python -m tests.replay.transform

Until 0.1.0 names and formats change freely, and histories are not recorded anew for it, since a scenario could lose its
point unnoticed. What stands here is the last change; git has those before it. A diff shows changed names and nothing
else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from perdure.types.messages import Data
from perdure.types.wire import (
    CloseInput,
    CloseOutput,
    CompactInput,
    CompactOutput,
    ModelInput,
    ModelOutput,
    RemindInput,
    RemindOutput,
)
from tests.replay.record import HISTORIES

T = TypeVar("T")

Json = dict[str, Any]

ACTIVITIES = {"close": "perdure.close", "compact": "perdure.compact", "remind": "perdure.remind"}
"""The type of an activity whose ``purpose`` was not to call the model."""
TYPES: dict[str, tuple[type[Data], type[Data]]] = {
    "perdure.model": (ModelInput, ModelOutput),
    "perdure.compact": (CompactInput, CompactOutput),
    "perdure.close": (CloseInput, CloseOutput),
    "perdure.remind": (RemindInput, RemindOutput),
}


def convert_input(task: Json) -> str:
    """Convert the input of ``perdure.model`` as it was; return the type of the activity that now takes it."""
    name = ACTIVITIES.get(task.pop("purpose", "call"), "perdure.model")
    if name == "perdure.compact" and "window_halvings" in task:
        task["rewrites"] = task.pop("window_halvings")
    keep_fields(task, TYPES[name][0])
    return name


def keep_fields(value: Json, kind: type[Data]) -> None:
    """Remove the fields that only other purposes had."""
    for field in value.keys() - kind.model_fields.keys():
        del value[field]


def convert_start(value: Any) -> None:
    if isinstance(value, dict) and value.keys() == {"state", "continues"}:
        for work in value["state"].get("uncollected", ()):
            if work["activity"] == "perdure.model":
                work["activity"] = convert_input(work["input"])


# ---
# Where they stand in a history.


def transform_history(history: Json) -> None:
    types: dict[str, str] = {}
    collected: dict[str, str] = {}
    for event in history["events"]:
        for kind, attributes in event.items():
            match kind:
                case "workflowExecutionStartedEventAttributes" | "workflowExecutionContinuedAsNewEventAttributes":
                    rewrite(attributes.get("input"), convert_start)
                case "activityTaskScheduledEventAttributes":
                    name = attributes["activityType"]["name"]
                    if name == "perdure.model":
                        name = attributes["activityType"]["name"] = rewrite(attributes["input"], convert_input)
                    elif name == "perdure.collect":
                        collected[event["eventId"]] = rewrite(attributes["input"], convert_collect_input)
                    types[event["eventId"]] = name
                case "activityTaskCompletedEventAttributes":
                    scheduled = attributes["scheduledEventId"]
                    name = types[scheduled]
                    if name in TYPES:
                        rewrite(attributes["result"], lambda value, kind=TYPES[name][1]: keep_fields(value, kind))
                    elif name == "perdure.collect" and (field := collected[scheduled]) != "model":
                        rewrite(attributes["result"], lambda value, field=field: convert_collected(value, field))


def convert_collect_input(value: Json) -> str:
    """Convert what is collected; return the field in which it now is."""
    if (task := value.pop("model", None)) is None:
        return "model"
    field = convert_input(task).removeprefix("perdure.")
    value[field] = task
    return field


def convert_collected(value: Json, field: str) -> None:
    if (output := value.pop("model", None)) is not None:
        keep_fields(output, TYPES[f"perdure.{field}"][1])
        value[field] = output


def rewrite(payloads: Json | None, convert: Callable[[Any], T]) -> T | None:
    """Convert the JSON of payloads in place. One that is not changed keeps its bytes."""
    result = None
    for payload in (payloads or {}).get("payloads", ()):
        try:
            value = json.loads(base64.b64decode(payload["data"]))
        except ValueError:
            continue  # a client's, which is no JSON
        text = json.dumps(value)
        result = convert(value)
        if json.dumps(value) != text:
            data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
            payload["data"] = base64.b64encode(data).decode()
    return result


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
