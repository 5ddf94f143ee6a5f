"""Where a test takes the place of the outside: the models of agents, and the server that calls on this machine use.

Both lists are empty except inside ``perdure.testing.scripted`` and ``block_models``; the last entry is asked first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from .model import Provider

models: list[Callable[[str, str, Provider | None], Provider | None]] = []
"""Functions of an agent's name, its model (``"provider:model"``) and, where it has one, the object that is its model:
the provider to ask in place of its own, or None."""
servers: list[Callable[[Any], AbstractAsyncContextManager[Any] | None]] = []
"""Functions of a list of agents: what serves them in place of ``local()`` and yields a client, or None."""


def model_in_place(agent: str, model: str, own: Provider | None = None) -> Provider | None:
    """The provider that a test has put in place of the agent's own."""
    found = (find(agent, model, own) for find in reversed(models))
    return next((provider for provider in found if provider is not None), None)


def server_in_place(agents: Any) -> AbstractAsyncContextManager[Any] | None:
    """What a test has put in place of the server on this machine."""
    found = (find(agents) for find in reversed(servers))
    return next((server for server in found if server is not None), None)
