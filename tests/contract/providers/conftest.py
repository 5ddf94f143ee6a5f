"""A test of the contract runs with each adapter, or names those that it is about."""

from __future__ import annotations

import pytest

from tests.support.adapters import ADAPTERS, _no_environment, api, apis, share_event_loop

__all__ = ["_no_environment", "adapter", "api", "apis"]


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_event_loop(items)
