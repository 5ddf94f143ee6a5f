"""No test calls a real model by mistake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from types import TracebackType

from ..errors import ProviderError
from ..ports import ModelRequest, Provider, StreamEvent
from ..ports.seams import models
from .provider import ScriptedProvider


class ModelsBlockedError(ProviderError):
    """A test was about to call a real model. Not tried again."""


class block_models:  # noqa: N801  # used as a function, and as `with block_models():`
    """No real model is called any more by agents of this process: the call fails with ``ModelsBlockedError``.

    Scripted ones are: inside ``scripted``, and a ``ScriptedProvider`` that is an agent's model. So are the providers
    whose names are in ``allow``, for fakes of one's own. Blocks until the end of a ``with`` block, until ``remove()``,
    or for good: in a conftest.py a plain ``block_models()`` will do.
    """

    def __init__(self, *, allow: Iterable[str] = ()) -> None:
        self._allow = frozenset([allow] if isinstance(allow, str) else allow)
        models.insert(0, self._find)  # asked last: what is scripted is not blocked

    def remove(self) -> None:
        """Let real models be called again."""
        if self._find in models:
            models.remove(self._find)

    def __enter__(self) -> block_models:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _find(self, agent: str, model: str, own: Provider | None) -> Provider | None:
        allowed = isinstance(own, ScriptedProvider) or model.partition(":")[0] in self._allow
        return None if allowed else _Blocked(agent, model)


class _Blocked:
    """The provider that stands in place of a real one."""

    def __init__(self, agent: str, model: str) -> None:
        self._agent = agent
        self._model = model

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Never answers."""
        said = request.messages[-1].text if request.messages else ""
        raise ModelsBlockedError(
            f"agent {self._agent!r} was about to call {self._model}, and block_models() forbids it; it was to be told: "
            f"{said!r:.200}",
            hint=f"Script its replies: with scripted({self._agent}, [...]): …",
        )
        yield  # makes it a generator
