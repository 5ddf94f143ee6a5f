"""Remote tools: activities of other workers, in any language, which know nothing of perdure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perdure.errors import DefinitionError, ToolError
from perdure.hooks import Hook, HookSet
from perdure.ports import ToolSpec
from perdure.tools.context import RunContext
from perdure.tools.tool import DEFAULT_TIMEOUT, NeedsApproval, Tool
from perdure.types.wire import AsRemote


class RemoteTool(Tool):
    """A tool that is the activity ``tool.<name>`` of another task queue. Made by :func:`remote_tool`."""

    read_elsewhere = True

    def __init__(
        self,
        name: str,
        schema: Mapping[str, Any] | Callable[..., Any],
        task_queue: str,
        *,
        description: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        idempotent: bool = False,
        retries: int | None = None,
        hooks: Sequence[Hook | HookSet] = (),
        needs_approval: NeedsApproval = False,
    ) -> None:
        """Arguments as of :func:`remote_tool`. Raises ``DefinitionError``."""
        if not isinstance(task_queue, str) or not task_queue:
            raise DefinitionError(f"remote tool {name!r}: it has no task queue", hint='task_queue="prices".')
        if not isinstance(schema, Mapping) and not callable(schema):
            raise DefinitionError(
                f"remote tool {name!r}: {schema!r:.100} is no schema",
                hint='Give {"type": "object", "properties": {…}}, or a function with the same parameters.',
            )
        self._loose = isinstance(schema, Mapping)
        super().__init__(
            _named(name) if isinstance(schema, Mapping) else schema,
            name=name,
            description=description if description is not None or not self._loose else "",
            timeout=timeout,
            idempotent=idempotent,
            retries=retries,
            task_queue=task_queue,
            hooks=hooks,
            needs_approval=needs_approval,
        )
        if self.context_parameter is not None:
            raise DefinitionError(
                f"remote tool {name!r}: {self.context_parameter!r} would take the context",
                hint="It is given its arguments alone: leave that parameter out.",
            )
        if isinstance(schema, Mapping):
            self.parameters = _parameters(name, schema)
        self.where = f"task queue {task_queue!r}"
        self.spec = ToolSpec(self.name, self.description, self.parameters)
        seen = json.dumps([self.name, self.description, self.parameters, idempotent, "remote"], sort_keys=True)
        self.definition = hashlib.sha256(seen.encode()).hexdigest()[:16]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} is run by the workers of that queue")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments; under a JSON Schema as they are, which is for the activity to check."""
        return dict(arguments) if self._loose else super().validate(arguments)

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], Any]:
        """A call that was asked for when it was a tool of this worker. Raises ``ToolError``."""
        raise ToolError(f"{self.name} is run elsewhere now: call it again")

    def ask(self, arguments: Mapping[str, Any]) -> AsRemote:
        """How a call of it is run. Raises ``ToolError`` for arguments that do not fit."""
        self.validate(arguments)
        assert self.task_queue is not None, "checked"
        return AsRemote(
            task_queue=self.task_queue, timeout=self.timeout, idempotent=self.idempotent, retries=self.retries
        )


def remote_tool(
    name: str,
    schema: Mapping[str, Any] | Callable[..., Any],
    task_queue: str,
    *,
    description: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    idempotent: bool = False,
    retries: int | None = None,
    hooks: Sequence[Hook | HookSet] = (),
    needs_approval: NeedsApproval = False,
) -> RemoteTool:
    """A tool that other workers run, in any language: the activity ``tool.<name>`` of ``task_queue``.

    It is given the arguments as one JSON object, and what it returns, plain JSON of up to 256 KiB, is the result: a
    text as it is. What it fails with goes to the model. ``schema`` is the JSON Schema of the arguments, or a function
    with the same parameters, which is never called. ``timeout`` is in seconds: a call that has not ended by then is run
    again if ``idempotent``, at most ``retries`` times; else the model is told that its outcome is not known. The
    activity's id is the same for each of these, also after a reset: a key for what must happen once. ``hooks``
    and ``needs_approval`` are as of :func:`~perdure.tools.tool.tool`; hooks run in this worker, in activities of their
    own.

    Raises ``DefinitionError``.
    """
    return RemoteTool(
        name,
        schema,
        task_queue,
        description=description,
        timeout=timeout,
        idempotent=idempotent,
        retries=retries,
        hooks=hooks,
        needs_approval=needs_approval,
    )


def _named(name: str) -> Callable[[], None]:
    """A function without parameters, for a tool whose parameters are given as a schema."""

    def call() -> None:
        """Never called."""

    call.__name__ = str(name)
    return call


def _parameters(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Plain JSON that describes an object. Raises ``DefinitionError``."""
    try:
        plain = json.loads(json.dumps({"type": "object", "properties": {}, **schema}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DefinitionError(
            f"remote tool {name!r}: its schema is no plain JSON: {error}", hint='{"type": "object", "properties": {…}}'
        ) from error
    if plain["type"] != "object" or not isinstance(plain["properties"], dict):
        raise DefinitionError(
            f"remote tool {name!r}: its schema describes no object",
            hint='Arguments have names: {"type": "object", "properties": {"city": {"type": "string"}}}.',
        )
    return dict(plain)
