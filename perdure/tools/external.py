"""Tools that this worker does not run: callback tools, whose calls a client answers, and remote tools, which are
activities of another task queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import DefinitionError
from ..hooks import Hook, HookSet
from ..types.client_tools import ClientTool
from ..types.forms import find_form_mismatch
from ..types.json_schema import PlainSchema, build_form, build_type_adapter, explain_validation_error, remove_titles
from ..types.limits import parse_seconds
from ..types.messages import clean_text
from ..types.tool_calls import ANSWER_ERROR_CHARS, CallbackCall, RemoteCall
from .signature import ArgumentsError
from .tool import DEFAULT_TIMEOUT, ExternalTool, NeedsApproval, Tool, hash_definition


def _build_stub(name: Any) -> Callable[[], None]:
    """Build a function without parameters, for a tool that has a name and a schema only. Raises ``DefinitionError``."""
    if name is None:
        raise DefinitionError("a tool without a function needs a name", hint='For instance callback_tool("read", …).')

    def call() -> None: ...

    call.__name__ = str(name)
    return call


def _build_parameters(owner: str, schema: Any) -> dict[str, Any]:
    """Build the JSON Schema of an object from a schema or a ``TypeAdapter``. Raises ``DefinitionError``."""
    try:
        is_type = isinstance(schema, TypeAdapter)
        fields = remove_titles(schema.json_schema(schema_generator=PlainSchema)) if is_type else schema
        text = json.dumps({"type": "object", "properties": {}, **fields}, allow_nan=False)
        plain: dict[str, Any] = json.loads(text)
    except Exception as error:  # a type's own schema hook may raise anything
        hint = 'Give plain JSON: {"type": "object", "properties": {…}}.'
        raise DefinitionError(f"{owner}: its parameters have no JSON Schema: {error}", hint=hint) from error
    if plain["type"] != "object" or not isinstance(plain["properties"], dict):
        hint = 'Arguments have names: {"type": "object", "properties": {"path": {"type": "string"}}}.'
        raise DefinitionError(f"{owner}: its parameters are not an object", hint=hint)
    return plain


# ---
# Callback tools: a client (a browser, an editor, a person's own program) runs the call and sends its result.


class CallbackTool(ExternalTool):
    """A tool that a client runs. Made by :func:`callback_tool`."""

    run_by = "a client"

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Any,
        *,
        output: Any = None,
        expires: float | str | timedelta | None = None,
        on_expiry: str | None = None,
        summary: str | None = None,
        **options: Any,
    ) -> None:
        """Arguments as of :func:`callback_tool`. Raises ``DefinitionError``."""
        super().__init__(_build_stub(name), name=name, description=description, **options)
        owner = f"callback tool {name!r}"
        try:
            self._adapter = None if isinstance(parameters, Mapping) else build_type_adapter(parameters)
        except TypeError as error:
            hint = 'A pydantic model, a dataclass, a TypedDict, or {"type": "object", "properties": {…}}.'
            raise DefinitionError(f"{owner}: parameters={error}", hint=hint) from error
        self.parameters = _build_parameters(owner, self._adapter or parameters)
        self.validates_by_code = self._adapter is not None
        self.set_summary(summary, "a client")
        try:
            self.form = build_form(output)
            """JSON Schema of the result; None accepts any."""
        except (TypeError, ValueError) as error:
            hint = "Give a type that pydantic can take, or a JSON Schema."
            raise DefinitionError(f"{owner}: output={output!r:.100}: {error}", hint=hint) from error
        try:
            self.expires = None if expires is None else parse_seconds(expires)
        except ValueError as error:
            raise DefinitionError(f"{owner}: expires: {error}") from None
        if on_expiry is not None and not (isinstance(on_expiry, str) and len(on_expiry) <= ANSWER_ERROR_CHARS):
            raise DefinitionError(f"{owner}: on_expiry is a text of at most {ANSWER_ERROR_CHARS:,} characters")
        self.on_expiry = None if on_expiry is None else clean_text(on_expiry)
        self.where = "a client"
        self.definition = hash_definition(self, self.form, "callback")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged. Raises ``ArgumentsError`` for those that do not fit."""
        title, plain = f"the arguments of {self.name} are not valid:", dict(arguments)
        if self._adapter is None:
            if (mismatch := find_form_mismatch(self.parameters, plain)) is not None:
                raise ArgumentsError(f"{title}\n- {mismatch}")
            return plain
        try:
            self._adapter.validate_python(plain)
        except ValidationError as error:
            raise ArgumentsError(explain_validation_error(error, title, self.parameters["properties"])) from error
        return dict(arguments)

    def build_disposition(self, arguments: Mapping[str, Any]) -> CallbackCall:
        """Plan a call. Raises ``ArgumentsError``."""
        self.validate(arguments)
        return CallbackCall(form=self.form, expires=self.expires, on_expiry=self.on_expiry)


class DeclaredTool(CallbackTool):
    """A tool that the client of the turn has declared (``ClientTool``)."""

    def __init__(self, declared: ClientTool) -> None:
        """``declared`` is checked. Raises ``DefinitionError``."""
        super().__init__(declared.name, declared.description, declared.parameters)
        self.where = "the client of the turn"

    def build_disposition(self, arguments: Mapping[str, Any]) -> CallbackCall:
        """See base class."""
        return super().build_disposition(arguments).model_copy(update={"declared": True})


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
    summary: str | None = None,
) -> CallbackTool:
    """A tool that a client runs: ``callback_tool("open_file", "Open a file in the editor.", OpenFile, output=str)``.

    A call of it waits, without a worker's slot and for months if need be, until a client answers it:
    ``run.answer(call_id, value)``, or the update ``answer_call`` of any Temporal client.

    ``parameters`` is a JSON Schema, shown to the model as it is, or a type that pydantic can take: an object either
    way, and by default one without fields. ``output``, also a schema or a type, describes the answer; its
    validators do not run. The model gets the answer as the result: a text as it is, everything else as JSON.
    ``expires`` is in seconds, or text like ``"1h"``; a call that expires is an error, whose text is ``on_expiry``.
    ``needs_approval`` is as in :func:`~perdure.tools.tool.tool`: the call is approved first, and then waits for
    its answer. So are ``hooks``: they see the call before the client does, and its answer before the model does; and
    ``summary``.

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
        summary=summary,
    )


# ---
# Remote tools: activities of other workers, in any language, which know nothing of perdure.


class RemoteTool(ExternalTool):
    """A tool that is the activity ``tool.<name>`` of another task queue. Made by :func:`remote_tool`."""

    task_queue: str

    def __init__(
        self,
        name: str,
        schema: Mapping[str, Any] | Callable[..., Any],
        task_queue: str,
        *,
        description: str | None = None,
        summary: str | None = None,
        **options: Any,
    ) -> None:
        """Arguments as of :func:`remote_tool`. Raises ``DefinitionError``."""
        owner = f"remote tool {name!r}"
        if not isinstance(task_queue, str) or not task_queue:
            raise DefinitionError(f"{owner}: it has no task queue", hint='task_queue="prices".')
        self._has_function = callable(schema)
        if not isinstance(schema, Mapping) and not callable(schema):
            hint = 'Give {"type": "object", "properties": {…}}, or a function with the same parameters.'
            raise DefinitionError(f"{owner}: {schema!r:.100} is not a schema", hint=hint)
        function = _build_stub(name) if isinstance(schema, Mapping) else schema
        super().__init__(function, name=name, description=description, task_queue=task_queue, **options)
        if self.context_parameter is not None:
            hint = "It is given its arguments alone: leave that parameter out."
            raise DefinitionError(f"{owner}: {self.context_parameter!r} would take the context", hint=hint)
        if isinstance(schema, Mapping):
            self.parameters = _build_parameters(owner, schema)
        self.set_summary(summary, f"task queue {task_queue!r}")
        self.where = f"task queue {task_queue!r}"
        self.run_by = f"the workers of {self.where}"
        self.definition = hash_definition(self, self.idempotent, "remote")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the arguments against the function. Under a JSON Schema the activity has to, and they are returned
        unchanged."""
        return Tool.validate(self, arguments) if self._has_function else super().validate(arguments)

    def build_disposition(self, arguments: Mapping[str, Any]) -> RemoteCall:
        """Plan a call. Raises ``ToolError`` for arguments that do not fit."""
        self.validate(arguments)
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
    summary: str | None = None,
) -> RemoteTool:
    """A tool that other workers run, in any language: the activity ``tool.<name>`` of ``task_queue``.

    It gets the arguments as one JSON object, and what it returns, plain JSON of up to 256 KiB, is the result: a
    text as it is. The error that it fails with goes to the model. ``schema`` is the JSON Schema of the arguments, or a
    function with the same parameters, which is never called. ``timeout`` is in seconds: a call that has not ended by
    then runs again if it is ``idempotent``, at most ``retries`` times; else the model is told that its outcome is
    unknown. All these attempts have the same activity id, also after a reset: use it as an idempotency key. ``hooks``,
    ``needs_approval`` and ``summary`` are as in :func:`~perdure.tools.tool.tool`; hooks run in this worker, in
    activities of their own.

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
        summary=summary,
    )
