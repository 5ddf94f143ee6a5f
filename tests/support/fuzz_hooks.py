"""What schemathesis loads into its own process, which has neither perdure nor these tests: ids of things that there
are, and what no answer may have. ``FUZZ_FACTS`` is a JSON file with both."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import schemathesis

PLACE = Path(os.environ["FUZZ_FACTS"])
FACTS = json.loads(PLACE.read_text())
ANSWERS = PLACE.with_suffix(".answers")


def is_positive(case: Any, location: str) -> bool:
    """Whether this part of a request was generated as the document has it."""
    for place, component in case.meta.components.items():
        if place.value == location:
            return bool(component.mode.is_positive)
    return True


def name_known_things(body: Any, known: random.Random) -> None:
    """Replace ids in a body, and leave out most of what makes sense only with others."""
    for item in body if isinstance(body, list) else ():
        name_known_things(item, known)
    if not isinstance(body, dict):
        return
    for name, ids in FACTS["body"].items():
        if name in body and known.random() < 0.8:
            body[name] = known.choice(ids)
    for name in FACTS["seldom"]:
        if known.random() < 0.8:
            body.pop(name, None)
    name_known_things(body.get("decisions"), known)


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """Name things that there are, in most requests that are otherwise as they should be: the rest is 404 at once."""
    known = random.Random(str(case.id))  # the same for the same case
    path = case.path_parameters or {}
    if path and is_positive(case, "path"):
        for name in path:
            ids = FACTS["ids"].get("schedule" if name == "id" and "/schedules" in case.path else name)
            if ids and known.random() < 0.8:
                path[name] = known.choice(ids)
    if is_positive(case, "body"):
        name_known_things(case.body, known)
    query = case.query or {}
    if is_positive(case, "query"):
        query |= {name: value for name, value in FACTS["query"].items() if name in query}
        for name in ("cursor", "after"):  # text that only an earlier answer gives
            if known.random() < 0.8:
                query.pop(name, None)
    if is_positive(case, "header") and case.headers is not None:
        case.headers.pop("Last-Event-ID", None)
        if "Idempotency-Key" in case.headers and known.random() < 0.8:
            case.headers["Idempotency-Key"] = str(case.id)  # else most are those of another request


@schemathesis.hook
def after_call(ctx: Any, case: Any, response: Any) -> None:
    """Note what was answered."""
    if case.method.upper() == case.operation.method.upper():
        with ANSWERS.open("a") as file:
            file.write(f"{case.operation.definition.raw['operationId']} {response.status_code}\n")


@schemathesis.hook
def filter_failure(ctx: Any, failure: Any, case: Any, response: Any) -> bool:
    """The document has the schema of a stream's whole text, as OpenAPI 3.1 has it: it is no schema of its events. What
    is wrong may also be refused as too large (413, 414, 431), and the type of a body is looked at before the method."""
    is_refused = "Schema-violating" in failure.title and response.status_code >= 400
    is_type = "undeclared method" in failure.title and response.status_code == 415
    return not is_refused and not is_type and "SSE event" not in failure.title


@schemathesis.check
def tells_no_secret(ctx: Any, response: Any, case: Any) -> None:
    """Neither the answer nor its headers have a planted secret, nor what another tenant has."""
    sent = repr((case.path_parameters, case.query, case.headers, case.body))
    told = response.content.decode(errors="replace") + repr(response.headers)
    for secret in FACTS["secrets"]:
        assert secret not in told or secret in sent, f"the answer has {secret!r}"


@schemathesis.check
def does_not_fail(ctx: Any, response: Any, case: Any) -> None:
    """No 5xx but 503, which says when to try again."""
    if response.status_code >= 500:
        assert response.status_code == 503, f"{response.status_code}: {response.content[:500]!r}"
        assert response.headers.get("retry-after"), "503 without Retry-After"


@schemathesis.check
def has_a_documented_status(ctx: Any, response: Any, case: Any) -> None:
    """The document names the status, also where its default would do; 405 is for methods that it does not have."""
    statuses = case.operation.definition.raw["responses"]
    method = case.method.lower()
    is_method = method == case.operation.method.lower()
    assert str(response.status_code) in statuses or not is_method, f"{response.status_code} is not documented"


@schemathesis.check
def is_refused(ctx: Any, response: Any, case: Any) -> None:
    """Without credentials: only what is public is answered."""
    if FACTS["is_anonymous"]:
        is_public = case.operation.definition.raw.get("security") == []
        assert is_public or response.status_code >= 400, f"{response.status_code} without credentials"
