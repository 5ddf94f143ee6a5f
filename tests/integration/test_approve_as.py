"""``on_approval="approve"`` of a ``separate`` tool: refused for who asks, and possible as another person."""

from __future__ import annotations

import pytest

from perdure import Agent, Approval, tool
from perdure.cli.output import get_exit_code
from perdure.errors import ApprovalForbiddenError, InvalidInputError
from perdure.testing import ScriptedProvider, call, scripted
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import make_caller, serve


@tool(needs_approval=Approval(separate=True))
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


payer = Agent("payer", "openai:gpt-5", tools=[pay])


def test_a_separate_tool_is_approved_as_another_person() -> None:
    with scripted(payer, [call("pay", amount=3), "Done."]):
        assert payer.call_sync("Pay.", on_approval="approve", approve_as="ana").content == "Done."


def test_who_asks_is_refused_by_a_permission_error() -> None:
    with (
        pytest.raises(ApprovalForbiddenError, match="requested what led to call 'call_1'") as refused,
        scripted(payer, [call("pay", amount=3)]),
    ):
        payer.call_sync("Pay.", on_approval="approve")
    assert isinstance(refused.value, PermissionError)
    assert not isinstance(refused.value, InvalidInputError)
    assert get_exit_code(refused.value) == 5


def test_what_is_no_reply_is_refused_when_the_script_is_made() -> None:
    with pytest.raises(TypeError, match=r"replies\[1\] is 7"):
        scripted(payer, ["a", 7])


async def test_http_answers_403(engine: Engine) -> None:
    agent = Agent("payer", ScriptedProvider([call("pay", amount=3)]), tools=[pay])
    async with engine.served(agent) as client, serve(client, make_caller("ada", "admin")) as service:
        run = await client.start(agent, "Pay.", by="ada")

        async def is_asked() -> bool:
            return bool((await run.status()).approvals)

        await eventually(is_asked)
        [pending] = (await run.status()).approvals
        async with service.connect("ada") as http:
            event = {"type": "approval", "call_id": pending.call_id, "hash": pending.hash, "decision": "approve"}
            refused = await http.post(f"/sessions/{run.id}/events", json=event)
        assert (refused.status_code, refused.json()["error"]) == (403, "ApprovalForbiddenError")
        assert "Another person must approve it." in refused.text
        await run.terminate()
