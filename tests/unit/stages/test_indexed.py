"""What a run is told of the namespace with its replies."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.stages.interceptor import said_indexed, says_indexed
from perdure.types.approvals import Asks
from perdure.types.interface import ATTRIBUTES, PENDING, STATUS
from perdure.types.tool_calls import AsActivity, Call
from perdure.types.wire import ModelOutput
from tests.unit.stages.build import model_call

APPROVAL = Call(id="c", name="pay", disposition=AsActivity(timeout=1), approval=Asks(hash="h"))


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
    assert says_indexed(call, output) == says
    assert (said_indexed(call, output, tuple(ATTRIBUTES)) != output) == says


@pytest.mark.parametrize(
    ("names", "noted"),
    [(tuple(ATTRIBUTES), True), ((PENDING,), True), ((STATUS,), False), ((), False), (None, False)],
)
def test_the_memo_is_kept_where_the_number_is(names: tuple[str, ...] | None, noted: bool) -> None:
    said = said_indexed(model_call(iteration=1), ModelOutput(), names)
    assert (said.indexed, said.noted) == (names, noted)
