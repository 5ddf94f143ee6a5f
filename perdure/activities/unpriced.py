"""A limit of cost and a model whose price nobody knows, or of what nobody counts: the limit would not hold, so the run
does not go on."""

from __future__ import annotations

from ..agent import Agent
from ..definition import no_price, no_usage
from ..errors import DefinitionError
from ..ports import ModelReply
from ..types.messages import Message, Usage


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


def uncounted(agent: Agent, message: Message, used: Usage, *, inherited: bool = False) -> DefinitionError | None:
    """What is wrong with a reply without usage, where none of the turn's replies had any (``used``); ``inherited``: a
    limit of cost of the run's parent. One that lacks it beside others is let pass, and a refused or filtered one."""
    count = used + (message.usage or Usage())
    if count.total_tokens or message.cost_usd or message.finish_reason in ("veto", "refusal", "content_filter"):
        return None
    if agent.limits.limits_tokens:
        limit = "tokens"
    elif inherited or agent.limits.limits_cost:
        limit = "cost_usd"
    else:
        return None
    return no_usage(agent.name, message.model or agent.model_name, limit)


def priced(agent: Agent, summary: ModelReply, *, inherited: bool = False) -> ModelReply:
    """``summary``. Raises ``DefinitionError`` where it cannot count: another model may have written it."""
    made = summary.output
    said = Message(role="assistant", model=made.model or None, usage=made.usage, cost_usd=made.cost_usd)
    if (wrong := unpriced(agent, said, inherited=inherited)) is not None:
        raise wrong
    return summary
