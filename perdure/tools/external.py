"""Callback tools: a call is handed to a client (a browser, an editor, a person's own program), which answers it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import DefinitionError, ToolError
from ..hooks import Hook, HookSet
from ..ports import ToolSpec
from ..types.forms import find_form_mismatch
from ..types.limits import parse_seconds
from ..types.messages import clean_text
from ..types.tool_calls import ANSWER_ERROR_CHARS, CallbackCall, RemoteCall
from .context import RunContext
from .json_schema import PlainSchema, build_form, explain_validation_error, remove_titles
from .signature import ArgumentsError
from .tool import DEFAULT_TIMEOUT, NeedsApproval, Tool


class CallbackTool(Tool):
    """A tool that a client runs. Made by :func:`callback_tool`."""

    read_elsewhere = True

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Any,
        *,
        output: Any = None,
        expires: float | str | timedelta | None = None,
        on_expiry: str | None = None,
        hooks: Sequence[Hook | HookSet] = (),
        needs_approval: NeedsApproval = False,
    ) -> None:
        """Arguments as of :func:`callback_tool`. Raises ``DefinitionError``."""
        super().__init__(
            _build_callback_stub(name),
            name=name,
            description=clean_text(description),
            hooks=hooks,
            needs_approval=needs_approval,
        )
        self.where = "a client"
        self._adapter = None if isinstance(parameters, Mapping) else _build_parameters_adapter(name, parameters)
        self.parameters = _build_callback_parameters(name, parameters, self._adapter)
        self.validates_by_code = self._adapter is not None
        self.form = _build_output_form(name, output)
        """JSON Schema of the result; None takes anything."""
        self.expires = _parse_callback_expiry(name, expires)
        self.on_expiry = None if on_expiry is None else _validate_expiry_text(name, on_expiry)
        self.spec = ToolSpec(self.name, self.description, self.parameters)
        seen = json.dumps([self.name, self.description, self.parameters, self.form, "callback"], sort_keys=True)
        self.definition = hashlib.sha256(seen.encode()).hexdigest()[:16]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} is run by a client")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are. Raises ``ArgumentsError`` for those that do not fit."""
        if self._adapter is None:
            if (why := find_form_mismatch(self.parameters, dict(arguments))) is not None:
                raise ArgumentsError(f"the arguments of {self.name} are not valid:\n- {why}")
            return dict(arguments)
        try:
            self._adapter.validate_python(dict(arguments))
        except ValidationError as error:
            title = f"the arguments of {self.name} are not valid:"
            raise ArgumentsError(explain_validation_error(error, title, self.parameters["properties"])) from error
        return dict(arguments)

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], Any]:
        """A call that was asked for when it was a tool of this worker. Raises ``ToolError``."""
        raise ToolError(f"{self.name} is run by a client now: call it again")

    def build_disposition(self, arguments: Mapping[str, Any]) -> CallbackCall:
        """How a call of it is run. Raises ``ArgumentsError``."""
        self.validate(arguments)
        return CallbackCall(form=self.form, expires=self.expires, on_expiry=self.on_expiry)


def callback_tool(
    name: str,
    description: str,
    parameters: Any = None,
    *,
    output: Any = None,
    expires: float | str | timedelta | None = None,
    on_expiry: str | None = None,
    hooks: Sequence[Hook | HookSet] = (),
    needs_approval: NeedsApproval = False,
) -> CallbackTool:
    """A tool that a client runs: ``callback_tool("open_file", "Open a file in the editor.", OpenFile, output=str)``.

    A call of it waits, without a worker's slot and for months if need be, until somebody answers it:
    ``run.answer(call_id, value)``, or the update ``answer_call`` of any Temporal client.

    ``parameters`` is a JSON Schema, shown to the model as it is, or a type that pydantic can take: an object either
    way, and by default one without fields. ``output``, a schema or a type too, says what an answer must look like; its
    validators do not run. The answer is what the model is told: a text as it is, everything else as JSON. ``expires``
    is in seconds, or text like ``"1h"``; the call is an error then, and ``on_expiry`` is what the model is told.
    ``needs_approval`` is as of :func:`~perdure.tools.tool.tool`: first somebody approves the call, then it waits for
    its answer. ``hooks`` too are as there: they see the call before a client does, and its answer before the model.

    Raises ``DefinitionError``.
    """
    return CallbackTool(
        name,
        description,
        {} if parameters is None else parameters,
        output=output,
        expires=expires,
        on_expiry=on_expiry,
        hooks=hooks,
        needs_approval=needs_approval,
    )


def _build_callback_stub(name: Any) -> Callable[[], None]:
    """A function without parameters: only its name counts."""
    if not isinstance(name, str):
        raise DefinitionError(f"a callback tool's name is text, not {name!r:.100}")

    def call() -> None:
        """Never called."""

    call.__name__ = name
    return call


def _build_parameters_adapter(name: str, kind: Any) -> TypeAdapter[Any]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        adapter.rebuild(raise_errors=True)
    except Exception as error:  # a type's own schema hook may raise anything
        why = str(error).strip().partition("\n")[0]
        raise DefinitionError(
            f"callback tool {name!r}: parameters={kind!r:.100} is no type that pydantic can take: {why}",
            hint='A pydantic model, a dataclass, a TypedDict, or {"type": "object", "properties": {…}}.',
        ) from error
    return adapter


def _build_callback_parameters(name: str, given: Any, adapter: TypeAdapter[Any] | None) -> dict[str, Any]:
    """A JSON Schema of an object. Raises ``DefinitionError``."""
    try:
        schema = given if adapter is None else remove_titles(adapter.json_schema(schema_generator=PlainSchema))
        plain = json.loads(json.dumps({"type": "object", "properties": {}, **schema}, allow_nan=False))
    except Exception as error:
        raise DefinitionError(f"callback tool {name!r}: its parameters have no JSON Schema: {error}") from error
    if plain["type"] != "object" or not isinstance(plain["properties"], dict):
        raise DefinitionError(
            f"callback tool {name!r}: its parameters are no object",
            hint='Arguments have names: {"type": "object", "properties": {"path": {"type": "string"}}}.',
        )
    return dict(plain)


def _build_output_form(name: str, output: Any) -> dict[str, Any] | None:
    try:
        return build_form(output)
    except (TypeError, ValueError) as error:
        raise DefinitionError(
            f"callback tool {name!r}: output={output!r:.100}: {error}",
            hint="Give a type that pydantic can take, or a JSON Schema.",
        ) from error


def _parse_callback_expiry(name: str, given: Any) -> float | None:
    try:
        return None if given is None else parse_seconds(given)
    except ValueError as error:
        raise DefinitionError(f"callback tool {name!r}: expires: {error}") from None


def _validate_expiry_text(name: str, given: Any) -> str:
    if not isinstance(given, str) or len(given) > ANSWER_ERROR_CHARS:
        raise DefinitionError(
            f"callback tool {name!r}: on_expiry is a text of at most {ANSWER_ERROR_CHARS:,} characters"
        )
    return clean_text(given)


# ---
# Remote tools: activities of other workers, in any language, which know nothing of perdure.


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
        self._has_raw_schema = isinstance(schema, Mapping)
        super().__init__(
            _build_remote_stub(name) if isinstance(schema, Mapping) else schema,
            name=name,
            description=description if description is not None or not self._has_raw_schema else "",
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
            self.parameters = _build_remote_parameters(name, schema)
        self.where = f"task queue {task_queue!r}"
        self.spec = ToolSpec(self.name, self.description, self.parameters)
        seen = json.dumps([self.name, self.description, self.parameters, idempotent, "remote"], sort_keys=True)
        self.definition = hashlib.sha256(seen.encode()).hexdigest()[:16]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} is run by the workers of that queue")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments; under a JSON Schema as they are, which is for the activity to check."""
        return dict(arguments) if self._has_raw_schema else super().validate(arguments)

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], Any]:
        """A call that was asked for when it was a tool of this worker. Raises ``ToolError``."""
        raise ToolError(f"{self.name} is run elsewhere now: call it again")

    def build_disposition(self, arguments: Mapping[str, Any]) -> RemoteCall:
        """How a call of it is run. Raises ``ToolError`` for arguments that do not fit."""
        self.validate(arguments)
        assert self.task_queue is not None, "checked"
        return RemoteCall(
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


def _build_remote_stub(name: str) -> Callable[[], None]:
    """A function without parameters, for a tool whose parameters are given as a schema."""

    def call() -> None:
        """Never called."""

    call.__name__ = str(name)
    return call


def _build_remote_parameters(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
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
