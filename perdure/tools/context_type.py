"""The declared types of a run's context and input: values are checked by the client, and read by the worker. The
annotations of an author's functions are compared with them where the agent is defined."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypeAliasType, is_typeddict

from ..context.run_context import RunContext, ToolContext
from ..errors import DefinitionError, InvalidInputError
from ..types.json_schema import build_type_adapter
from ..types.plain_json import find_json_flaw
from ..types.validation_errors import describe_validation_error
from .signature import is_context_hint, resolve_hint, unwrap_function

_SCALARS = ("int", "float", "str", "bool", "bytes", "none", "date", "datetime")
_NON_OBJECT_TYPES = {*_SCALARS, "call", "list", "set", "frozenset", "tuple"}
_MODEL_SCHEMA_HOOK = BaseModel.__get_pydantic_core_schema__.__func__  # type: ignore[attr-defined] # a class method


class ContextType:
    """A type that pydantic can take, built once. Values travel as JSON objects."""

    def __init__(self, agent: str, kind: Any, field: str = "context") -> None:
        """``field`` is the agent's field that declares the type. Raises ``DefinitionError`` for a type that pydantic
        cannot take, and for one whose values cannot be JSON objects."""
        self._agent = agent
        self._kind = kind
        self._field = field
        self._name = getattr(kind, "__name__", None) or repr(kind)
        if isinstance(kind, BaseModel | Mapping):
            raise self._build_type_error("is a value", f"Give its type: {field}={type(kind).__name__}.")
        try:
            self.adapter: TypeAdapter[Any] = build_type_adapter(kind)
            """The pydantic adapter of the type."""
        except TypeError as error:
            hint = "A pydantic model, a dataclass or a TypedDict of plain types, defined before the agent."
            raise self._build_type_error(f"cannot be used: {error}", hint) from error
        if self.adapter.core_schema.get("type") in _NON_OBJECT_TYPES:
            hint = "A pydantic model, a dataclass or a TypedDict can."
            raise self._build_type_error("cannot be a JSON object", hint)

    def read(self, raw: Mapping[str, Any] | None) -> Any:
        """Validate ``raw`` and return the object. Raises ``InvalidInputError`` that names each wrong field."""
        try:
            return self.adapter.validate_json(json.dumps(raw or {}, allow_nan=False))
        except ValidationError as error:
            raise self._build_input_error(describe_validation_error(error, self._field, max_problems=10)) from error
        except Exception as error:  # a validator of the author's, or values that are not JSON
            raise self._build_input_error(f"{type(error).__name__}: {error}") from error

    def check(self, value: Any) -> dict[str, Any]:
        """Convert ``value``, a mapping or an instance, to the JSON object that a worker reads back.

        Raises ``InvalidInputError`` as :meth:`read`, and for an instance that changes on its way through JSON.
        """
        if value is None or isinstance(value, Mapping):
            plain = self._dump_plain(lambda: to_jsonable_python(dict(value or {})))
            self.read(plain)
            return plain
        try:
            instance = self.adapter.validate_python(value)
        except ValidationError as error:
            raise self._build_input_error(describe_validation_error(error, self._field, max_problems=10)) from error
        dump = self.adapter.dump_python
        plain = self._dump_plain(lambda: dump(instance, mode="json", by_alias=True, round_trip=True, warnings="error"))
        if dump(self.read(plain), round_trip=True) != dump(instance, round_trip=True):
            why = "as JSON it comes back changed (a SecretStr, for instance, comes back as asterisks)"
            raise self._build_input_error(why)
        return plain

    def _dump_plain(self, dump: Callable[[], Any]) -> dict[str, Any]:
        try:
            plain = dump()
        except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
            raise self._build_input_error(f"it cannot be written as JSON: {error}") from error
        if why := find_json_flaw(plain):
            raise self._build_input_error(f"it must be plain JSON: {why}")
        if not isinstance(plain, dict):
            raise self._build_input_error(f"as JSON it is not an object but a {type(plain).__name__}")
        return plain

    def _build_input_error(self, why: str) -> InvalidInputError:
        named = getattr(self._kind, "model_fields", None) or getattr(self._kind, "__annotations__", {})
        fields = [getattr(field, "alias", None) or name for name, field in named.items()]
        hint = f"Its type is {self._name}" + (f", with {', '.join(fields)}." if fields else ".")
        return InvalidInputError(f"the {self._field} does not fit agent {self._agent!r}: {why}", hint=hint)

    def _build_type_error(self, why: str, hint: str) -> DefinitionError:
        return DefinitionError(f"agent {self._agent!r}: {self._field}={self._name:.100} {why}", hint=hint)


def validate_plain_context(agent: str, value: Any) -> dict[str, Any]:
    """Check the context of an agent that declares no type: a dictionary of plain JSON. Raises ``InvalidInputError``."""
    rule = "the context of a run is a dictionary of plain JSON"
    if not isinstance(value, Mapping):
        kind, hint = type(value).__name__, "Give a dictionary, such as {'user_id': '7'}."
        if type(value).__module__ != "builtins":
            hint = f"Agent {agent!r} can declare its type, Agent(…, context={kind}), and then takes instances."
        raise InvalidInputError(f"{rule}, not {kind}", hint=hint)  # not its text, which may be a secret
    plain = dict(value)
    if why := find_json_flaw(plain):
        raise InvalidInputError(f"{rule}: {why}", hint="Give ids, numbers and texts; tools load the rest.")
    return plain


# ---
# Annotations of an author's functions, compared with the types that an agent declares.


def resolve_parameter_hint(fn: Any, parameter: str) -> Any:
    """Return the annotation of a parameter of ``fn``; Any for one that has none, or cannot be resolved here."""
    try:
        function = unwrap_function(fn)
        annotation = getattr(function, "__annotations__", {}).get(parameter, Any)
        return resolve_hint(annotation, function) if isinstance(annotation, str) else annotation
    except Exception:  # a name that only type checkers import; evaluating a hint runs any expression
        return Any


def list_positional_parameters(fn: Any) -> list[str]:
    """List the names of the parameters that can be given by position; none of a callable without a signature."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError, NameError):  # NameError: from Python 3.14 on, a name that only type checkers import
        return []
    return [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]


def takes_context(fn: Any, parameter: inspect.Parameter) -> bool:
    """Whether ``fn`` is given a context for ``parameter``: for one with a default only if it is named or annotated so;
    another default is a value of the author's."""
    if parameter.default is parameter.empty or parameter.name == "ctx":
        return True
    annotation = str(parameter.annotation)  # may be a text that cannot be resolved here
    named_so = "RunContext" in annotation or "ToolContext" in annotation
    return named_so or is_context_hint(resolve_parameter_hint(fn, parameter.name))


def find_context_mismatch(hint: Any, declared: Any) -> tuple[str, Any] | None:
    """Find why a function with a context parameter of ``hint`` cannot take the context of an agent that has declared
    the type ``declared``, or none: the name of the parameter's class, and the type of context that it takes. None if
    the types fit or cannot be compared."""
    wanted = list(_iter_context_arguments(hint))
    given = dict[str, Any] | None if declared is None else declared  # without a type it is plain JSON, or not given
    if not wanted or any(may_be(given, kind) for _, kind in wanted):
        return None
    cls, kind = wanted[0]
    return cls.__name__, kind


def _iter_context_arguments(hint: Any) -> Iterator[tuple[type, Any]]:
    """Yield the class of each context in ``hint``, and the type that it is for."""
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _iter_context_arguments(get_args(hint)[0])
    elif origin in (Union, UnionType):
        for member in get_args(hint):
            yield from _iter_context_arguments(member)
    elif origin in (RunContext, ToolContext):  # the arguments of an author's subclass may be anything
        yield origin, get_args(hint)[0]


def may_be(given: Any, wanted: Any) -> bool:
    """Whether a value of the type ``given`` may be one of ``wanted``. False only where it certainly is none: protocols,
    type variables, types that pydantic makes values of other classes for (``PastDate``), and what is unknown here are
    left to the type checker."""
    if _has_own_schema(given) or _has_own_schema(wanted):
        return True
    given, wanted = _strip_type(given), _strip_type(wanted)
    if get_origin(wanted) in (Union, UnionType):
        return any(may_be(given, member) for member in get_args(wanted))
    if get_origin(given) in (Union, UnionType):
        return any(may_be(member, wanted) for member in get_args(given))
    if get_origin(given) is Literal:
        return any(may_be(type(value), wanted) for value in get_args(given))
    given_class, wanted_class = _get_class(given), _get_class(wanted)
    if given_class is None or wanted_class is None or getattr(wanted_class, "_is_protocol", False):
        return True
    try:
        if is_typeddict(wanted_class):
            if is_typeddict(given_class):
                return _list_required_keys(wanted_class) <= {*given_class.__annotations__}
            return issubclass(given_class, Mapping)
        if is_typeddict(given_class):
            given_class = dict
        if inspect.isabstract(given_class) or _is_defined_twice(given_class, wanted_class):  # a Sequence may be a list
            return True
        # A validator may return a subclass.
        return (
            issubclass(given_class, wanted_class)
            or issubclass(wanted_class, given_class)
            or (wanted_class in (float, complex) and given_class in (int, float))
        )
    except (TypeError, NameError):
        return True


def _is_defined_twice(cls: type, other: type) -> bool:
    """Whether both may be one class, of a file that is imported under two names: a program, for instance, and a module
    that others import from it."""
    modules = cls.__module__, other.__module__
    if cls.__qualname__ != other.__qualname__ or "__main__" in modules:
        return cls.__qualname__ == other.__qualname__
    files = [getattr(sys.modules.get(module), "__file__", None) for module in modules]
    return None not in files and files[0] == files[1]


def _has_own_schema(kind: Any) -> bool:
    """Whether a type, or an annotation of it, tells pydantic itself which values it has: they may be of any class."""
    if get_origin(kind) is Annotated:
        return any(map(_has_own_schema, get_args(kind)))
    if isinstance(kind, TypeAliasType):
        return _has_own_schema(kind.__value__)
    hook = getattr(kind, "__get_pydantic_core_schema__", None)
    return hook is not None and getattr(hook, "__func__", hook) is not _MODEL_SCHEMA_HOOK


def _strip_type(kind: Any) -> Any:
    """Return the type behind aliases, annotations and new types."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif isinstance(kind, TypeAliasType):
            kind = kind.__value__
        elif (supertype := getattr(kind, "__supertype__", None)) is not None:
            kind = supertype
        else:
            return NoneType if kind is None else kind


def _get_class(kind: Any) -> Any:
    """Return the class of a type, without its arguments; None if it has none that can be compared."""
    if kind is Any or isinstance(kind, TypeVar | ForwardRef | str) or get_origin(kind) is Literal:
        return None
    kind = get_origin(kind) or kind
    generic = getattr(kind, "__pydantic_generic_metadata__", None) or {}
    cls = generic.get("origin") or kind
    return cls if isinstance(cls, type) else None


def _list_required_keys(kind: Any) -> set[str]:
    # Under `from __future__ import annotations` Python takes a NotRequired[…] for required.
    hints = {key: getattr(hint, "__forward_arg__", "") for key, hint in kind.__annotations__.items()}
    return {key for key in kind.__required_keys__ if "NotRequired" not in hints.get(key, "")}


def describe_types(given: Any, wanted: Any) -> tuple[str, str]:
    """Return the names of two types, for errors; with their modules where the names are the same."""
    names = _describe_type(given), _describe_type(wanted)
    if names[0] != names[1]:
        return names
    modules = [getattr(kind, "__module__", "") for kind in (given, wanted)]
    return f"{modules[0]}.{names[0]}", f"{modules[1]}.{names[1]}"


def _describe_type(kind: Any) -> str:
    if kind is None or kind is NoneType:
        return "None"
    return (kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", ""))[:100]
