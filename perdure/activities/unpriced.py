"""A limit of cost and a model whose price nobody knows: the limit would not hold, so the run does not go on."""

from __future__ import annotations

from ..agent import Agent
from ..definition import no_price
from ..errors import DefinitionError
from ..types.messages import Message


def unpriced(agent: Agent, message: Message, *, inherited: bool = False) -> DefinitionError | None:
    """What is wrong with a reply that cannot count towards ``cost_usd``; ``inherited``: a limit of the run's parent."""
    usage = message.usage
    if (
        not (inherited or agent.limits.limits_cost)
        or message.cost_usd is not None
        or usage is None
        or not usage.total_tokens
    ):
        return None
    return no_price(agent.name, message.model or agent.model_name)
