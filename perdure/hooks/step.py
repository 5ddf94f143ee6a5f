"""``Step``: what a policy (``@hook("on_iteration")``) sees between two model calls, and may change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, cast, overload

from ..errors import AbortError, DefinitionError
from ..loop.transcript import trim_messages
from ..loop.turns import merge_overrides
from ..types.messages import Content, Message, ToolCallPart, ToolResultPart, Usage
from .branch import Branch

# ---
# ``Results``: what the tool calls of the last reply came to, as a step policy sees and changes them.


class Results(MutableSequence[ToolResultPart]):
    """The results of the last reply's calls, where they stand in the conversation. Their number is fixed."""

    def __init__(self, messages: list[Message], result: Callable[[ToolResultPart, Any], ToolResultPart]) -> None:
        self._messages = messages
        self._build_result = result

    def _find_positions(self) -> list[tuple[int, int]]:
        last = max((n for n, one in enumerate(self._messages) if one.role == "assistant"), default=-1)
        return [
            (at, place)
            for at in range(last + 1, len(self._messages))
            for place, part in enumerate(self._messages[at].parts)
            if isinstance(part, ToolResultPart)
        ]

    def _get_result_parts(self) -> list[ToolResultPart]:
        return [cast(ToolResultPart, self._messages[at].parts[place]) for at, place in self._find_positions()]

    def __len__(self) -> int:
        return len(self._find_positions())

    def __iter__(self) -> Iterator[ToolResultPart]:
        return iter(self._get_result_parts())

    @overload
    def __getitem__(self, index: int) -> ToolResultPart: ...
    @overload
    def __getitem__(self, index: slice) -> list[ToolResultPart]: ...
    def __getitem__(self, index: int | slice) -> ToolResultPart | list[ToolResultPart]:
        return self._get_result_parts()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """``value``: a part of the same call, or anything that a tool may return."""
        if isinstance(index, slice):
            raise self._build_fixed_length_error()
        at, place = self._find_positions()[index]
        message = self._messages[at]
        parts = list(message.parts)
        parts[place] = self._build_result(cast(ToolResultPart, parts[place]), value)
        self._messages[at] = message.model_copy(update={"parts": tuple(parts)})

    def __delitem__(self, index: Any) -> None:
        raise self._build_fixed_length_error()

    def insert(self, index: int, value: Any) -> None:
        """Refused: every call has one result."""
        raise self._build_fixed_length_error()

    def __repr__(self) -> str:
        return repr(self._get_result_parts())

    def _build_fixed_length_error(self) -> DefinitionError:
        return DefinitionError(
            "every call has one result: step.results can be changed one by one, not made longer or shorter",
            hint='For instance step.results[0] = "(left out)".',
        )


STEP_SENDER = "step"
"""Who an injected message is from (``Message.by``)."""
_NOT_GIVEN = object()


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a step begins with."""

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
    """A tool's result with what a policy says instead."""
    begin_branch: Callable[[Step, Any, Any, Any, Any], Branch] | None = None
    """Begins a branch: what :meth:`Step.branch` was given."""


class Step:
    """One step of a turn: the tools have run, and the model is asked next. It is edited in place.

    What changes of model, settings, instructions and tools is for the next call alone; :meth:`keep` makes what has
    changed so far hold from now on. Everything that a policy decides is recorded with the call's outcome. A policy that
    fails has changed nothing.
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
            raise DefinitionError(
                f"a step has no {name!r}",
                hint=f"A setting is step.settings[{name!r}] = …; what a policy wants to remember goes into ctx.memory.",
            )
        super().__setattr__(name, value)

    def __init__(self, facts: StepFacts) -> None:
        self._facts = facts
        self.iteration = facts.iteration
        """Iterations of the turn that are done: the number of the one whose tools have run."""
        self.forced = facts.forced
        """A limit is reached: the next call is the last one, and is to answer."""
        self.usage = facts.usage
        """Tokens of the turn so far."""
        self.cost_usd = facts.cost_usd
        """Cost of the turn so far; None where no price is known."""
        self.settings: dict[str, Any] = copy.deepcopy(dict(facts.settings))
        """Of the next call. Without a key the setting is not sent."""
        self.instructions = facts.instructions
        """The system prompt; None where the agent has none, or a function for it, which a text takes the place of."""
        self.messages: list[Message] = list(facts.messages)
        """The conversation, results of the last calls included. Changing what was recorded before makes a new
        transcript from here on; the old one stays in the store."""
        self.finished: tuple[Any, ...] | None = None
        """What :meth:`finish` was given, in a tuple."""
        self._models = facts.models
        self._tools = facts.tools
        self._kept: dict[str, dict[str, Any]] = {}
        self._injected: list[Message] = []

    def __repr__(self) -> str:
        return f"<Step after iteration {self.iteration} on {self.model}>"

    # --- what happened

    @property
    def reply(self) -> Message | None:
        """What the model said last."""
        return next((one for one in reversed(self.messages) if one.role == "assistant"), None)

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls of the reply."""
        reply = self.reply
        return reply.tool_calls if reply is not None else ()

    @property
    def results(self) -> Results:
        """What they came to, in their order: ``step.results[0] = "shorter"`` changes what the model is told."""
        return Results(self.messages, self._facts.build_result)

    def set_result(self, call_id: str, value: Any) -> None:
        """Change what the model is told of a call of the reply: to anything that a tool may return."""
        results = self.results
        for index, part in enumerate(results):
            if part.call_id == call_id:
                results[index] = value
                return
        there = ", ".join(part.call_id for part in results) or "none"
        raise DefinitionError(f"the last reply has no call {call_id!r}", hint=f"Its calls are: {there}.")

    # --- the next call

    @property
    def model(self) -> str:
        """``"<provider>:<model>"``; of a chain, the first. Set it to a name, or to a list of names."""
        return self._models[0]

    @model.setter
    def model(self, model: str | Sequence[str]) -> None:
        models = (model,) if isinstance(model, str) else tuple(model) if isinstance(model, Sequence) else ()
        if not models or not all(isinstance(one, str) for one in models):
            raise DefinitionError(
                f"step.model is the name of a model, or a list of names, not {model!r:.100}",
                hint='For instance step.model = "openai:gpt-5".',
            )
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
        """Offer it no longer. A call of it that the model makes all the same is refused."""
        self._check_known_tool(name)
        self._tools = tuple(one for one in self._tools if one != name)

    def inject(self, content: Content) -> None:
        """Say something to the model as a user's message, from ``"step"``: text, or a list of texts and ``File``."""
        message = Message.user(content, by=STEP_SENDER)
        self._injected.append(message)
        self.messages.append(message)

    def trim(self, keep: int) -> None:
        """Leave out all messages but the first user's and the last ``keep``; a result keeps its call."""
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
            raise DefinitionError(f"step.trim: keep is a whole number of messages, not {keep!r:.100}")
        self.messages[:] = trim_messages(self.messages, keep)

    def keep(self, scope: Literal["turn", "run"] = "turn") -> None:
        """What has changed so far of model, settings, instructions and tools holds for the rest of the turn, or run."""
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
        """Have an agent answer from the conversation as it stands, in a run of its own, which changes nothing in this
        one: ``await`` it for the answer, of that agent's output type; in a plain ``def`` call its ``result()``.

        ``agent`` is one that this worker serves, or its name. ``message`` is what it is asked behind the conversation:
        text, or a value of its input type; with ``messages="none"`` it sees nothing else. ``model`` is asked in place
        of the agent's.

        The policy ends here. It runs again from its start when the branch has answered, with the same ``step``, and has
        to ask for the same: then the answer is there. Several run in parallel with ``asyncio.gather``. Raises
        ``BranchError`` where the branch ends without an answer, ``DefinitionError`` for what cannot be asked.
        """
        assert self._facts.begin_branch is not None, "the engine can begin branches"
        return self._facts.begin_branch(self, agent, message, model, messages)

    # --- instead of it

    def finish(self, content: Any = _NOT_GIVEN, /, **fields: Any) -> None:
        """End the turn with this answer, without a model call: a text, or of an agent with an output type the value or
        its fields."""
        if (content is _NOT_GIVEN) == (not fields):
            raise DefinitionError(
                "step.finish needs the answer, or its fields, and not both", hint='For instance step.finish("Done.").'
            )
        self.finished = (fields if content is _NOT_GIVEN else content,)

    def abort(self, reason: str) -> NoReturn:
        """End the run: it fails with ``AbortError``."""
        raise AbortError(reason)

    # --- for the engine

    def copy(self) -> Step:
        """One that may be changed without this."""
        other = copy.copy(self)
        other.settings, other.messages = copy.deepcopy(self.settings), list(self.messages)
        other._kept, other._injected = dict(self._kept), list(self._injected)
        return other

    def build_changes(self) -> dict[str, Any]:
        """What is other than it was, as plain JSON of a ``StepOverride``."""
        facts, changes = self._facts, cast(dict[str, Any], {})
        if not isinstance(self.settings, Mapping):
            raise DefinitionError(
                f"step.settings is a dictionary, not {self.settings!r:.100}",
                hint='del step.settings["seed"] takes one away, step.settings.clear() all of them.',
            )
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
        if added := [one for one in self._tools if one not in facts.tools]:
            changes["add_tools"] = added
        if removed := [one for one in facts.tools if one not in self._tools]:
            changes["remove_tools"] = removed
        return changes

    @property
    def kept_changes(self) -> dict[str, dict[str, Any]]:
        """What is to hold for the rest of the turn and of the run."""
        return {scope: changes for scope, changes in self._kept.items() if changes}

    @property
    def injected_messages(self) -> list[Message]:
        """The injected messages that are still there."""
        return [one for one in self._injected if any(one is message for message in self.messages)]

    def _check_known_tool(self, name: str) -> None:
        if name not in self._facts.known_tools:
            there = ", ".join(sorted(self._facts.known_tools)) or "none"
            raise DefinitionError(
                f"there is no tool {name!r}",
                hint=f"There is: {there}. Other tools are given to the worker: Worker(…, tools=[{name}]).",
            )
