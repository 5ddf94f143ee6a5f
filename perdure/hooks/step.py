"""``Step``: what a step policy (``@hook("on_iteration")``) sees between two model calls, and may change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, overload

from ..errors import AbortError, DefinitionError
from ..loop.requests import merge_overrides
from ..loop.transcript import trim_messages
from ..types.messages import Content, Message, ToolCallPart, ToolResultPart, Usage
from .branch import Branch

# ---
# ``Results``: the results of the last reply's tool calls, as a step policy sees and changes them.


class Results(MutableSequence[ToolResultPart]):
    """The results of the last reply's calls, in the order of the conversation. Their number is fixed."""

    def __init__(self, messages: list[Message], build_result: Callable[[ToolResultPart, Any], ToolResultPart]) -> None:
        self._messages = messages
        self._build_result = build_result

    def _list_parts(self) -> list[tuple[int, int, ToolResultPart]]:
        """List the results, each with the index of its message and its index among the parts."""
        reply = max((index for index, message in enumerate(self._messages) if message.role == "assistant"), default=-1)
        return [
            (message_index, part_index, part)
            for message_index in range(reply + 1, len(self._messages))
            for part_index, part in enumerate(self._messages[message_index].parts)
            if isinstance(part, ToolResultPart)
        ]

    def __len__(self) -> int:
        return len(self._list_parts())

    @overload
    def __getitem__(self, index: int) -> ToolResultPart: ...
    @overload
    def __getitem__(self, index: slice) -> list[ToolResultPart]: ...
    def __getitem__(self, index: int | slice) -> ToolResultPart | list[ToolResultPart]:
        return [part for _, _, part in self._list_parts()][index]

    def __iter__(self) -> Iterator[ToolResultPart]:
        return iter([part for _, _, part in self._list_parts()])

    def __setitem__(self, index: Any, value: Any) -> None:
        """Replace a result. ``value`` is a part of the same call, or anything that a tool may return."""
        if isinstance(index, slice):
            raise self._build_fixed_length_error()
        message_index, part_index, part = self._list_parts()[index]
        message = self._messages[message_index]
        parts = list(message.parts)
        parts[part_index] = self._build_result(part, value)
        self._messages[message_index] = message.model_copy(update={"parts": tuple(parts)})

    def __delitem__(self, index: Any) -> None:
        raise self._build_fixed_length_error()

    def insert(self, index: int, value: Any) -> None:
        """Raise ``DefinitionError``: every call has one result."""
        raise self._build_fixed_length_error()

    def __repr__(self) -> str:
        return repr(self[:])

    def _build_fixed_length_error(self) -> DefinitionError:
        reason = "every call has one result: change step.results one by one; results cannot be added or removed"
        return DefinitionError(reason, hint='For instance step.results[0] = "(left out)".')


STEP_SENDER = "step"
"""Sender of an injected message (``Message.by``)."""
_NOT_GIVEN = object()


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The state of a turn at the start of a step."""

    iteration: int
    forced: bool
    usage: Usage
    cost_usd: float | None
    messages: tuple[Message, ...]
    models: tuple[str, ...]
    settings: Mapping[str, Any]
    instructions: str | None
    tools: tuple[str, ...]
    known_tools: frozenset[str]
    """Names of all tools that can be offered."""
    build_result: Callable[[ToolResultPart, Any], ToolResultPart]
    """Replaces the content of a tool's result by a policy's value."""
    begin_branch: Callable[[Step, Any, Any, Any, Any], Branch] | None = None
    """Begins a branch, with the arguments of :meth:`Step.branch`."""


class Step:
    """One step of a turn: the tools have run, and the model is called next. A policy edits it in place.

    Changes of model, settings, instructions and tools are for the next call only; :meth:`keep` makes the changes so far
    last. All decisions of a policy are recorded with the call's outcome. A policy that fails has changed nothing.
    """

    __slots__ = (
        "_facts",
        "_injected",
        "_kept",
        "_models",
        "_tools",
        "cost_usd",
        "finished",
        "forced",
        "instructions",
        "iteration",
        "messages",
        "settings",
        "usage",
    )

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(Step, name):
            hint = f"A setting is step.settings[{name!r}] = …; a policy remembers values in ctx.memory."
            raise DefinitionError(f"a step has no {name!r}", hint=hint)
        super().__setattr__(name, value)

    def __init__(self, facts: StepFacts) -> None:
        self._facts = facts
        self.iteration = facts.iteration
        """Number of iterations of the turn so far; the tools of the last one have run."""
        self.forced = facts.forced
        """A limit is reached: the next call is the last one, and has to answer."""
        self.usage = facts.usage
        """Tokens of the turn so far."""
        self.cost_usd = facts.cost_usd
        """Cost of the turn so far; None if no price is known."""
        self.settings: dict[str, Any] = copy.deepcopy(dict(facts.settings))
        """Settings of the next call. A deleted key is not sent."""
        self.instructions = facts.instructions
        """The system prompt; None if the agent has none, or a function for it, which a text replaces."""
        self.messages: list[Message] = list(facts.messages)
        """The conversation with the results of the last calls. Changing recorded messages makes a new transcript from
        here on; the old one stays in the store."""
        self.finished: tuple[Any, ...] | None = None
        """The argument of :meth:`finish`, in a tuple."""
        self._models = facts.models
        self._tools = facts.tools
        self._kept: dict[str, dict[str, Any]] = {}
        self._injected: list[Message] = []

    def __repr__(self) -> str:
        return f"<Step after iteration {self.iteration} on {self.model}>"

    # --- the last reply

    @property
    def reply(self) -> Message | None:
        """The model's last reply."""
        return next((message for message in reversed(self.messages) if message.role == "assistant"), None)

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls of the reply."""
        reply = self.reply
        return reply.tool_calls if reply is not None else ()

    @property
    def results(self) -> Results:
        """Their results, in order: ``step.results[0] = "shorter"`` changes what the model gets."""
        return Results(self.messages, self._facts.build_result)

    def set_result(self, call_id: str, value: Any) -> None:
        """Change the result that the model gets of a call of the reply: to anything that a tool may return."""
        results = self.results
        for index, part in enumerate(results):
            if part.call_id == call_id:
                results[index] = value
                return
        call_ids = ", ".join(part.call_id for part in results) or "none"
        raise DefinitionError(f"the last reply has no call {call_id!r}", hint=f"Its calls are: {call_ids}.")

    # --- the next call

    @property
    def model(self) -> str:
        """``"<provider>:<model>"``; the first of a chain. Set it to a name, or to a list of names."""
        return self._models[0]

    @model.setter
    def model(self, model: str | Sequence[str]) -> None:
        models = (model,) if isinstance(model, str) else tuple(model) if isinstance(model, Sequence) else ()
        if not models or not all(isinstance(name, str) for name in models):
            reason = f"step.model is the name of a model, or a list of names, not {model!r:.100}"
            raise DefinitionError(reason, hint='For instance step.model = "openai:gpt-5".')
        self._models = models

    @property
    def models(self) -> tuple[str, ...]:
        """All models of the chain."""
        return self._models

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the tools that are offered."""
        return self._tools

    def add_tool(self, name: str) -> None:
        """Offer a tool: one of the agent's that is not offered, or one that the worker was given (``tools=[…]``)."""
        self._check_known_tool(name)
        if name not in self._tools:
            self._tools = (*self._tools, name)

    def remove_tool(self, name: str) -> None:
        """Stop offering a tool. A call of it that the model makes anyway is refused."""
        self._check_known_tool(name)
        self._tools = tuple(tool for tool in self._tools if tool != name)

    def inject(self, content: Content) -> None:
        """Add a user's message from ``"step"`` for the model: text, or a list of texts and ``File``."""
        message = Message.user(content, by=STEP_SENDER)
        self._injected.append(message)
        self.messages.append(message)

    def trim(self, keep: int) -> None:
        """Remove all messages but the first user message and the last ``keep``; a result stays with its call."""
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
            raise DefinitionError(f"step.trim: keep is a whole number of messages, not {keep!r:.100}")
        self.messages[:] = trim_messages(self.messages, keep)

    def keep(self, scope: Literal["turn", "run"] = "turn") -> None:
        """Keep the changes so far of model, settings, instructions and tools for the rest of the turn, or run."""
        if scope not in ("turn", "run"):
            raise DefinitionError(f"step.keep is for the rest of the 'turn' or the 'run', not {scope!r}")
        self._kept[scope] = merge_overrides(self._kept.get(scope, {}), self.build_changes())

    def branch(
        self,
        agent: Any,
        message: Any = None,
        *,
        model: str | Sequence[str] | None = None,
        messages: Literal["all", "none"] = "all",
    ) -> Branch:
        """Have an agent answer from the current conversation, in a run of its own, which changes nothing in this run:
        ``await`` it for the answer, of that agent's output type; in a plain ``def`` call its ``result()``.

        ``agent`` is an agent that this worker serves, or its name. ``message`` follows the conversation: text, or a
        value of its input type; with ``messages="none"`` it is all that the agent sees. ``model`` replaces the agent's
        model.

        The policy ends here. When the branch has answered it runs again from its start, with the same ``step``, and has
        to make the same request, which then returns the answer. Use ``asyncio.gather`` for parallel branches. Raises
        ``BranchError`` if the branch ends without an answer, ``DefinitionError`` for an invalid request.
        """
        assert self._facts.begin_branch is not None, "the engine can begin branches"
        return self._facts.begin_branch(self, agent, message, model, messages)

    # --- instead of a model call

    def finish(self, content: Any = _NOT_GIVEN, /, **fields: Any) -> None:
        """End the turn with this answer, without a model call: a text, or for an agent with an output type the value or
        its fields."""
        if (content is _NOT_GIVEN) == (not fields):
            hint = 'For instance step.finish("Done.").'
            raise DefinitionError("step.finish needs the answer, or its fields, and not both", hint=hint)
        self.finished = (fields if content is _NOT_GIVEN else content,)

    def abort(self, reason: str) -> NoReturn:
        """End the run: it fails with ``AbortError``."""
        raise AbortError(reason)

    # --- for the engine

    def copy(self) -> Step:
        """Copy the step; changes of the copy leave this one unchanged."""
        other = copy.copy(self)
        other.settings, other.messages = copy.deepcopy(self.settings), list(self.messages)
        other._kept, other._injected = dict(self._kept), list(self._injected)
        return other

    def build_changes(self) -> dict[str, Any]:
        """Build the changes of this step, as plain JSON of a ``StepOverride``."""
        facts, changes = self._facts, dict[str, Any]()
        if not isinstance(self.settings, Mapping):
            hint = 'del step.settings["seed"] removes one setting, step.settings.clear() all of them.'
            raise DefinitionError(f"step.settings is a dictionary, not {self.settings!r:.100}", hint=hint)
        if self._models != facts.models:
            changes["model"] = list(self._models)
        settings = {
            name: value for name, value in self.settings.items() if facts.settings.get(name, _NOT_GIVEN) != value
        }
        settings |= dict.fromkeys(facts.settings.keys() - self.settings.keys())
        if settings:
            changes["settings"] = settings
        if self.instructions != facts.instructions:
            changes["instructions"] = self.instructions or ""
        if added := [tool for tool in self._tools if tool not in facts.tools]:
            changes["add_tools"] = added
        if removed := [tool for tool in facts.tools if tool not in self._tools]:
            changes["remove_tools"] = removed
        return changes

    @property
    def kept_changes(self) -> dict[str, dict[str, Any]]:
        """The changes that last for the rest of the turn and of the run, by scope."""
        return {scope: changes for scope, changes in self._kept.items() if changes}

    @property
    def injected_messages(self) -> list[Message]:
        """The injected messages that have not been removed since."""
        current = {id(message) for message in self.messages}
        return [message for message in self._injected if id(message) in current]

    def _check_known_tool(self, name: str) -> None:
        if name not in self._facts.known_tools:
            known = ", ".join(sorted(self._facts.known_tools)) or "none"
            hint = f"The tools are: {known}. Give other tools to the worker: Worker(…, tools=[{name}])."
            raise DefinitionError(f"there is no tool {name!r}", hint=hint)
