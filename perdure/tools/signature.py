"""Reads the signature of a tool: name, location, docstrings and parameters of a function; the JSON Schema and the
validator of its arguments. Raises ``DefinitionError``."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from types import CodeType, NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from ..context.run_context import RunContext, ToolContext
from ..errors import DefinitionError, ToolError
from ..types.json_schema import PlainSchema, explain_validation_error, remove_titles, runs_code
from ..types.messages import clean_text
from ..types.validation_errors import get_first_problem

if TYPE_CHECKING:
    from docstring_parser import Docstring


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """A callable as read by :func:`read_signature`."""

    name: str
    where: str
    """``file:line``, or the module of a callable without source."""
    description: str
    """Text of its docstring."""
    parameter_texts: Mapping[str, str]
    """Text of each parameter that its docstrings describe."""
    is_async: bool
    parameters: tuple[Parameter, ...]
    """The parameters that the model fills in, with resolved annotations."""
    context: str | None
    """Name of the parameter that takes the context."""
    context_hint: Any = None
    """Its resolved annotation."""

    def build_error(self, reason: str, hint: str) -> DefinitionError:
        """Build the error that names the tool, its location, what is wrong and the way out."""
        return _build_tool_error(self.name, self.where, reason, hint)


def _build_tool_error(name: str, where: str, reason: str, hint: str) -> DefinitionError:
    return DefinitionError(f"tool {name!r} ({where}): {reason}", hint=hint)


def read_signature(fn: Any) -> FunctionSignature:
    """Read a function, bound method, partial or callable instance.

    Raises ``DefinitionError`` if a model could not call it, or its parameters have no usable type hints.
    """
    if not callable(fn) or isinstance(fn, type):
        raise _build_not_a_function_error(fn)
    function = unwrap_function(fn)
    name, where = _get_function_name(fn), _locate_function(function)
    build_error = partial(_build_tool_error, name, where)
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in (fn, function)):
        raise build_error("a tool cannot be a generator", "Return the whole result, for instance as a list.")
    try:
        declarations = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError, NameError) as error:
        hint = "Wrap it in a function with type hints."
        raise build_error(f"its parameters cannot be read: {error}", hint) from error
    # What a partial has bound is the author's choice, maybe a secret: the model neither sees nor sets it.
    bound = fn.keywords if isinstance(fn, partial) else {}
    parameters: list[Parameter] = []
    contexts: dict[str, Any] = {}
    for declaration in declarations:
        if declaration.name in bound:
            continue
        parameter = _read_parameter(declaration, function, build_error)
        if is_context_hint(parameter.annotation):
            contexts[parameter.name] = parameter.annotation
        else:
            parameters.append(parameter)
    if len(contexts) > 1:
        names = " and ".join(map(repr, contexts))
        raise build_error(f"{names} both take the context", "Keep one context parameter.")
    text, parameter_texts = _read_docstrings(fn, [parameter.name for parameter in parameters])
    is_async, context = _is_async(fn), next(iter(contexts), None)
    return FunctionSignature(
        name, where, text, parameter_texts, is_async, tuple(parameters), context, contexts.get(context or "")
    )


def _build_not_a_function_error(fn: Any) -> DefinitionError:
    if not isinstance(fn, type):
        hint = "A tool is a function, a bound method, or an instance of a class with __call__."
        if isinstance(fn, list | tuple):
            hint = "The tools of a list are put in one by one: tools=[search, *background([researcher])]."
        elif hasattr(fn, "as_tool"):
            hint = "An agent that is called goes into subagents=[…]; or tools=[that_agent.as_tool()]."
        reason = f"a value of type {type(fn).__name__} cannot be a tool: {fn!r:.100} is not callable"
        return DefinitionError(reason, hint=hint)
    name, where = fn.__name__, fn.__module__
    with suppress(OSError, TypeError):  # built in, or typed into an interpreter
        where = f"{inspect.getsourcefile(fn)}:{inspect.getsourcelines(fn)[1]}"
    is_callable = any("__call__" in vars(base) for base in fn.__mro__)
    hint = f"Pass an instance: {name}(…)." if is_callable else f"Give {name} a __call__ method and pass an instance."
    return _build_tool_error(name, where, "a class cannot be a tool", hint)


def unwrap_function(fn: Any) -> Any:
    """Return the Python function under partials, methods, decorators, ``__call__``; its globals resolve hints."""
    if isinstance(fn, partial):
        return unwrap_function(fn.func)
    if inspect.ismethod(fn):
        return unwrap_function(fn.__func__)
    if hasattr(fn, "__wrapped__"):
        return unwrap_function(fn.__wrapped__)
    return fn if inspect.isroutine(fn) else unwrap_function(type(fn).__call__)


def _is_async(fn: Any) -> bool:
    if isinstance(fn, partial):
        return _is_async(fn.func)
    call = None if inspect.isroutine(fn) else type(fn).__call__
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def _locate_function(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        return f"{code.co_filename}:{code.co_firstlineno}"
    return str(getattr(function, "__module__", None) or "built in")


def _get_function_name(fn: Any) -> str:
    if isinstance(name := getattr(fn, "__name__", None), str):
        return name
    if isinstance(fn, partial):
        return _get_function_name(fn.func)
    name = getattr(fn, "name", None)
    return name if isinstance(name, str) else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(fn).__name__).lower()


def _collect_docstrings(fn: Any) -> list[str]:
    """Collect the docstrings of a callable, the most specific first."""
    if isinstance(fn, partial):
        return _collect_docstrings(fn.func)
    if inspect.isroutine(fn) or hasattr(fn, "__wrapped__"):
        docs = [inspect.getdoc(fn)]
    else:
        description, cls = getattr(fn, "description", None), type(fn)
        # A dataclass without a docstring is given its signature as one.
        is_generated = (cls.__doc__ or "").startswith(f"{cls.__name__}(")
        docs = [
            description if isinstance(description, str) else None,
            inspect.cleandoc(cls.__call__.__doc__ or ""),  # not getdoc: it would find type's own
            "" if is_generated else inspect.cleandoc(cls.__doc__ or ""),
        ]
    return [doc for doc in docs if doc]


def _read_docstrings(fn: Any, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Read the text of a callable, and the text of each parameter in ``names`` that has one."""
    text, parameter_texts = "", dict[str, str]()
    for doc in _collect_docstrings(fn):
        doc_text, doc_parameter_texts = _parse_docstring(doc, names)
        text = text or doc_text
        parameter_texts = doc_parameter_texts | parameter_texts
    return text, parameter_texts


def _parse_docstring(doc: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Read ``doc`` (already dedented) in the style that describes most of the parameters ``names``."""
    from docstring_parser import DocstringStyle, ParseError, parse  # here: a client defines no tools

    readings: list[tuple[Docstring, dict[str, str]]] = []
    # Not the parser's own guess: its fourth style, epydoc, takes any line that begins with "@" for markup.
    for style in (DocstringStyle.GOOGLE, DocstringStyle.NUMPYDOC, DocstringStyle.REST):
        with suppress(ParseError):  # text that only looks like this style
            reading = parse(doc, style)
            readings.append((reading, _get_parameter_texts(reading, names)))
    # The first of equals wins.
    best = max(readings, key=lambda reading: (len(reading[1]), len(reading[0].meta)), default=None)
    if best is None or not best[0].meta:
        return clean_text(doc.strip()), {}
    return clean_text((best[0].description or "").strip()), best[1]


def _get_parameter_texts(reading: Docstring, names: Collection[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for parameter in reading.params:
        text = clean_text((parameter.description or "").strip())
        for name in map(str.strip, parameter.arg_name.split(",")):  # NumPy style: "x, y : float"
            if text and name in names:
                texts.setdefault(name, text)
    return texts


def _read_parameter(
    declaration: Parameter, function: Any, build_error: Callable[[str, str], DefinitionError]
) -> Parameter:
    name, kind = declaration.name, declaration.kind
    if kind in (kind.VAR_POSITIONAL, kind.VAR_KEYWORD):
        stars = "*" if kind is kind.VAR_POSITIONAL else "**"
        raise build_error(f"a tool cannot take {stars}{name}", "Name each parameter; take a list or a dict for many.")
    if kind is kind.POSITIONAL_ONLY:
        raise build_error(f"{name!r} is positional-only", "Arguments go by name: take the / out.")
    if declaration.annotation is declaration.empty:
        if name in ("self", "cls"):
            raise build_error(f"{name!r} is not bound", "Make the bound method a tool: tool(instance.method).")
        hint = f"Write for instance {name}: str; it becomes the schema."
        raise build_error(f"parameter {name!r} has no type hint", hint)
    try:
        return declaration.replace(annotation=resolve_hint(declaration.annotation, function))
    except Exception as error:  # evaluating a hint runs any expression
        hint = "Import or define its names at module level, not under `if TYPE_CHECKING:`."
        reason = f"the type hint of {name!r} cannot be resolved: {type(error).__name__}: {error}"
        raise build_error(reason, hint) from error


def resolve_hint(annotation: Any, function: Any) -> Any:
    """Resolve an annotation of ``function``: by the locals around it, then by its globals. Raises what evaluating it
    raises."""
    holder = SimpleNamespace(__annotations__={"hint": annotation})
    # The context's own names work also where the author imports them for the type checker alone.
    names = {"RunContext": RunContext, "ToolContext": ToolContext, **getattr(function, "__globals__", {})}
    names |= _find_enclosing_locals(getattr(function, "__code__", None))
    return get_type_hints(holder, names, include_extras=True)["hint"]


def _find_enclosing_locals(code: Any) -> dict[str, Any]:
    """Return the locals of the running function in which ``code`` was defined: for a tool made inside a function."""
    frame = sys._getframe().f_back
    while frame is not None:
        if any(const is code for const in frame.f_code.co_consts):
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def is_context_hint(hint: Any) -> bool:
    """Whether the annotation is ``RunContext`` or ``ToolContext``, of any type, or a class of them."""
    origin = get_origin(hint)
    if origin is Annotated:
        return is_context_hint(get_args(hint)[0])
    if origin is Union or origin is UnionType:
        members = [member for member in get_args(hint) if member is not NoneType]
        return bool(members) and all(is_context_hint(member) for member in members)
    cls = origin or hint
    return isinstance(cls, type) and issubclass(cls, RunContext)


# ---
# JSON Schema of the parameters for the model; conversion of the model's arguments to values.


class ArgumentsError(ToolError):
    """The model's arguments do not fit the tool; the message is written for the model."""


class Arguments:
    """Schema and validator of one function's arguments, both built once."""

    def __init__(self, function: FunctionSignature, tool: str) -> None:
        """Raises ``DefinitionError`` for a hint without a schema and for a default that does not fit its type."""
        self._function = function
        self._tool = tool
        # The fields have names of their own: a parameter may be called `schema`, `copy` or `_x`.
        self._names = {f"p{i}": parameter.name for i, parameter in enumerate(function.parameters)}
        fields = {
            field_name: _build_argument_field(parameter, function.parameter_texts.get(parameter.name))
            for field_name, parameter in zip(self._names, function.parameters, strict=True)
        }
        try:
            model, self.schema = _build_arguments_model(fields)
        except Exception as error:  # a type's own schema hook may raise anything
            raise self._build_no_schema_error(fields, error) from error
        self._validator = model.__pydantic_validator__
        self.runs_code = runs_code(model.__pydantic_core_schema__)
        """Whether validation may run a function of the author's, which must not block the worker's loop."""
        self._check_defaults(model)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the model's arguments to keyword arguments for the function, with defaults. Raises
        ``ArgumentsError``.

        They are validated as JSON, which they came as: a strict ``datetime`` or enum takes its string.
        """
        subject = f"the arguments of {self._tool}"
        try:
            values = self._validator.validate_json(dump_arguments(arguments)).__dict__
        except ValidationError as error:
            text = explain_validation_error(error, f"{subject} are not valid:", self._names.values())
            raise ArgumentsError(text) from error
        except Exception as error:  # a validator of the author's, or values that are not JSON
            raise ArgumentsError(f"{subject} could not be read: {type(error).__name__}: {error}") from error
        return {name: values[field_name] for field_name, name in self._names.items()}

    def _build_no_schema_error(self, fields: Mapping[str, tuple[Any, FieldInfo]], error: Exception) -> Exception:
        for field_name, field in fields.items():
            try:
                _build_arguments_model({field_name: field})
            except Exception as field_error:
                first_line = str(field_error).partition("\n")[0]
                hint = "Use plain types, Literal, enums, dataclasses, TypedDicts or pydantic models."
                if "typing_extensions.TypedDict" in str(field_error):  # what pydantic says before Python 3.12
                    hint = "Import TypedDict from typing_extensions, which is installed with perdure."
                reason = f"the type hint of {self._names[field_name]!r} has no JSON Schema: {first_line}"
                return self._function.build_error(reason, hint)
        return self._function.build_error(f"its parameters have no JSON Schema: {error}", "Use plain types.")

    def _check_defaults(self, model: type[BaseModel]) -> None:
        empty = model.model_construct()
        for field_name, name in self._names.items():
            info = model.model_fields[field_name]
            if info.is_required() or info.default_factory is not None:
                continue
            try:
                self._validator.validate_assignment(empty, field_name, info.default)
            except ValidationError as error:
                reason = f"the default {info.default!r:.100} of {name!r} does not fit its type: "
                hint = "Change the default or the type."
                if info.default is None:
                    hint = "Allow None in its type: X | None."
                raise self._function.build_error(reason + get_first_problem(error)[1], hint) from error


def _build_arguments_model(fields: Mapping[str, tuple[Any, FieldInfo]]) -> tuple[type[BaseModel], dict[str, Any]]:
    """Build the model of the arguments and its JSON Schema. Raises what a type's schema hook raises."""
    model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)  # type: ignore[call-overload] # fields known at run time only
    if missing := fields.keys() - model.model_fields.keys():
        raise TypeError(f"{fields[min(missing)][0]} is not a type of a parameter")  # ClassVar
    schema: dict[str, Any] = remove_titles(model.model_json_schema(schema_generator=PlainSchema))
    schema.setdefault("properties", {})  # some APIs want it also if there are no arguments
    json.dumps(schema, allow_nan=False)  # an author's json_schema_extra may hold anything
    return model, schema


def _build_argument_field(parameter: Parameter, description: str | None) -> tuple[Any, FieldInfo]:
    options: dict[str, Any] = {"alias": parameter.name, "validation_alias": parameter.name}
    hint: Any = parameter.annotation
    if isinstance(parameter.default, FieldInfo):  # x: int = Field(3, ge=1), as in a model
        hint = Annotated[hint, parameter.default]
    elif parameter.default is not parameter.empty:
        options["default"] = parameter.default
    if description and not FieldInfo.from_annotation(hint).description:
        options["description"] = description
    return hint, Field(**options)


def dump_arguments(arguments: Mapping[str, Any]) -> bytes:
    """Encode a model's arguments as JSON, for a validator."""
    try:
        return to_json(arguments)
    except ValueError:  # a lone surrogate
        return clean_text(json.dumps(arguments, ensure_ascii=False)).encode()
