"""Replacements for tests: fake models of agents, fake servers for local calls, and named points where a test can act.

The lists of fakes are empty except inside ``perdure.testing.scripted`` and ``block_models``; the last entry is asked
first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, get_args

from .model import Provider

# ---
# Named points between an effect and its record, at which a test can cause a crash or an error.


Point = Literal[
    "model.begun",
    "model.answered",
    "model.recorded",
    "tool.claimed",
    "tool.acted",
    "tool.recorded",
    "webhook.taken",
    "webhook.started",
    "webhook.answered",
    "decision.taken",
    "decision.sent",
    "bulk.acted",
]
"""A moment of a worker, between an effect and its record:

- ``model.begun``: the model is about to be called
- ``model.answered``: its reply has arrived, and is not recorded
- ``model.recorded``: the reply is in the store, and not yet reported to Temporal
- ``tool.claimed``: the intent is recorded, and the tool has not started
- ``tool.acted``: the tool has run, and its outcome is not recorded
- ``tool.recorded``: its outcome is in the store, and not yet reported to Temporal
- ``webhook.taken``: an event for webhooks was taken from the outbox, and no delivery has started
- ``webhook.started``: its deliveries have started, and it is still in the outbox
- ``webhook.answered``: the endpoint has answered, and the attempt is not recorded
- ``decision.taken``: decisions that are due were taken from the store, and none was sent
- ``decision.sent``: the run has answered a decision, and the answer is not recorded
- ``bulk.acted``: a run of a bulk action was resumed or cancelled, and that is not recorded

Only ``perdure.testing`` listens (``kill_at``, ``at``). Without listeners a point costs one lookup in a dictionary.
"""
POINTS: tuple[str, ...] = get_args(Point)

listeners: dict[str, tuple[Callable[[], object], ...]] = {}
"""Listeners by point; a point without listeners is absent. Changes replace the whole tuple of a point."""


def reach_point(point: Point) -> None:
    """Call the listeners of ``point``. Their exceptions are raised here: they are the fault that a test requested."""
    if listeners:
        for listener in listeners.get(point, ()):
            listener()


fake_models: list[Callable[[str, str, Provider | None], Provider | None]] = []
"""Functions of an agent's name, its model (``"provider:model"``) and its own provider object if it has one: each
returns the provider to call instead, or None."""
fake_servers: list[Callable[[Any], AbstractAsyncContextManager[Any] | None]] = []
"""Functions of a list of agents: each returns a server that replaces ``local()`` and yields a client, or None."""


def find_fake_model(agent: str, model: str, own: Provider | None = None) -> Provider | None:
    """Return the provider with which a test replaces the agent's own, or None."""
    found = (find(agent, model, own) for find in reversed(fake_models))
    return next((provider for provider in found if provider is not None), None)


def find_fake_server(agents: Any) -> AbstractAsyncContextManager[Any] | None:
    """Return the server with which a test replaces the one on this machine, or None."""
    found = (find(agents) for find in reversed(fake_servers))
    return next((server for server in found if server is not None), None)
