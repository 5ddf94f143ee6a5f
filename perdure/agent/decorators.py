"""What is added to an agent after it was made: tools, instructions and output validators, until its first use."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

from typing_extensions import ParamSpec, TypedDict, Unpack

from ..errors import DefinitionError
from ..hooks import Hook, HookSet
from ..tools import SubagentTool, Tool, Toolbox, as_tool
from ..tools import tool as make_tool
from ..tools.tool import NeedsApproval
from .output import OutputValidator, build_output_validator
from .validation import Instruction, validate_instruction

P = ParamSpec("P")
R = TypeVar("R")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_definition_lock = threading.Lock()


class ToolOptions(TypedDict, total=False):
    """The options of ``@tool``."""

    name: str | None
    description: str | None
    timeout: float
    idempotent: bool
    inline: bool
    retries: int | None
    task_queue: str | None
    hooks: Sequence[Hook | HookSet]
    needs_approval: NeedsApproval


class AgentDecorators:
    """The decorators of ``Agent``. Each does what the argument of the same subject does, and adds to it."""

    name: str
    toolbox: Toolbox
    subagents: tuple[Any, ...]
    instruction_parts: tuple[Instruction, ...]
    output_validators: tuple[OutputValidator, ...]
    _first_use: str | None = None
    """How the agent was used first; None for one that may still be changed."""

    @overload
    def tool(self, fn: Tool[P, R] | Callable[P, R], /) -> Tool[P, R]: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
    @overload
    def tool(self, fn: Callable[P, R], /, **options: Unpack[ToolOptions]) -> Tool[P, R]: ...
    def tool(self, fn: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """``@agent.tool``, ``@agent.tool(timeout=60)``: make a function a tool of the agent, as :func:`perdure.tool`
        with the same options, and ``tools=[…]`` do. Returns the tool; it may also be given one.

        Raises ``DefinitionError`` for a function that a model could not call, for two tools of one name, and for an
        agent that was used already.
        """
        if fn is None:
            return functools.partial(self.tool, **options)
        tool = make_tool(fn, **options) if options else as_tool(fn)
        with self._adding(f"the tool {tool.name!r}"):
            self.toolbox = Toolbox([*self.toolbox, tool])
            self.subagents = (*self.subagents, *find_called_agents([tool]))
        return tool

    def instructions(self, fn: FunctionT, /) -> FunctionT:
        """``@agent.instructions``: a sync or async function of a ``RunContext`` that returns a part of the system
        prompt, or None. The parts follow each other in their order, after those of ``instructions=``, with an empty
        line between.

        Raises ``DefinitionError`` for a function that cannot be called so, and for an agent that was used already.
        """
        if isinstance(fn, str):
            hint = f"Text is an argument: Agent({self.name!r}, …, instructions=[…])."
            raise DefinitionError(f"agent {self.name!r}: @agent.instructions is for a function", hint=hint)
        part = validate_instruction(self.name, fn)
        with self._adding(f"the instructions {getattr(fn, '__name__', type(fn).__name__)!r}"):
            self.instruction_parts = (*self.instruction_parts, part)
        return fn

    def output_validator(self, fn: FunctionT) -> FunctionT:
        """``@agent.output_validator``: a function of the output, or of the output and a ``RunContext``, sync or async.

        It returns the output, changed if need be, or raises ``ModelRetry("why")``: the reason goes to the model, which
        answers again. This counts as an answer that does not fit the type. Raises ``DefinitionError``, also for an
        agent that was used already.
        """
        validator = build_output_validator(self.name, fn)
        with self._adding(f"the output validator {validator.name!r}"):
            self.output_validators = (*self.output_validators, validator)
        return fn

    def freeze(self, use: str) -> None:
        """Refuse changes of the agent from now on, for it is used: ``use`` completes "was …", for instance ``called``.

        A copy (``copy.copy``, an override) can be changed.
        """
        with _definition_lock:
            if self._first_use is None:
                self._first_use = use

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            self._check_unused(f"its {name} cannot be changed")
        super().__setattr__(name, value)

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
