"""Typed output of agents: the ``__finish__`` tool, and output validators."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from typing_extensions import TypeVar

from ..context.run_context import ContextT_contra, P, ReturnT_co, RunContext
from ..errors import DefinitionError, ParseError
from ..hooks.hook import evaluate_signature
from ..tools.context_type import takes_context
from ..tools.signature import dump_arguments
from ..types.interface import FINISH_TOOL
from ..types.json_schema import PlainSchema, explain_validation_error, remove_titles, runs_code
from ..types.messages import clean_text
from ..types.plain_json import find_json_flaw
from .validation import validate_list

if TYPE_CHECKING:
    from ..types.wire import FinalAnswer

TEMPLATE_ROOT = "finish"
"""Root element of the XML in which a model may write its answer instead of calling the tool."""
_FINISH_TOOL_DESCRIPTION = (
    "Ends the task with your answer. Call it alone, when everything else is done: "
    "only what you give here is returned, and other calls beside it are not run."
)


class OutputError(ValueError):
    """The model's answer does not fit the type; the message is written for the model."""


class OutputType:
    """A type that pydantic accepts, built once. A non-object is wrapped into one: tool arguments are an object."""

    def __init__(self, owner: str, kind: Any) -> None:
        """``owner`` declares the type, for errors: ``agent 'support'``. Raises ``DefinitionError`` for a type that
        pydantic does not accept."""
        from ..ports.model import ToolSpec

        self._owner = owner
        self._name = getattr(kind, "__name__", None) or repr(kind)
        where = f"{owner}: output={self._name:.100}"
        self.is_text = kind is str
        """Whether an answer is plain text, not JSON."""
        if kind is None or isinstance(kind, BaseModel | Mapping | list | str) or inspect.isroutine(kind):
            hint = "Give a type: a pydantic model, a dataclass, list[str], int, …"
            raise DefinitionError(f"{where} is a value", hint=hint)
        try:
            form = _build_text_finish_form() if self.is_text else _build_finish_form(kind)
        except Exception as error:  # a type's own schema hook may raise anything
            why = str(error).strip().partition("\n")[0]
            hint = "A pydantic model, a dataclass, a TypedDict, or a plain type has one."
            raise DefinitionError(f"{where} has no JSON Schema: {why}", hint=hint) from error
        self._adapter, self._arguments_adapter, self.schema, self.inside = form
        # ``schema`` is that of the tool's arguments; ``inside`` is the one argument that is the answer, None if all
        # arguments together are.
        self.runs_code = runs_code(self._adapter.core_schema)
        """Whether reading it may run the author's code, which must not block the worker's loop."""
        self.spec = ToolSpec(FINISH_TOOL, _FINISH_TOOL_DESCRIPTION, self.schema)
        """The tool, as the model sees it."""

    def read_arguments(self, arguments: Mapping[str, Any]) -> Any:
        """Read the value from the model's arguments. Runs the author's validators. Raises ``OutputError``."""
        try:
            value = self._arguments_adapter.validate_json(dump_arguments(arguments))
        except ValidationError as error:
            title = f"the arguments of {FINISH_TOOL} are not valid:"
            raise OutputError(explain_validation_error(error, title, self.schema.get("properties", {}))) from error
        except Exception as error:  # a validator of the author's raised, or values are not JSON
            raise OutputError(
                f"the arguments of {FINISH_TOOL} could not be read: {type(error).__name__}: {error}"
            ) from error
        return getattr(value, "inside") if self.inside else value  # noqa: B009  # a field made at run time

    def read_xml(self, text: str) -> dict[str, Any] | None:
        """Read the arguments that a model wrote into the template; None if ``text`` has none."""
        from .xml import parse_filled_template  # here: few models need a template

        try:
            filled = parse_filled_template(text, self.schema, TEMPLATE_ROOT)
        except RecursionError:  # hundreds of nested elements
            return None
        return filled if filled is None or isinstance(filled, dict) else {}

    @property
    def template(self) -> str:
        """The template that a model without ``tool_choice`` fills in."""
        from .xml import build_template

        return build_template(self.schema, TEMPLATE_ROOT)

    def validate_value(self, value: Any) -> Any:
        """Validate ``value``, which the author's code returned, against the type. Raises ``OutputError``."""
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            title = f"it is not a valid {self._name}:"
            raise OutputError(explain_validation_error(error, title, self.schema.get("properties", {}))) from error
        except Exception as error:  # a validator of the author's
            raise OutputError(f"it is not a valid {self._name}: {type(error).__name__}: {error}") from error

    def build_finish(self, value: Any) -> FinalAnswer:
        """Build the answer of a turn from ``value``. Raises ``OutputError`` if it cannot be JSON."""
        from ..types.wire import FinalAnswer  # here: no client builds one

        if self.is_text:
            return FinalAnswer(content=clean_text(value), called=True)
        try:
            plain = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
        except Exception as error:  # a serializer of the author's
            raise OutputError(f"the answer cannot be written as JSON: {type(error).__name__}: {error}") from error
        if why := find_json_flaw(plain):
            raise OutputError(f"the answer must be plain JSON: {why}")
        return FinalAnswer(content=json.dumps(plain, ensure_ascii=False), called=True, typed=True)

    def load_value(self, plain: Any) -> Any:
        """Convert a ``Response.output``, plain JSON, into a value of the type. Raises ``ParseError``."""
        if plain is None or self.is_text:
            return plain  # no output: the turn was stopped, or ended at a limit
        try:
            return self._adapter.validate_json(json.dumps(plain), by_alias=True, by_name=True)  # as it was written
        except Exception as error:  # a validator of the author's may raise anything
            raise ParseError(
                f"the output does not fit the type {self._name} of {self._owner}: {error}",
                hint="The run may have been served by other code. client.run(id).result() gives it as plain JSON.",
            ) from error

    def load_partial(self, plain: Any) -> Any:
        """Convert an output that is not complete, plain JSON, into a value of the type: the last item of a list or
        dictionary, and the fields that a ``TypedDict`` does not require, may be missing. Runs the author's validators.

        Raises ``ParseError`` if it does not fit the type yet.
        """
        if self.is_text and isinstance(plain, str):
            return plain
        try:
            return self._adapter.validate_json(json.dumps(plain), experimental_allow_partial="trailing-strings")
        except Exception as error:  # a validator of the author's may raise anything
            raise ParseError(f"the output does not fit the type {self._name} of {self._owner} yet: {error}") from error


_FinishForm = tuple[TypeAdapter[Any], TypeAdapter[Any], dict[str, Any], str | None]
"""Adapters of the output type and of the tool's arguments, their JSON Schema, and the argument that wraps the value."""


def _build_finish_form(kind: Any) -> _FinishForm:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    adapter.rebuild(raise_errors=True)  # report an unresolved name now
    schema = _inline_root_reference(remove_titles(adapter.json_schema(schema_generator=PlainSchema)))
    if schema.get("type") == "object" and "properties" in schema:
        json.dumps(schema, allow_nan=False)
        return adapter, adapter, schema, None
    name = "content" if kind is str else "value"
    value_field: Any = (kind, Field(alias=name, description="The answer"))
    wrapper = create_model("Finish", __config__=ConfigDict(extra="forbid"), inside=value_field)
    wrapped: TypeAdapter[Any] = TypeAdapter(wrapper)
    schema = remove_titles(wrapped.json_schema(schema_generator=PlainSchema))
    json.dumps(schema, allow_nan=False)
    return adapter, wrapped, schema, name


@cache
def _build_text_finish_form() -> _FinishForm:
    """Build the form for text output, cached: most agents use it."""
    return _build_finish_form(str)


def _inline_root_reference(schema: dict[str, Any]) -> dict[str, Any]:
    """Inline the top-level reference of a recursive type: APIs require an object at the root."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    defs = schema.get("$defs", {})
    return {**defs.get(reference.rpartition("/")[2], {}), "$defs": defs}


# ---
# Output validators: functions of the author's that check an answer before it is accepted.


OutputT_contra = TypeVar("OutputT_contra", default=Any, contravariant=True)


class ValidatesOutput(Protocol[P, ReturnT_co, OutputT_contra]):
    """A validator for type checkers: the function as it is, and what it is called with."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT_co: ...
    @overload
    def __call__(self, output: OutputT_contra, /) -> Any: ...


class ValidatesOutputInContext(Protocol[P, ReturnT_co, OutputT_contra, ContextT_contra]):
    """A validator that takes a context."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT_co: ...
    @overload
    def __call__(self, output: OutputT_contra, ctx: RunContext[ContextT_contra], /) -> Any: ...


_VALIDATOR_SIGNATURE_HINT = "It takes the output, or the output and a RunContext: def check(output, ctx): …"


@dataclass(frozen=True, slots=True)
class OutputValidator:
    """A sync or async function. It returns the answer, changed or not (None keeps it), or raises ``ModelRetry``."""

    fn: Callable[..., Any]
    name: str
    takes_context: bool

    def build_arguments(self, output: Any, context: Any) -> tuple[Any, ...]:
        """Return the arguments that ``fn`` is called with."""
        return (output, context) if self.takes_context else (output,)


def build_output_validators(agent: str, validators: Any) -> tuple[OutputValidator, ...]:
    """Build the ``validators`` of ``agent``. Raises ``DefinitionError`` for an invalid one."""
    listed = validate_list(agent, "output_validators", validators, "[check]")
    return tuple(build_output_validator(agent, validator) for validator in listed)


def build_output_validator(agent: str, fn: Any) -> OutputValidator:
    """Build one validator. Raises ``DefinitionError``."""
    if isinstance(fn, OutputValidator):
        return fn
    if not callable(fn):
        raise DefinitionError(
            f"agent {agent!r}: {fn!r:.100} is not an output validator", hint=_VALIDATOR_SIGNATURE_HINT
        )
    name = str(getattr(fn, "__name__", type(fn).__name__))
    signature = evaluate_signature(f"agent {agent!r}: the output validator {name!r}", fn)
    if signature is None:
        reason = f"Python does not tell the parameters of the output validator {name!r}"
        raise DefinitionError(f"agent {agent!r}: {reason}", hint="Write a def around it.")
    parameters = signature.parameters.values()
    positional = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    optional_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [item for item in parameters if item.default is item.empty and item.kind not in optional_kinds]
    if not positional or len(required) > 2 or any(item.kind is item.KEYWORD_ONLY for item in required):
        raise DefinitionError(
            f"agent {agent!r}: {name!r} cannot be called as an output validator", hint=_VALIDATOR_SIGNATURE_HINT
        )
    return OutputValidator(fn, name, len(positional) > 1 and takes_context(fn, positional[1]))
