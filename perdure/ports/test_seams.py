"""Where a test takes the place of the outside: the models of agents, and the server that calls on this machine use.

Both lists are empty except inside ``perdure.testing.scripted`` and ``block_models``; the last entry is asked first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, get_args

from .model import Provider

# ---
# Named points between an effect and its record, at which a test can let something happen: a crash, an error.
#
# model.begun      the model is about to be asked
# model.answered   its reply is there, and nobody has written it down
# model.recorded   the reply is in the store, and Temporal has not been told
# tool.claimed     the intent is recorded, and the tool has not begun
# tool.acted       the tool has done what it does, and nobody has written it down
# tool.recorded    its outcome is in the store, and Temporal has not been told
#
# ``perdure.testing`` listens (``kill_at``, ``at``); nobody else does, and then a point costs one look at a
# dictionary.


Point = Literal["model.begun", "model.answered", "model.recorded", "tool.claimed", "tool.acted", "tool.recorded"]
POINTS: tuple[str, ...] = get_args(Point)

listeners: dict[str, tuple[Callable[[], object], ...]] = {}
"""Who listens, by point; a point that nobody listens to is not in it. Whoever changes it puts whole tuples in."""


def reach_point(point: Point) -> None:
    """Tell whoever listens. What a listener raises comes out here: it is the fault that a test asked for."""
    if listeners:
        for listener in listeners.get(point, ()):
            listener()


fake_models: list[Callable[[str, str, Provider | None], Provider | None]] = []
"""Functions of an agent's name, its model (``"provider:model"``) and, where it has one, the object that is its model:
the provider to ask in place of its own, or None."""
fake_servers: list[Callable[[Any], AbstractAsyncContextManager[Any] | None]] = []
"""Functions of a list of agents: what serves them in place of ``local()`` and yields a client, or None."""


def find_fake_model(agent: str, model: str, own: Provider | None = None) -> Provider | None:
    """The provider that a test has put in place of the agent's own."""
    found = (find(agent, model, own) for find in reversed(fake_models))
    return next((provider for provider in found if provider is not None), None)


def find_fake_server(agents: Any) -> AbstractAsyncContextManager[Any] | None:
    """What a test has put in place of the server on this machine."""
    found = (find(agents) for find in reversed(fake_servers))
    return next((server for server in found if server is not None), None)
