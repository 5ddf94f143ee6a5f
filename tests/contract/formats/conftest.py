"""What only one format has. What all have in common is in tests/contract/providers."""

from __future__ import annotations

import pytest

from tests.servers.model_server import ModelServer
from tests.support.adapters import Api, _no_environment, api, apis, share_event_loop

__all__ = ["_no_environment", "adapter", "api", "apis", "ask", "server"]


@pytest.fixture
def adapter(request: pytest.FixtureRequest) -> str:
    """Each module says its own."""
    return str(request.module.ADAPTER)


@pytest.fixture
def ask(api: Api) -> Api:
    """Ask the provider once, with the server answering by a rule; everything that was streamed."""
    return api


@pytest.fixture
def server(api: Api) -> ModelServer:
    return api.server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_event_loop(items)
