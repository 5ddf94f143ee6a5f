"""``AgentSpec``: a name, a model, instructions and tools. The whole definition is checked when it is made.

``Agent``, which can also be called, is :class:`perdure.local_engine.agent.Agent`.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

from ..context.run_context import ContextT
from ..errors import DefinitionError, InvalidInputError
from ..hooks import Hook, HookSet, validate_hooks
from ..hooks.hook import add_hook_compaction, validate_hook_list
from ..tools import Rule, RunContext, Tool, Toolbox
from ..tools.context_type import ContextType, validate_plain_context
from ..tools.subagents import build_subagent_tool
from ..types.interface import FinishProtocol, OnLimit, OutputT, Override, StepOverride, Versioning
from ..types.json_schema import PlainSchema, remove_titles
from ..types.limits import Limits
from ..types.validation_errors import describe_validation_error
from .decorators import AgentDecorators, find_called_agents
from .output import OutputType, build_output_validators
from .overrides import (
    apply_step_tools,
    select_tools,
    validate_caller_claims,
    validate_caller_overrides,
    validate_internal,
)
from .validation import (
    DEFAULT_PARSE_RETRIES,
    check_function_types,
    check_model_settings,
    check_prices,
    check_validator_types,
    resolve_finish_protocol,
    resolve_max_iterations,
    validate_agent_limits,
    validate_agent_name,
    validate_client_tools,
    validate_compaction,
    validate_instructions,
    validate_list,
    validate_mapping,
    validate_models,
    validate_on_limit,
    validate_parse_retries,
    validate_rules,
    validate_subagents,
    validate_toolsets,
    validate_versioning,
    warn_of_low_threshold,
)

if TYPE_CHECKING:
    from ..ports.model import Provider, ToolSpec
    from ..ports.toolset import Toolset
    from ..types.compaction import Compaction

Instruction = str | Callable[[RunContext[ContextT]], Any]
Instructions = Instruction[ContextT] | Sequence[Instruction[ContextT]] | None
Validator = Callable[[OutputT], Any] | Callable[[OutputT, RunContext[ContextT]], Any]

_copies_lock = threading.Lock()
_MAX_CACHED_COPIES = 64  # overridden ones of an agent: overrides come from outside


class AgentSpec(AgentDecorators[ContextT, OutputT]):
    """The definition of an agent: what workers serve, and what clients and tests take. An ``Agent`` is an ``AgentSpec``
    that can also be called on this machine; its page says what the arguments mean.

    A function that takes any agent, and calls none, says so: ``def report(agents: Iterable[AgentSpec]) -> str``.
    """

    approvals: tuple[Rule, ...]
    """Which calls run without approval, wait for approval, or are denied: the first matching rule decides."""
    client_tools: bool
    """Whether the client of a turn may declare tools that it runs itself."""
    caller_overrides: tuple[str, ...]
    """What of the agent callers of a service may change: ``settings.temperature``, ``limits``. None by default."""
    caller_claims: tuple[str, ...]
    """What callers of a service may say of themselves: ``context``, ``auth_context``, ``auth_ref``, ``user``."""
    internal: bool
    """Whether no caller of a service can start it or write to it: only other agents, and programs."""

    def __init__(
        self,
        name: str,
        model: str | Provider | Sequence[str | Provider],
        *,
        description: str = "",
        instructions: Instructions[Any] = None,
        input: Any = str,
        output: Any = str,
        context: Any = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        toolsets: Sequence[Toolset] = (),
        subagents: Sequence[AgentSpec[Any, Any] | str] = (),
        settings: Mapping[str, Any] | None = None,
        provider_options: Mapping[str, Any] | None = None,
        finish: FinishProtocol | None = None,
        parse_retries: int = DEFAULT_PARSE_RETRIES,
        output_validators: Sequence[Callable[..., Any]] = (),
        max_iterations: int | None = None,
        on_limit: OnLimit = "finish",
        limits: Limits | None = None,
        compaction: Compaction | Sequence[Compaction] | None = None,
        hooks: Iterable[Hook | HookSet] = (),
        approvals: Sequence[Rule] = (),
        versioning: Versioning = "auto_upgrade",
        client_tools: bool = False,
        caller_overrides: Sequence[str] = (),
        caller_claims: Sequence[str] = (),
        internal: bool = False,
    ) -> None:
        self.name = validate_agent_name(name)
        self.chain = validate_models(name, model)
        """The agent's models, in the order in which they are tried."""
        self.description = description
        self.instruction_parts = validate_instructions(name, instructions)
        """The system prompt: texts and functions, in their order."""
        self._set_types(context, input, output, finish, parse_retries, output_validators)
        listed_tools = validate_list(name, "tools", tools, "[search, refund]")
        own_subagents = validate_subagents(name, subagents, AgentSpec)
        self.toolbox = Toolbox([*listed_tools, *map(build_subagent_tool, own_subagents)])
        self.toolsets = validate_toolsets(name, toolsets)
        """Sources of tools that are listed when a run begins."""
        self.subagents = (*own_subagents, *find_called_agents(listed_tools))
        """Agents, or names of agents of the same worker, each called by a tool of its own: see ``Agents``."""
        self.settings: Mapping[str, Any] = validate_mapping(name, "settings", settings)
        self.provider_options: Mapping[str, Any] = validate_mapping(name, "provider_options", provider_options)
        check_model_settings(self.chain, self.settings, self.provider_options)
        self.on_limit: OnLimit = validate_on_limit(name, on_limit)
        self.limits = validate_agent_limits(name, limits)
        hooks = validate_hook_list(f"agent {name!r}", hooks)
        self.hooks = HookSet(validate_hooks(f"agent {name!r}", hooks, of_agent=True))
        self.compaction = validate_compaction(name, add_hook_compaction(compaction, hooks))
        """How the agent's conversations are compacted; None if they are not."""
        check_prices(name, self.chain, self.limits, self.compaction)
        self.max_iterations = resolve_max_iterations(name, max_iterations, self.limits)
        self.versioning: Versioning = validate_versioning(name, versioning)
        self._set_access(approvals, client_tools, caller_overrides, caller_claims, internal)
        functions: Any = {"tools": self.toolbox, "hooks": self.hooks, "instructions": self.instruction_parts}
        check_function_types(name, context, output, **functions)
        self._copies: dict[str, Self] = {}

    def _set_types(self, context: Any, input: Any, output: Any, finish: Any, retries: Any, validators: Any) -> None:
        self.context = context
        """The declared type of ``ctx.context``; None if none is declared."""
        self._context_type = None if context is None else ContextType(self.name, context)
        self.input = input
        """The declared type of a run's input; ``str`` is text and files."""
        self._input_type = None if input is str else ContextType(self.name, input, "input")
        self.output = output
        """The declared type of the answers."""
        self.output_type = OutputType(f"agent {self.name!r}", output)
        self.finish: FinishProtocol = resolve_finish_protocol(self.name, self.output_type.is_text, finish)
        self.parse_retries = validate_parse_retries(self.name, retries)
        """How often an answer that does not fit the type goes back to the model before the run fails."""
        self.output_validators = build_output_validators(self.name, validators)
        for validator in self.output_validators:
            check_validator_types(self.name, self.context, output, validator.fn)

    def _set_access(self, approvals: Any, client_tools: Any, overrides: Any, claims: Any, internal: Any) -> None:
        self.approvals = validate_rules(self.name, approvals)
        self.client_tools = validate_client_tools(self.name, client_tools)
        self.caller_overrides = validate_caller_overrides(self.name, overrides)
        self.caller_claims = validate_caller_claims(self.name, claims)
        self.internal = validate_internal(self.name, internal)

    def freeze(self, use: str) -> None:
        """See base class. Checks at the first use what a decorator may have changed since the definition."""
        if self._first_use is None:
            warn_of_low_threshold(self.name, self.compaction, self.instruction_parts, self.specs)
        super().freeze(use)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, and drop the cached overridden copies of the agent."""
        super().__setattr__(name, value)
        self.__dict__.get("_copies", {}).clear()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy takes over. It may be changed, and shares nothing that changes in place."""
        own = {"hooks": copy.copy(self.hooks), "_copies": {}, "_first_use": None}
        return vars(self) | own | {name: dict(getattr(self, name)) for name in ("settings", "provider_options")}

    def _copy_sharing_hooks(self) -> Self:
        """Return a copy that serves in the agent's place: a change of the agent's hooks is one of its own."""
        agent = copy.copy(self)
        agent.hooks = self.hooks
        return agent

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them: the same for every call, ``__finish__`` last."""
        return (*self.toolbox.specs, self.output_type.spec) if self.finish == "tool" else self.toolbox.specs

    @property
    def model(self) -> str:
        """``"<provider>:<model>"``; of the first model of a chain."""
        return str(self.chain[0])

    @property
    def models(self) -> tuple[str, ...]:
        """``"<provider>:<model>"`` of each model, in the order in which they are tried."""
        return tuple(map(str, self.chain))

    @property
    def provider_name(self) -> str:
        """Provider of the first model: its registered name, or the class name of the object."""
        return self.chain[0].provider

    @property
    def model_name(self) -> str:
        """The first model's name at its provider."""
        return self.chain[0].name

    @property
    def provider(self) -> Provider | None:
        """The first model's ``Provider`` object, if the agent was given one."""
        return self.chain[0].own

    @provider.setter
    def provider(self, provider: Provider | None) -> None:
        """Replace the provider object, also of an agent in use; the names stay."""
        vars(self)["chain"] = (replace(self.chain[0], own=provider), *self.chain[1:])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} on {', then '.join(self.models)}>"

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """Return a tool by which other agents call this one: ``tools=[researcher.as_tool("research", "…")]``.

        It takes a task as text, or the fields of the agent's input type. The default name is ``call_NAME``. Raises
        ``DefinitionError``.
        """
        return build_subagent_tool(self, name, description)

    def check_context(self, context: Any) -> dict[str, Any]:
        """Return ``context``, a mapping or an instance of the agent's context type, as the plain JSON that a run takes.

        Raises ``InvalidInputError`` that names the field.
        """
        if self._context_type is not None:
            return self._context_type.check(context)
        return {} if context is None else validate_plain_context(self.name, context)

    def read_context(self, context: Mapping[str, Any] | None) -> Any:
        """Return the value of ``ctx.context``: the validated object, or the plain data if the agent declares no type.

        Runs the author's validators. Raises ``InvalidInputError``.
        """
        return context if self._context_type is None else self._context_type.read(context)

    @property
    def has_context(self) -> bool:
        """Whether the agent declares a context type."""
        return self._context_type is not None

    @property
    def takes_input(self) -> bool:
        """Whether the agent declares an input type."""
        return self._input_type is not None

    def check_input(self, value: Any) -> dict[str, Any]:
        """Return ``value``, a mapping or an instance of the agent's input type, as the plain JSON that a run takes.

        Raises ``InvalidInputError`` that names the field.
        """
        if self._input_type is None:
            hint = f"Declare what it takes: Agent({self.name!r}, …, input={type(value).__name__})."
            raise InvalidInputError(f"agent {self.name!r} takes text and files, not {value!r:.100}", hint=hint)
        return self._input_type.check(value)

    def render_input(self, plain: Mapping[str, Any]) -> str:
        """Render an input for the model: the value with its defaults, as XML. Runs the author's validators. Raises
        ``InvalidInputError``."""
        if self._input_type is None:
            hint = "Send it a message: text, or texts and files."
            raise InvalidInputError(f"agent {self.name!r} declares no input type, and was given one", hint=hint)
        from .xml import to_xml

        adapter = self._input_type.adapter
        value = adapter.dump_python(self._input_type.read(plain), mode="json", by_alias=True, round_trip=True)
        return to_xml(value, adapter.json_schema())

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the input type: an object."""
        assert self._input_type is not None, "an agent with an input type"
        schema: dict[str, Any] = remove_titles(self._input_type.adapter.json_schema(schema_generator=PlainSchema))
        return {"type": "object", "properties": {}, **schema}

    def read_output(self, plain: Any) -> OutputT:
        """Convert a ``Response.output`` as plain JSON (of ``client.run(id)``, or of another language) into a value of
        the agent's output type. Raises ``ParseError``."""
        output: OutputT = self.output_type.load_value(plain)
        return output

    def overridden(self, override: Override | Mapping[str, Any] | None, worker: Toolbox | None = None) -> Self:
        """Return the agent with the changes of ``override``, checked like a definition; itself if nothing changes.

        ``settings`` and ``provider_options`` are merged over the agent's, and a setting of None is removed; ``tools``
        are names of the agent's own tools, and the others are not offered. The changes of a step may also name tools of
        the ``worker``. Raises ``DefinitionError`` or ``SettingsError`` that names the field.
        """
        if not override:
            return self
        plain = override.model_dump() if isinstance(override, Override) else override
        try:
            key = json.dumps(plain, sort_keys=True, default=repr)
            if worker is not None and (added := plain.get("add_tools")):
                key += repr([id(worker.get(name)) for name in added])  # a copy keeps its tools alive, and so their ids
        except (TypeError, ValueError, RecursionError):  # invalid: the error names the field
            return self._apply_override(override, worker)
        return self._get_or_create_copy(key, lambda: self._apply_override(override, worker))

    def with_tools(self, key: str, tools: Callable[[], Iterable[Tool]]) -> Self:
        """Return a copy that also has ``tools``, and no toolsets; the same copy for the same ``key``.

        If the agent has a tool of the same name, the agent's is used.
        """
        return self._get_or_create_copy(key, lambda: self._add_tools(tools()))

    def _add_tools(self, tools: Iterable[Tool]) -> Self:
        agent = self._copy_sharing_hooks()
        agent.toolbox = Toolbox([*self.toolbox, *(tool for tool in tools if tool.name not in self.toolbox)])
        agent.toolsets = ()
        return agent

    def _get_or_create_copy(self, key: str, create: Callable[[], Self]) -> Self:
        agent = self._copies.get(key)
        if agent is None:
            agent = create()
            with _copies_lock:  # step policies override agents in threads of their own
                while len(self._copies) >= _MAX_CACHED_COPIES:
                    self._copies.pop(next(iter(self._copies)), None)
                self._copies[key] = agent
        return agent

    def _apply_override(self, override: Override | Mapping[str, Any], worker: Toolbox | None) -> Self:
        """Return a copy with the changes. Errors are reported as for a definition."""
        try:
            step_override = override if isinstance(override, Override) else StepOverride.model_validate(override)
            changes = {field: value for field, value in step_override if value is not None}
            return self._apply_changes(changes, worker) if changes else self
        except ValidationError as error:
            problem = f"the override of agent {self.name!r}: {describe_validation_error(error, 'it')}"
            raise DefinitionError(problem, hint=f"It can change: {', '.join(Override.model_fields)}.") from None
        except DefinitionError as error:
            why = error.message.removeprefix(f"agent {self.name!r}: ")
            raise type(error)(f"the override of agent {self.name!r}: {why}", hint=error.hint) from None

    def _apply_changes(self, changes: dict[str, Any], worker: Toolbox | None) -> Self:
        agent = self._copy_sharing_hooks()
        if (model := changes.pop("model", None)) is not None:
            agent.chain = validate_models(self.name, list(model) if isinstance(model, tuple) else model)
        if (tools := changes.pop("tools", None)) is not None:
            agent.toolbox = select_tools(self, tools)
        added, removed = changes.pop("add_tools", ()), changes.pop("remove_tools", ())
        if added or removed:
            agent.toolbox = apply_step_tools(self, agent.toolbox, added, removed, worker)
        if "settings" in changes:
            given, merged = changes["settings"], {**self.settings, **changes["settings"]}
            changes["settings"] = {name: merged[name] for name in merged if given.get(name, ...) is not None}
        if "provider_options" in changes:
            changes["provider_options"] = {**self.provider_options, **changes["provider_options"]}
        if (limits := changes.get("limits")) is not None:  # merged one by one; the turn's iterations are max_iterations
            changes["limits"] = self.limits.changed(limits)
            if limits.turn is not None and limits.turn.iterations is not None:
                iterations = resolve_max_iterations(self.name, changes.get("max_iterations"), changes["limits"])
                changes["max_iterations"] = iterations
        if "instructions" in changes:
            changes["instruction_parts"] = validate_instructions(self.name, changes.pop("instructions"))
        if "finish" in changes:
            resolve_finish_protocol(self.name, self.output_type.is_text, changes["finish"])
        for field, value in changes.items():
            setattr(agent, field, value)
        check_model_settings(agent.chain, agent.settings, agent.provider_options)
        return agent


AgentSpec.__init__.__qualname__ = "Agent.__init__"  # as a TypeError names it: users write Agent(…)
