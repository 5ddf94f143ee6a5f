"""Callback tools: a call is handed to a client (a browser, an editor, a person's own program), which answers it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perdure.errors import DefinitionError, ToolError
from perdure.hooks import Hook, HookSet
from perdure.ports import ToolSpec
from perdure.tools.arguments import ArgumentsError
from perdure.tools.context import RunContext
from perdure.tools.form import form_of
from perdure.tools.schema import PlainSchema, explained, untitled
from perdure.tools.tool import NeedsApproval, Tool
from perdure.types.duration import seconds
from perdure.types.form import misfit
from perdure.types.messages import clean
from perdure.types.question import ERROR_CHARS, AsCallback


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
            _named(name),
            name=name,
            description=clean(description),
            hooks=hooks,
            needs_approval=needs_approval,
        )
        self.where = "a client"
        self._adapter = None if isinstance(parameters, Mapping) else _adapter(name, parameters)
        self.parameters = _parameters(name, parameters, self._adapter)
        self.validates_by_code = self._adapter is not None
        self.form = _form(name, output)
        """JSON Schema of the result; None takes anything."""
        self.expires = _expires(name, expires)
        self.on_expiry = None if on_expiry is None else _said(name, on_expiry)
        self.spec = ToolSpec(self.name, self.description, self.parameters)
        seen = json.dumps([self.name, self.description, self.parameters, self.form, "callback"], sort_keys=True)
        self.definition = hashlib.sha256(seen.encode()).hexdigest()[:16]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} is run by a client")

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are. Raises ``ArgumentsError`` for those that do not fit."""
        if self._adapter is None:
            if (why := misfit(self.parameters, dict(arguments))) is not None:
                raise ArgumentsError(f"the arguments of {self.name} are not valid:\n- {why}")
            return dict(arguments)
        try:
            self._adapter.validate_python(dict(arguments))
        except ValidationError as error:
            title = f"the arguments of {self.name} are not valid:"
            raise ArgumentsError(explained(error, title, self.parameters["properties"])) from error
        return dict(arguments)

    def bind(self, arguments: Mapping[str, Any], context: RunContext[Any] | None = None) -> Callable[[], Any]:
        """A call that was asked for when it was a tool of this worker. Raises ``ToolError``."""
        raise ToolError(f"{self.name} is run by a client now: call it again")

    def ask(self, arguments: Mapping[str, Any]) -> AsCallback:
        """How a call of it is run. Raises ``ArgumentsError``."""
        self.validate(arguments)
        return AsCallback(form=self.form, expires=self.expires, on_expiry=self.on_expiry)


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


def _named(name: Any) -> Callable[[], None]:
    """A function without parameters: only its name counts."""
    if not isinstance(name, str):
        raise DefinitionError(f"a callback tool's name is text, not {name!r:.100}")

    def call() -> None:
        """Never called."""

    call.__name__ = name
    return call


def _adapter(name: str, kind: Any) -> TypeAdapter[Any]:
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


def _parameters(name: str, given: Any, adapter: TypeAdapter[Any] | None) -> dict[str, Any]:
    """A JSON Schema of an object. Raises ``DefinitionError``."""
    try:
        schema = given if adapter is None else untitled(adapter.json_schema(schema_generator=PlainSchema))
        plain = json.loads(json.dumps({"type": "object", "properties": {}, **schema}, allow_nan=False))
    except Exception as error:
        raise DefinitionError(f"callback tool {name!r}: its parameters have no JSON Schema: {error}") from error
    if plain["type"] != "object" or not isinstance(plain["properties"], dict):
        raise DefinitionError(
            f"callback tool {name!r}: its parameters are no object",
            hint='Arguments have names: {"type": "object", "properties": {"path": {"type": "string"}}}.',
        )
    return dict(plain)


def _form(name: str, output: Any) -> dict[str, Any] | None:
    try:
        return form_of(output)
    except (TypeError, ValueError) as error:
        raise DefinitionError(
            f"callback tool {name!r}: output={output!r:.100}: {error}",
            hint="Give a type that pydantic can take, or a JSON Schema.",
        ) from error


def _expires(name: str, given: Any) -> float | None:
    try:
        return None if given is None else seconds(given)
    except ValueError as error:
        raise DefinitionError(f"callback tool {name!r}: expires: {error}") from None


def _said(name: str, given: Any) -> str:
    if not isinstance(given, str) or len(given) > ERROR_CHARS:
        raise DefinitionError(f"callback tool {name!r}: on_expiry is a text of at most {ERROR_CHARS:,} characters")
    return clean(given)
