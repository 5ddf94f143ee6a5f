"""A limit of cost and a model whose price nobody knows: the limit would hold nothing back, and somebody should hear."""

from __future__ import annotations

import logging

from ..agent import Agent
from ..types.messages import Message

logger = logging.getLogger("perdure.worker")
_told: set[tuple[str, str]] = set()


def check_price(agent: Agent, message: Message) -> None:
    """Warn, once for each agent and model in this process, of a reply that cannot count towards ``cost_usd``."""
    limits, usage = agent.limits, message.usage
    limited = limits.cost_usd is not None or (limits.turn is not None and limits.turn.cost_usd is not None)
    if not limited or message.cost_usd is not None or usage is None or not usage.total_tokens:
        return
    model = message.model or agent.model_name
    if (agent.name, model) in _told:
        return
    _told.add((agent.name, model))
    logger.warning(
        "agent %s has a limit of cost_usd, but no price of %s is known: its calls count as free. Limit tokens too.",
        agent.name,
        model,
    )
