"""What a callable says of itself: name, place, docstrings, parameters. What is wrong is an error here."""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import CodeType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from docstring_parser import Docstring, DocstringStyle, ParseError, parse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from ..errors import DefinitionError, ToolError
from ..types.messages import clean_text
from ..types.validation_errors import get_first_problem
from .context import RunContext, ToolContext
from .json_schema import PlainSchema, explain_validation_error, remove_titles, runs_code

# ---
# What a docstring says of a tool and of its parameters: Google, NumPy and Sphinx style.


# Not the parser's own guess: its fourth style, epydoc, takes any line that begins with "@" for markup.
_DOCSTRING_STYLES = (DocstringStyle.GOOGLE, DocstringStyle.NUMPYDOC, DocstringStyle.REST)


@dataclass(frozen=True, slots=True)
class ParsedDocstring:
    """Short and long text of the docstring, and the text of each parameter that has one."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(doc: str, names: Collection[str]) -> ParsedDocstring:
    """Read ``doc`` (already dedented) in the style that describes most of the parameters ``names``."""
    readings = [reading for style in _DOCSTRING_STYLES if (reading := _parse_docstring_style(doc, style)) is not None]
    # The first of equals wins.
    best = max(
        readings, key=lambda reading: (len(_get_parameter_texts(reading, names)), len(reading.meta)), default=None
    )
    if best is None or not best.meta:
        return ParsedDocstring(clean_text(doc.strip()))
    return ParsedDocstring(clean_text((best.description or "").strip()), _get_parameter_texts(best, names))


def _parse_docstring_style(doc: str, style: DocstringStyle) -> Docstring | None:
    try:
        return parse(doc, style)
    except ParseError:  # text that only looks like this style
        return None


def _get_parameter_texts(reading: Docstring, names: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for parameter in reading.params:
        for name in parameter.arg_name.split(","):  # NumPy style: "x, y : float"
            text = (parameter.description or "").strip()
            if text and name.strip() in names:
                found.setdefault(name.strip(), clean_text(text))
    return found


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that the model fills in. ``default`` is ``inspect.Parameter.empty`` without one."""

    name: str
    hint: Any
    default: Any


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """A callable as read by :func:`read_signature`."""

    name: str
    where: str
    """``file:line``, or the module of a callable without source."""
    docs: tuple[str, ...]
    """Docstrings, the most specific first."""
    is_async: bool
    parameters: tuple[Parameter, ...]
    context: str | None
    """Name of the parameter that takes the context."""

    def build_error(self, reason: str, hint: str) -> DefinitionError:
        """The error that says what is wrong with it, where it stands, and the way out."""
        return build_tool_error(self.name, self.where, reason, hint)


def build_tool_error(name: str, where: str, reason: str, hint: str) -> DefinitionError:
    """A ``DefinitionError`` about the tool ``name``."""
    return DefinitionError(f"tool {name!r} ({where}): {reason}", hint=hint)


def read_signature(fn: Any) -> FunctionSignature:
    """Read a function, bound method, partial or callable instance.

    Raises ``DefinitionError`` where a model could not call it, or not say with what.
    """
    if not callable(fn) or isinstance(fn, type):
        raise _build_not_a_function_error(fn)
    bottom = _unwrap_function(fn)
    name, where = _get_function_name(fn), _locate_function(bottom)
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in (fn, bottom)):
        raise build_tool_error(
            name, where, "a tool cannot be a generator", "Return the whole result, for instance as a list."
        )
    try:
        declared = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError, NameError) as error:
        raise build_tool_error(
            name, where, f"its parameters cannot be read: {error}", "Wrap it in a function with type hints."
        ) from error
    # What a partial has bound is the author's choice, maybe a secret: the model neither sees nor sets it.
    bound = fn.keywords if isinstance(fn, functools.partial) else {}
    parameters: list[Parameter] = []
    contexts: list[Parameter] = []
    for declaration in declared:
        if declaration.name in bound:
            continue
        parameter = _read_parameter(declaration, bottom, name, where)
        (contexts if _is_context_hint(parameter.hint) else parameters).append(parameter)
    if len(contexts) > 1:
        both = " and ".join(repr(parameter.name) for parameter in contexts)
        raise build_tool_error(name, where, f"{both} both take the context", "Keep one context parameter.")
    context = contexts[0].name if contexts else None
    return FunctionSignature(name, where, _collect_docstrings(fn), _is_async(fn), tuple(parameters), context)


def _build_not_a_function_error(fn: Any) -> DefinitionError:
    if not isinstance(fn, type):
        hint = "A tool is a function, a bound method, or an instance of a class with __call__."
        if isinstance(fn, list | tuple):
            hint = "The tools of a list are put in one by one: tools=[search, *background([researcher])]."
        elif hasattr(fn, "as_tool"):
            hint = "An agent that is called goes into subagents=[…]; or tools=[that_agent.as_tool()]."
        said = f"what is of type {type(fn).__name__} cannot be a tool: {fn!r:.100} is not callable"
        return DefinitionError(said, hint=hint)
    try:
        where = f"{inspect.getsourcefile(fn)}:{inspect.getsourcelines(fn)[1]}"
    except (OSError, TypeError):  # built in, or typed into an interpreter
        where = fn.__module__
    if "__call__" in dir(fn) and any("__call__" in vars(base) for base in fn.__mro__):
        return build_tool_error(fn.__name__, where, "a class cannot be a tool", f"Pass an instance: {fn.__name__}(…).")
    return build_tool_error(
        fn.__name__,
        where,
        "a class cannot be a tool",
        f"Give {fn.__name__} a __call__ method and pass an instance.",
    )


def _unwrap_function(fn: Any) -> Any:
    """The Python function under partials, methods, decorators, ``__call__``; its globals resolve hints."""
    if isinstance(fn, functools.partial):
        return _unwrap_function(fn.func)
    if inspect.ismethod(fn):
        return _unwrap_function(fn.__func__)
    if hasattr(fn, "__wrapped__"):
        return _unwrap_function(fn.__wrapped__)
    return fn if inspect.isroutine(fn) else _unwrap_function(type(fn).__call__)


def _is_async(fn: Any) -> bool:
    if isinstance(fn, functools.partial):
        return _is_async(fn.func)
    call = None if inspect.isroutine(fn) else type(fn).__call__
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def _locate_function(bottom: Any) -> str:
    code = getattr(bottom, "__code__", None)
    if isinstance(code, CodeType):
        return f"{code.co_filename}:{code.co_firstlineno}"
    return str(getattr(bottom, "__module__", None) or "built in")


def _get_function_name(fn: Any) -> str:
    own = getattr(fn, "__name__", None)
    if isinstance(own, str):
        return own
    if isinstance(fn, functools.partial):
        return _get_function_name(fn.func)
    given = getattr(fn, "name", None)
    return given if isinstance(given, str) else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(fn).__name__).lower()


def _collect_docstrings(fn: Any) -> tuple[str, ...]:
    if isinstance(fn, functools.partial):
        return _collect_docstrings(fn.func)
    if inspect.isroutine(fn) or hasattr(fn, "__wrapped__"):
        docs = [inspect.getdoc(fn)]
    else:
        given, cls = getattr(fn, "description", None), type(fn)
        # A dataclass without a docstring is given its signature as one.
        generated = (cls.__doc__ or "").startswith(f"{cls.__name__}(")
        docs = [
            given if isinstance(given, str) else None,
            inspect.cleandoc(cls.__call__.__doc__ or ""),  # not getdoc: it would find type's own
            "" if generated else inspect.cleandoc(cls.__doc__ or ""),
        ]
    return tuple(doc for doc in docs if doc)


def _read_parameter(declaration: inspect.Parameter, bottom: Any, tool: str, where: str) -> Parameter:
    name = declaration.name
    if declaration.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        stars = "*" if declaration.kind is inspect.Parameter.VAR_POSITIONAL else "**"
        raise build_tool_error(
            tool,
            where,
            f"a tool cannot take {stars}{name}",
            "Name each parameter; take a list or a dict for many.",
        )
    if declaration.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise build_tool_error(tool, where, f"{name!r} is positional-only", "Arguments go by name: take the / out.")
    if declaration.annotation is inspect.Parameter.empty:
        if name in ("self", "cls"):
            raise build_tool_error(
                tool, where, f"{name!r} is not bound", "Make the bound method a tool: tool(instance.method)."
            )
        raise build_tool_error(
            tool,
            where,
            f"parameter {name!r} has no type hint",
            f"Write for instance {name}: str; it becomes the schema.",
        )
    try:
        hint = _resolve_hint(declaration.annotation, bottom)
    except Exception as error:  # evaluating a hint runs any expression
        raise build_tool_error(
            tool,
            where,
            f"the type hint of {name!r} cannot be resolved: {type(error).__name__}: {error}",
            "Import or define its names at module level, not under `if TYPE_CHECKING:`.",
        ) from error
    return Parameter(name, hint, declaration.default)


def _resolve_hint(annotation: Any, bottom: Any) -> Any:
    holder = SimpleNamespace(__annotations__={"hint": annotation})
    # The context's own names work also where the author imports them for the type checker alone.
    names = {"RunContext": RunContext, "ToolContext": ToolContext, **getattr(bottom, "__globals__", {})}
    try:
        return get_type_hints(holder, names, include_extras=True)["hint"]
    except NameError:
        enclosing = _find_enclosing_locals(getattr(bottom, "__code__", None))
        return get_type_hints(holder, names | enclosing, include_extras=True)["hint"]


def _find_enclosing_locals(code: Any) -> dict[str, Any]:
    """Names of the function, still running, in which ``code`` was defined: for a tool made inside another."""
    frame = sys._getframe()
    while (up := frame.f_back) is not None:
        frame = up
        if any(const is code for const in frame.f_code.co_consts):
            return dict(frame.f_locals)
    return {}


def _is_context_hint(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_context_hint(get_args(hint)[0])
    if origin is Union or origin is UnionType:
        members = [member for member in get_args(hint) if member is not NoneType]
        return bool(members) and all(_is_context_hint(member) for member in members)
    cls = origin or hint
    return isinstance(cls, type) and issubclass(cls, RunContext)


# ---
# From a function's parameters to the JSON Schema that a model sees; from its arguments back to values.


class ArgumentsError(ToolError):
    """The model's arguments do not fit the tool; the message is written for the model."""


class Arguments:
    """Schema and validator of one function's arguments, both built once."""

    def __init__(self, function: FunctionSignature, name: str, descriptions: Mapping[str, str]) -> None:
        """Raises ``DefinitionError`` for a hint without a schema and a default that does not fit it."""
        self._function = function
        self._tool = name
        # The fields have names of their own: a parameter may be called `schema`, `copy` or `_x`.
        self._names = {f"p{i}": parameter.name for i, parameter in enumerate(function.parameters)}
        fields = {
            field_name: _build_argument_field(parameter, descriptions.get(parameter.name))
            for field_name, parameter in zip(self._names, function.parameters, strict=True)
        }
        try:
            model = _build_arguments_model(fields)
            self.schema = _build_arguments_schema(model)
        except Exception as error:  # a type's own schema hook may raise anything
            raise self._build_no_schema_error(fields, error) from error
        self._validator = model.__pydantic_validator__
        self.runs_code = runs_code(model.__pydantic_core_schema__)
        """Whether validating may run a function of the author's, which must not block the worker's loop."""
        self._check_defaults(model)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function, defaults included. Raises ``ArgumentsError``.

        They are read as JSON, which they came as: a strict ``datetime`` or enum takes its string.
        """
        try:
            values = self._validator.validate_json(_encode_arguments(arguments)).__dict__
        except ValidationError as error:
            raise ArgumentsError(self._explain_error(error)) from error
        except Exception as error:  # a validator of the author's, or values that are not JSON
            raise ArgumentsError(
                f"the arguments of {self._tool} could not be read: {type(error).__name__}: {error}"
            ) from error
        return {name: values[field_name] for field_name, name in self._names.items()}

    def _explain_error(self, error: ValidationError) -> str:
        return explain_validation_error(error, f"the arguments of {self._tool} are not valid:", self._names.values())

    def _build_no_schema_error(self, fields: Mapping[str, tuple[Any, FieldInfo]], error: Exception) -> Exception:
        for field_name, (hint, info) in fields.items():
            try:
                _build_arguments_schema(_build_arguments_model({field_name: (hint, info)}))
            except Exception as single:
                first = str(single).partition("\n")[0]
                return self._function.build_error(
                    f"the type hint of {self._names[field_name]!r} has no JSON Schema: {first}",
                    "Use plain types, Literal, enums, dataclasses, TypedDicts or pydantic models.",
                )
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
                why = get_first_problem(error)[1]
                way = "Allow None in its type: X | None." if info.default is None else "Change the default or the type."
                raise self._function.build_error(
                    f"the default {info.default!r:.100} of {name!r} does not fit its type: {why}", way
                ) from error


def _build_arguments_model(fields: Mapping[str, tuple[Any, FieldInfo]]) -> type[BaseModel]:
    model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)  # type: ignore[call-overload] # fields known at run time only
    if missing := fields.keys() - model.model_fields.keys():
        raise TypeError(f"{fields[min(missing)][0]} is no type of a parameter")  # ClassVar
    return model


def _build_arguments_schema(model: type[BaseModel]) -> dict[str, Any]:
    schema: dict[str, Any] = remove_titles(model.model_json_schema(schema_generator=PlainSchema))
    schema.setdefault("properties", {})  # some APIs want it also where there is nothing in it
    json.dumps(schema, allow_nan=False)  # an author's json_schema_extra may hold anything
    return schema


def _build_argument_field(parameter: Parameter, described: str | None) -> tuple[Any, FieldInfo]:
    options: dict[str, Any] = {"alias": parameter.name, "validation_alias": parameter.name}
    hint: Any = parameter.hint
    if isinstance(parameter.default, FieldInfo):  # x: int = Field(3, ge=1), as in a model
        hint = Annotated[hint, parameter.default]
    elif parameter.default is not inspect.Parameter.empty:
        options["default"] = parameter.default
    if described and not FieldInfo.from_annotation(hint).description:
        options["description"] = described
    return hint, Field(**options)


def _encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    try:
        return to_json(arguments)
    except ValueError:  # a lone surrogate
        return clean_text(json.dumps(arguments, ensure_ascii=False)).encode()
