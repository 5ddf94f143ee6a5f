"""Functions of another context or output than their agent's are refused where the agent is defined."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NewType, NotRequired, Protocol, TypedDict, TypeVar

import pytest
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, GetCoreSchemaHandler, PastDate
from pydantic_core import CoreSchema, core_schema

from perdure import Agent, RunContext, ToolContext, hook, tool
from perdure.errors import DefinitionError
from perdure.hooks import Hook
from perdure.tools.context_type import may_be

if TYPE_CHECKING:
    from decimal import Decimal as Unknown

MODEL = "openai:gpt-5"
T = TypeVar("T")


class User(BaseModel):
    name: str = ""


class Admin(User):
    level: int = 0


class Manager(User):
    reports: int = 0


class Other(BaseModel):
    size: int = 0


@dataclass
class Plain:
    name: str = ""


class Keys(TypedDict):
    name: str
    age: int


class SomeKeys(TypedDict):
    name: str
    city: NotRequired[str]


class OtherKeys(TypedDict):
    size: int


class Named(Protocol):
    name: str


class Page(BaseModel, Generic[T]):
    item: T


class Slug:
    """Its values are texts, for pydantic."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.str_schema()


class Slugged(User):
    """A model that pydantic reads as a text."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.str_schema()


UserId = NewType("UserId", User)


@tool
def plain(x: int) -> int:
    return x


@tool
def bare(ctx: ToolContext) -> str:
    return ""


@tool
def of_user(x: int, ctx: ToolContext[User]) -> str:
    return ""


@tool
def of_other(x: int, ctx: ToolContext[Other]) -> str:
    return ""


@tool
def of_maybe_other(*, ctx: Annotated[RunContext[Other] | None, "doc"] = None) -> str:
    return ""


@tool(needs_approval=lambda _call, _ctx: True)
def asked(x: int) -> int:
    return x


@hook("before_tool_call")
def hook_of_other(name: str, ctx: ToolContext[Other]) -> None: ...


@hook("before_tool_call")
def hook_of_user(name: str, ctx: RunContext[User]) -> None: ...


@hook("on_finish")
def finish_of_other(output: Other) -> None: ...


@tool(hooks=[hook_of_other])
def hooked(x: int) -> int:
    return x


def approves(call: Any, ctx: RunContext[Other]) -> bool:
    return True


def instructions_of_other(ctx: RunContext[Other]) -> str:
    return ""


def validator_of_other(output: str, ctx: RunContext[Other]) -> str:
    return output


def validator_of_another_output(output: Other) -> None: ...


class Service:
    def prompt(self, ctx: RunContext[Other]) -> str:
        return ""

    def fine(self, ctx: RunContext[User]) -> str:
        return ""


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "tool": ({"tools": [plain, of_other]}, r"the tool 'of_other' \(.*:\d+\) takes ToolContext\[Other\]"),
    "keyword": ({"tools": [of_maybe_other]}, r"the tool 'of_maybe_other' \(.*:\d+\) takes RunContext\[Other\]"),
    "function": ({"tools": [of_other.fn]}, r"the tool 'of_other' \(.*:\d+\) takes ToolContext\[Other\]"),
    "approval": (
        {"tools": [tool(plain.fn, needs_approval=approves)]},
        r"needs_approval of the tool 'plain' \(.*\) takes",
    ),
    "tool's hook": ({"tools": [hooked]}, r"the hook 'hook_of_other' \(before_tool_call\) takes ToolContext\[Other\]"),
    "hook": ({"hooks": [hook_of_other]}, r"the hook 'hook_of_other' \(before_tool_call\) takes ToolContext\[Other\]"),
    "instructions": ({"instructions": instructions_of_other}, r"the function of its instructions takes RunContext"),
    "method": ({"instructions": Service().prompt}, r"the function of its instructions takes RunContext\[Other\]"),
    "partial": ({"instructions": partial(Service.prompt, Service())}, r"the function of its instructions takes"),
    "validator": (
        {"output_validators": [validator_of_other]},
        r"output validator 'validator_of_other' takes RunContext",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_function_of_another_context_is_refused_with_both_types_and_the_way_out(case: str) -> None:
    arguments, message = WRONG[case]
    with pytest.raises(DefinitionError, match=rf"^agent 'a': .*{message}") as error:
        Agent("a", MODEL, context=User, **arguments)
    assert "Context[Other], and the agent's context is User" in error.value.message
    assert error.value.hint is not None
    assert "Context[User] or " in error.value.hint
    assert "give the agent context=Other" in error.value.hint


@pytest.mark.parametrize("case", WRONG)
def test_and_where_the_agent_declares_no_context(case: str) -> None:
    with pytest.raises(DefinitionError, match="the agent declares no context: it is a dictionary") as error:
        Agent("a", MODEL, **WRONG[case][0])
    assert "Agent('a', …, context=Other)" in str(error.value.hint)


def test_a_validator_that_is_added_later_is_refused_and_is_not_added() -> None:
    agent = Agent("a", MODEL, context=User)
    with pytest.raises(DefinitionError, match="takes RunContext\\[Other\\], and the agent's context is User"):
        agent.output_validator(validator_of_other)
    with pytest.raises(DefinitionError, match="takes an output of type Other, and the agent's output is str"):
        agent.output_validator(validator_of_another_output)
    assert agent.output_validators == ()


@pytest.mark.parametrize("output", [str, User, list[Other], int | None, Literal["a"]])
def test_functions_of_another_output_are_refused(output: Any) -> None:
    with pytest.raises(
        DefinitionError, match="'validator_of_another_output' takes an output of type Other, and"
    ) as error:
        Agent("a", MODEL, output=output, output_validators=[validator_of_another_output])
    assert "or give the agent output=Other" in str(error.value.hint)
    with pytest.raises(
        DefinitionError, match=r"the hook 'finish_of_other' \(on_finish\) takes an output of type Other"
    ):
        Agent("a", MODEL, output=output, hooks=[finish_of_other])


@pytest.mark.parametrize("context", [User, Admin, Plain | Admin, UserId, Annotated[User, "doc"], Any])
def test_functions_of_the_context_or_of_a_base_of_it_are_right(context: Any) -> None:
    hooks: list[Hook] = [hook_of_user]
    agent = Agent(
        "a", MODEL, context=context, tools=[of_user, bare, plain, asked], hooks=hooks, instructions=Service().fine
    )
    assert [tool.name for tool in agent.toolbox] == ["of_user", "bare", "plain", "asked"]


def test_an_agent_without_a_context_takes_functions_of_none() -> None:
    def prompt(ctx: RunContext[None]) -> str:
        return ""

    assert Agent("a", MODEL, instructions=prompt).instruction_parts == (prompt,)
    with pytest.raises(DefinitionError) as caught:
        Agent("a", MODEL, context=User, instructions=prompt)
    assert caught.value.hint == "Write RunContext[User] or RunContext alone, which takes any."


def test_types_that_only_a_type_checker_imports_are_left_to_it() -> None:
    def prompt(ctx: RunContext[Unknown]) -> str:
        return ""

    def check(output: Unknown, ctx: RunContext[Unknown]) -> None: ...

    @hook("on_finish")
    def watch(output: Unknown, ctx: RunContext[Unknown]) -> None: ...

    agent = Agent("a", MODEL, context=User, instructions=prompt, output_validators=[check], hooks=[watch])
    assert agent.instruction_parts == (prompt,)


def test_types_of_the_function_that_defines_the_agent_are_found() -> None:
    class Local(BaseModel):
        name: str

    def prompt(ctx: RunContext[Local]) -> str:
        return ""

    assert Agent("a", MODEL, context=Local, instructions=prompt).instruction_parts == (prompt,)
    with pytest.raises(DefinitionError, match=r"takes RunContext\[Local\], and the agent's context is User"):
        Agent("a", MODEL, context=User, instructions=prompt)


def test_a_type_of_the_function_that_defines_the_agent_comes_before_one_of_the_module() -> None:
    class User(BaseModel):
        age: int = 0

    @tool
    def look(ctx: ToolContext[User]) -> str:
        """Look."""
        return ""

    def prompt(ctx: RunContext[User]) -> str:
        return ""

    assert Agent("a", MODEL, context=User, tools=[look], instructions=prompt).context is User


def import_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str], files: int = 1) -> list[Any]:
    """The class User of a file, or of two of the same text, that is imported under two names."""
    classes = []
    for number, name in enumerate(names):
        file = tmp_path / f"app{number % files}.py"
        file.write_text("from dataclasses import dataclass\n\n@dataclass\nclass User:\n    name: str = ''\n")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        classes.append(module.User)
    return classes


@pytest.mark.parametrize("names", [("__main__", "app"), ("app", "__main__"), ("app", "src.app")])
def test_one_class_that_is_imported_under_two_names_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str]
) -> None:
    first, second = import_twice(tmp_path, monkeypatch, names)
    assert first is not second

    def check(output: Any, ctx: Any) -> None: ...

    check.__annotations__ |= {"output": second, "ctx": RunContext[second]}
    agent = Agent("a", MODEL, context=first, output=first, output_validators=[check])
    assert [validator.fn for validator in agent.output_validators] == [check]


def test_two_classes_of_one_name_are_named_with_their_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = import_twice(tmp_path, monkeypatch, ("app", "lib"), files=2)

    def prompt(ctx: Any) -> str:
        return ""

    prompt.__annotations__["ctx"] = RunContext[second]
    with pytest.raises(
        DefinitionError, match=r"takes RunContext\[lib.User\], and the agent's context is app.User"
    ) as error:
        Agent("a", MODEL, context=first, instructions=prompt)
    assert "or give the agent context=lib.User" in str(error.value.hint)

    def check(output: Any) -> None: ...

    check.__annotations__["output"] = second
    with pytest.raises(DefinitionError, match=r"an output of type lib\.User, and the agent's output is app\.User"):
        Agent("a", MODEL, output=first, output_validators=[check])


class Scoped(ToolContext[User], Generic[T]):
    """Whose argument is not the context's type."""


def test_the_arguments_of_an_authors_own_context_class_are_its_own() -> None:
    def prompt(ctx: Scoped[Other]) -> str:
        return ""

    assert Agent("a", MODEL, context=User, instructions=prompt).instruction_parts == (prompt,)


class Strange:
    """A callable that has every attribute: itself."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, ctx: RunContext[Other]) -> str:
        return ""


def test_a_callable_that_tells_nothing_is_accepted() -> None:
    assert Agent("a", MODEL, context=User, instructions=str.upper).instruction_parts == (str.upper,)
    strange: Callable[..., Any] = Strange()
    assert Agent("a", MODEL, context=User, instructions=strange).instruction_parts == (strange,)


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        (User, User, True),
        (Admin, User, True),
        (User, Admin, True),  # a validator may make one of the other
        (Admin, Manager, False),
        (date, datetime, True),
        (User, Any, True),
        (User, object, True),
        (Any, User, True),
        (User, T, True),
        (User, Other | User, True),
        (User, Other | None, False),
        (User | Other, Other, True),
        (User | None, Other, False),
        (User, Named, True),
        (Other, Named, True),  # an instance may have it all the same
        (User, Plain, False),
        (Plain, Plain, True),
        (User, Keys, False),
        (User, dict[str, Any], False),
        (dict, Keys, True),
        (dict[str, int], Mapping[str, Any], True),
        (Keys, dict[str, Any], True),
        (Keys, User, False),
        (Keys, SomeKeys, True),
        (SomeKeys, Keys, False),
        (Keys, OtherKeys, False),
        (Page[int], Page, True),
        (Page, Page[int], True),
        (Page[int], Page[str], True),
        (Page[int], User, False),
        (User, UserId, True),
        (UserId, User, True),
        (Annotated[User, "doc"], User, True),
        (User, Annotated[Other, "doc"], False),
        (int, float, True),
        (bool, int, True),
        (float, int, False),
        (str, int, False),
        (Literal["a", 1], int, True),
        (Literal["a"], int, False),
        (str, Literal["a"], True),
        (list[User], list[Other], True),
        (list[User], User, False),
        (None, str, False),
        (User, "User", True),
        (PastDate, date, True),
        (AwareDatetime, datetime, True),
        (date, PastDate, True),
        (Slug, str, True),
        (Slug | None, str, True),
        (Slugged, str, True),
        (Annotated[str, AfterValidator(int)], int, True),
        (Annotated[int, Field(gt=0)], str, False),
        (Sequence[int], list[int], True),
        (object, User, True),
    ],
)
def test_what_may_be_what(given: Any, wanted: Any, expected: bool) -> None:
    assert may_be(given, wanted) is expected
