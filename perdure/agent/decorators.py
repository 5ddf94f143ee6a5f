"""What is added to an agent after it was made: tools, instructions and output validators, until its first use."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Generic, overload

from typing_extensions import Unpack

from ..context.run_context import (
    ContextT,
    P,
    ReturnT,
    TakesContextFirst,
    TakesContextFourth,
    TakesContextSecond,
    TakesContextThird,
)
from ..errors import DefinitionError
from ..tools import SubagentTool, Tool, Toolbox, as_tool
from ..tools import tool as make_tool
from ..tools.tool import ToolDecorator, ToolOptions
from ..types.interface import OutputT
from .output import OutputValidator, ValidatesOutput, ValidatesOutputInContext, build_output_validator
from .validation import Instruction, check_function_types, check_validator_types, validate_instruction

_definition_lock = threading.Lock()
_DEFINITION = frozenset(
    (
        *("name", "chain", "description", "instruction_parts", "context", "input", "output", "output_type", "finish"),
        *("toolbox", "toolsets", "subagents", "approvals", "settings", "provider_options", "output_validators"),
        *("parse_retries", "on_limit", "limits", "max_iterations", "compaction", "hooks", "versioning"),
        *("client_tools", "caller_overrides", "caller_claims", "internal"),
    )
)
"""The attributes that define what an agent does."""


class AgentDecorators(Generic[ContextT, OutputT]):
    """The decorators of ``Agent``. Each does what the argument of the same subject does, and adds to it."""

    name: str
    context: Any
    output: Any
    toolbox: Toolbox
    subagents: tuple[Any, ...]
    instruction_parts: tuple[Instruction, ...]
    output_validators: tuple[OutputValidator, ...]
    _first_use: str | None = None
    """How the agent was used first; None for one that may still be changed."""

    @overload
    def tool(self, fn: Tool[P, ReturnT, ContextT], /) -> Tool[P, ReturnT, ContextT]: ...
    @overload
    def tool(
        self, fn: TakesContextFirst[P, ReturnT, ContextT], /, **options: Unpack[ToolOptions]
    ) -> Tool[P, ReturnT, ContextT]: ...
    @overload
    def tool(
        self, fn: TakesContextSecond[P, ReturnT, ContextT], /, **options: Unpack[ToolOptions]
    ) -> Tool[P, ReturnT, ContextT]: ...
    @overload
    def tool(
        self, fn: TakesContextThird[P, ReturnT, ContextT], /, **options: Unpack[ToolOptions]
    ) -> Tool[P, ReturnT, ContextT]: ...
    @overload
    def tool(
        self, fn: TakesContextFourth[P, ReturnT, ContextT], /, **options: Unpack[ToolOptions]
    ) -> Tool[P, ReturnT, ContextT]: ...
    @overload
    def tool(self, fn: Callable[P, ReturnT], /, **options: Unpack[ToolOptions]) -> Tool[P, ReturnT, Any]: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> ToolDecorator: ...
    def tool(self, fn: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """``@agent.tool``, ``@agent.tool(timeout=60)``: make a function a tool of the agent, as :func:`perdure.tool`
        with the same options, and ``tools=[…]`` do. Returns the tool; it may also be given one.

        Raises ``DefinitionError`` for a function that a model could not call, for two tools of one name, and for an
        agent that was used already.
        """
        if fn is None:
            return functools.partial(self.tool, **options)
        tool = make_tool(fn, **options) if options else as_tool(fn)
        check_function_types(self.name, self.context, self.output, tools=[tool], hooks=(), instructions=())
        with self._adding(f"the tool {tool.name!r}"):
            self.toolbox = Toolbox([*self.toolbox, tool])
            self.subagents = (*self.subagents, *find_called_agents([tool]))
        return tool

    def instructions(self, fn: TakesContextFirst[P, ReturnT, ContextT], /) -> Callable[P, ReturnT]:
        """``@agent.instructions``: a sync or async function of a ``RunContext`` that returns a part of the system
        prompt, or None. The parts follow each other in their order, after those of ``instructions=``, with an empty
        line between.

        Raises ``DefinitionError`` for a function that cannot be called so, and for an agent that was used already.
        """
        if isinstance(fn, str):
            hint = f"Text is an argument: Agent({self.name!r}, …, instructions=[…])."
            raise DefinitionError(f"agent {self.name!r}: @agent.instructions is for a function", hint=hint)
        part = validate_instruction(self.name, fn)
        check_function_types(self.name, self.context, self.output, tools=(), hooks=(), instructions=[part])
        with self._adding(f"the instructions {getattr(fn, '__name__', type(fn).__name__)!r}"):
            self.instruction_parts = (*self.instruction_parts, part)
        return fn

    @overload
    def output_validator(self, fn: ValidatesOutput[P, ReturnT, OutputT]) -> Callable[P, ReturnT]: ...
    @overload
    def output_validator(self, fn: ValidatesOutputInContext[P, ReturnT, OutputT, ContextT]) -> Callable[P, ReturnT]: ...
    def output_validator(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """``@agent.output_validator``: a function of the output, or of the output and a ``RunContext``, sync or async.

        It returns the output, changed if need be, or raises ``ModelRetry("why")``: the reason goes to the model, which
        answers again. This counts as an answer that does not fit the type. Raises ``DefinitionError``, also for an
        agent that was used already.
        """
        validator = build_output_validator(self.name, fn)
        check_validator_types(self.name, self.context, self.output, validator.fn)
        with self._adding(f"the output validator {validator.name!r}"):
            self.output_validators = (*self.output_validators, validator)
        return fn

    def freeze(self, use: str) -> None:
        """Refuse changes of the agent from now on, for it is used: ``use`` completes "was …", for instance ``called``.

        A copy (``copy.copy``, an override) can be changed. Its hooks and its provider object may change all the same:
        the next call uses them.
        """
        with _definition_lock:
            if self._first_use is None:
                for mapping in ("settings", "provider_options"):
                    vars(self)[mapping] = MappingProxyType(getattr(self, mapping))
                self._first_use = use

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _DEFINITION and self._first_use is not None:
            current = getattr(self, name)
            if current is value or current == value:
                return
            self._check_unused(f"its {name} cannot be changed")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in _DEFINITION:
            self._check_unused(f"its {name} cannot be changed")
        super().__delattr__(name)

    @contextmanager
    def _adding(self, what: str) -> Generator[None]:
        """Let the block add ``what``; one thread at a time, so that none of two additions is lost."""
        with _definition_lock:
            self._check_unused(f"{what} cannot be added")
            yield

    def _check_unused(self, consequence: str) -> None:
        if self._first_use is not None:
            raise DefinitionError(
                f"agent {self.name!r} was {self._first_use} before: {consequence}",
                hint="Define all of it before its first use; or change a copy of it: copy.copy(agent).",
            )


def find_called_agents(tools: Sequence[Tool | Callable[..., Any]]) -> tuple[Any, ...]:
    """Return the agents, or their names, that calls of ``tools`` always start; not those that a model chooses among."""
    called = (tool for tool in tools if isinstance(tool, SubagentTool) and not tool.is_chosen_by_model)
    return tuple(agent for tool in called for agent in tool.agents)
