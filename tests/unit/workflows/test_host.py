"""What the engine asks of the place in which a run takes place."""

from __future__ import annotations

from typing import NoReturn

import pytest

from perdure.workflows.host import Host, _record_wait, use_host


class Foreign(Host):
    """That of another run: whoever asks it, asks about the wrong run."""

    def info(self) -> NoReturn:
        raise LookupError


def test_a_run_that_is_collected_asks_nothing_of_another() -> None:
    """The garbage collector may end the coroutines of a run that the worker has dropped within another run."""
    with use_host(Foreign()):
        wait = _record_wait(commands=False)
        wait.__enter__()
        assert not wait.__exit__(GeneratorExit, GeneratorExit(), None)
        wait = _record_wait(commands=False)
        wait.__enter__()
        with pytest.raises(LookupError):
            wait.__exit__(None, None, None)
