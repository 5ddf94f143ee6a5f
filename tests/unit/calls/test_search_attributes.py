"""What a run is told of the namespace with its replies."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.calls.interceptor import attach_search_attributes, needs_search_attributes
from perdure.types.approvals import ApprovalTerms
from perdure.types.interface import PENDING_ATTRIBUTE, SEARCH_ATTRIBUTES, STATUS_ATTRIBUTE
from perdure.types.tool_calls import ActivityCall, Call
from perdure.types.wire import ModelOutput
from tests.unit.calls.build import model_call

APPROVAL = Call(id="c", name="pay", disposition=ActivityCall(timeout=1), approval=ApprovalTerms(hash="h"))


@pytest.mark.parametrize(
    ("input", "calls", "says"),
    [
        ({"iteration": 1}, (), True),
        ({"iteration": 2}, (), False),
        ({"iteration": 2}, (APPROVAL,), True),
        ({"iteration": 1, "purpose": "force_finish"}, (), True),
        ({"iteration": 1, "purpose": "close"}, (), False),
    ],
)
def test_which_replies_say_so(input: dict[str, Any], calls: tuple[Call, ...], says: bool) -> None:
    call, output = model_call(**input), ModelOutput(calls=calls)
    assert needs_search_attributes(call, output) == says
    assert (attach_search_attributes(call, output, tuple(SEARCH_ATTRIBUTES)) != output) == says


@pytest.mark.parametrize(
    ("names", "noted"),
    [
        (tuple(SEARCH_ATTRIBUTES), True),
        ((PENDING_ATTRIBUTE,), True),
        ((STATUS_ATTRIBUTE,), False),
        ((), False),
        (None, False),
    ],
)
def test_the_memo_is_kept_where_the_number_is(names: tuple[str, ...] | None, noted: bool) -> None:
    said = attach_search_attributes(model_call(iteration=1), ModelOutput(), names)
    assert (said.search_attributes, said.memo_is_written) == (names, noted)
