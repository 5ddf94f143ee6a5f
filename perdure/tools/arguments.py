"""From a function's parameters to the JSON Schema that a model sees; from its arguments back to values."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from perdure.errors import ToolError
from perdure.tools.function import Function, Parameter
from perdure.tools.schema import PlainSchema, explained, runs_code, untitled
from perdure.types.messages import clean


class ArgumentsError(ToolError):
    """The model's arguments do not fit the tool; the message is written for the model."""


class Arguments:
    """Schema and validator of one function's arguments, both built once."""

    def __init__(self, function: Function, name: str, descriptions: Mapping[str, str]) -> None:
        """Raises ``DefinitionError`` for a hint without a schema and a default that does not fit it."""
        self._function = function
        self._tool = name
        # The fields have names of their own: a parameter may be called `schema`, `copy` or `_x`.
        self._names = {f"p{i}": parameter.name for i, parameter in enumerate(function.parameters)}
        fields = {
            field: _field(parameter, descriptions.get(parameter.name))
            for field, parameter in zip(self._names, function.parameters, strict=True)
        }
        try:
            model = _model(fields)
            self.schema = _schema(model)
        except Exception as error:  # a type's own schema hook may raise anything
            raise self._no_schema(fields, error) from error
        self._validator = model.__pydantic_validator__
        self.runs_code = runs_code(model.__pydantic_core_schema__)
        """Whether validating may run a function of the author's, which must not block the worker's loop."""
        self._check_defaults(model)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function, defaults included. Raises ``ArgumentsError``.

        They are read as JSON, which they came as: a strict ``datetime`` or enum takes its string.
        """
        try:
            values = self._validator.validate_json(_encode(arguments)).__dict__
        except ValidationError as error:
            raise ArgumentsError(self._explain(error)) from error
        except Exception as error:  # a validator of the author's, or values that are not JSON
            raise ArgumentsError(
                f"the arguments of {self._tool} could not be read: {type(error).__name__}: {error}"
            ) from error
        return {name: values[field] for field, name in self._names.items()}

    def _explain(self, error: ValidationError) -> str:
        return explained(error, f"the arguments of {self._tool} are not valid:", self._names.values())

    def _no_schema(self, fields: Mapping[str, tuple[Any, FieldInfo]], error: Exception) -> Exception:
        for field, (hint, info) in fields.items():
            try:
                _schema(_model({field: (hint, info)}))
            except Exception as single:
                first = str(single).partition("\n")[0]
                return self._function.wrong(
                    f"the type hint of {self._names[field]!r} has no JSON Schema: {first}",
                    "Use plain types, Literal, enums, dataclasses, TypedDicts or pydantic models.",
                )
        return self._function.wrong(f"its parameters have no JSON Schema: {error}", "Use plain types.")

    def _check_defaults(self, model: type[BaseModel]) -> None:
        empty = model.model_construct()
        for field, name in self._names.items():
            info = model.model_fields[field]
            if info.is_required() or info.default_factory is not None:
                continue
            try:
                self._validator.validate_assignment(empty, field, info.default)
            except ValidationError as error:
                why = error.errors(include_url=False)[0]["msg"]
                way = "Allow None in its type: X | None." if info.default is None else "Change the default or the type."
                raise self._function.wrong(
                    f"the default {info.default!r:.100} of {name!r} does not fit its type: {why}", way
                ) from error


def _model(fields: Mapping[str, tuple[Any, FieldInfo]]) -> type[BaseModel]:
    model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)  # type: ignore[call-overload] # fields known at run time only
    if missing := fields.keys() - model.model_fields.keys():
        raise TypeError(f"{fields[min(missing)][0]} is no type of a parameter")  # ClassVar
    return model


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema: dict[str, Any] = untitled(model.model_json_schema(schema_generator=PlainSchema))
    schema.setdefault("properties", {})  # some APIs want it also where there is nothing in it
    json.dumps(schema, allow_nan=False)  # an author's json_schema_extra may hold anything
    return schema


def _field(parameter: Parameter, described: str | None) -> tuple[Any, FieldInfo]:
    options: dict[str, Any] = {"alias": parameter.name, "validation_alias": parameter.name}
    hint: Any = parameter.hint
    if isinstance(parameter.default, FieldInfo):  # x: int = Field(3, ge=1), as in a model
        hint = Annotated[hint, parameter.default]
    elif parameter.default is not inspect.Parameter.empty:
        options["default"] = parameter.default
    if described and not FieldInfo.from_annotation(hint).description:
        options["description"] = described
    return hint, Field(**options)


def _encode(arguments: Mapping[str, Any]) -> bytes:
    try:
        return to_json(arguments)
    except ValueError:  # a lone surrogate
        return clean(json.dumps(arguments, ensure_ascii=False)).encode()
