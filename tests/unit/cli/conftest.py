from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import typer.testing


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """typer's runner reads the signatures of all commands for each one that it runs, which takes 50 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))
        yield
