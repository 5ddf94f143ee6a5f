"""``Agent``: a name, a model, instructions and tools. Everything that can be wrong with it is said when it is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from ..errors import DefinitionError
from ..hooks import Hook, HookSet, validate_hooks
from ..hooks.hook import add_hook_compaction, validate_hook_list
from ..ports import Provider, Toolset, ToolSpec
from ..tools import Rule, RunContext, SubagentTool, Tool, Toolbox
from ..tools.approvals import validate_rules
from ..tools.context_type import ContextType, validate_plain_context
from ..tools.subagents import build_subagent_tool
from ..types.compaction import Compaction
from ..types.interface import FinishProtocol, OnLimit, Override
from ..types.limits import Limits
from .output import DEFAULT_PARSE_RETRIES, Typed
from .overrides import OverrideCache, check_agent_settings, get_overridden_agent
from .validation import (
    check_prices,
    resolve_max_iterations,
    validate_agent_limits,
    validate_agent_name,
    validate_choice,
    validate_compaction,
    validate_instructions,
    validate_list,
    validate_mapping,
    validate_models,
    validate_toolsets,
)

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.on_approval import OnApproval
    from ..client.start import History
    from ..types.files import MessageInput
    from ..types.interface import Response


Instructions = str | Callable[[RunContext[Any]], Any] | None


class Agent(Typed):
    """What runs: a model with instructions and tools, under a name that workers and clients know it by.

    ``model`` is ``"<provider>:<model>"``, or a ``Provider`` object; or a list of them, a chain: where one fails, the
    next is asked at once. ``instructions`` is the system prompt, or a sync or async function of a ``RunContext`` that
    gives it. ``context`` is the type of the run's own data (a pydantic model, a dataclass, a TypedDict): it is checked
    when a run starts, and ``ctx.context`` is of it. ``input`` and ``output`` are types of what it is asked and answers;
    text without. ``finish="text"``: a reply with text and no tool calls is the answer; ``"tag"``: the answer stands in
    ``<finish>…</finish>``; ``"tool"``, which every other output than text has: it is the arguments of the tool
    ``__finish__``. What is not of the type, or what ``output_validators`` refuse, goes back to the model
    ``parse_retries`` times. ``limits`` is what a run and its turns may use, and what a model call may take. At one of
    them, and at ``max_iterations`` model calls in a turn (50), ``on_limit`` says whether the model is asked for its
    answer (``"finish"``), the last text is returned (``"return"``), ``MaxIterationsError`` or ``BudgetExceededError``
    is raised (``"error"``), or the run waits for somebody to raise the limit (``"pause"``).

    ``compaction`` keeps long conversations short: a ``Compaction``, or a list of several. ``toolsets`` are asked for
    their tools when a run begins: MCP servers, ``Artifacts``, or one's own (``Toolset``). ``subagents`` are agents, or
    names of agents of the same worker: each is a tool ``call_NAME``, and a call of it a run of its own. ``approvals``
    are rules on calls, of which the first that matches counts: ``[allow("read_*"), deny("rm", path="/etc/*"),
    ask("*")]``; where none does, a tool's own ``needs_approval``.

    Raises ``DefinitionError`` (or ``SettingsError``) that names what is wrong and the way out.
    """

    def __init__(
        self,
        name: str,
        model: str | Provider | Sequence[str | Provider],
        *,
        description: str = "",
        instructions: Instructions = None,
        input: Any = str,
        output: Any = str,
        context: Any = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        toolsets: Sequence[Toolset] = (),
        subagents: Sequence[Agent | str] = (),
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
    ) -> None:
        self.name = validate_agent_name(name)
        self.chain = validate_models(name, model)
        """Its models, in the order in which they are asked."""
        self.description = description
        self.instructions: Instructions = validate_instructions(name, instructions)
        self.context = context
        """The declared type of ``ctx.context``; None without one."""
        self._context_type = None if context is None else ContextType(name, context)
        given = validate_list(name, "tools", tools, "[search, refund]")
        called = [one for one in given if isinstance(one, SubagentTool) and not one.is_chosen_by_model]
        own = tuple(_validate_subagents(name, subagents))
        self.toolbox = Toolbox([*given, *map(build_subagent_tool, own)])
        self.toolsets = validate_toolsets(name, toolsets)
        """Tools that are known when a run begins."""
        self.subagents = (*own, *(agent for one in called for agent in one.agents))
        """Agents, or names of agents that the same worker serves, that a tool each calls: see ``Agents``."""
        self.settings = validate_mapping(name, "settings", settings)
        self.provider_options = validate_mapping(name, "provider_options", provider_options)
        check_agent_settings(self)
        self._set_types(input, output, finish, parse_retries, output_validators)
        self.on_limit: OnLimit = validate_choice(name, "on_limit", on_limit, get_args(OnLimit))
        self.limits = validate_agent_limits(name, limits)
        hooks = validate_hook_list(f"agent {name!r}", hooks)
        self.hooks = HookSet(validate_hooks(f"agent {name!r}", hooks, of_agent=True))
        self.compaction = validate_compaction(name, add_hook_compaction(compaction, hooks))
        """How its conversations are kept short; None where they are not."""
        check_prices(name, self.chain, self.limits, self.compaction)
        self.max_iterations = resolve_max_iterations(name, max_iterations, self.limits)
        self.approvals = validate_rules(name, approvals)
        """Which calls run unasked, wait for a person, or are denied: the first rule that matches."""
        self._overridden = OverrideCache()

    def __setattr__(self, name: str, value: Any) -> None:
        """A changed agent makes its overridden copies anew."""
        super().__setattr__(name, value)
        self.__dict__.get("_overridden", {}).clear()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them: the same at every call, ``__finish__`` the last."""
        return (*self.toolbox.specs, self.output_type.spec) if self.finish == "tool" else self.toolbox.specs

    @property
    def model(self) -> str:
        """``"<provider>:<model>"``; of a chain, the first."""
        return str(self.chain[0])

    @property
    def models(self) -> tuple[str, ...]:
        """``"<provider>:<model>"`` of each model, in the order in which they are asked."""
        return tuple(map(str, self.chain))

    @property
    def provider_name(self) -> str:
        """Of the first model: the registered name of its provider, or the class of its object."""
        return self.chain[0].provider

    @property
    def model_name(self) -> str:
        """Of the first model: its name at the provider."""
        return self.chain[0].name

    @property
    def provider(self) -> Provider | None:
        """The object that is the first model, where the agent was given one."""
        return self.chain[0].own

    @provider.setter
    def provider(self, provider: Provider | None) -> None:
        """Put another in its place; the names stay."""
        self.chain = (replace(self.chain[0], own=provider), *self.chain[1:])

    def __repr__(self) -> str:
        return f"<Agent {self.name} on {', then '.join(self.models)}>"

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """A tool for other agents, by which they call this one: ``tools=[researcher.as_tool("research", "…")]``.

        It takes a task as text, or the fields of the agent's input type. Without a name it is ``call_NAME``. Raises
        ``DefinitionError``.
        """
        return build_subagent_tool(self, name, description)

    def check_context(self, context: Any) -> dict[str, Any]:
        """``context``, a mapping or an instance of the agent's context type, as the plain JSON that a run is given.

        Raises ``InvalidInputError`` that names the field.
        """
        if self._context_type is not None:
            return self._context_type.check(context)
        return {} if context is None else validate_plain_context(self.name, context)

    def read_context(self, context: Mapping[str, Any] | None) -> Any:
        """What ``ctx.context`` is: the validated object, or the plain data where the agent declares no type.

        Raises ``InvalidInputError``. Validators of the author's run in it.
        """
        return context if self._context_type is None else self._context_type.read(context)

    @property
    def has_context(self) -> bool:
        """Whether it declares a context type."""
        return self._context_type is not None

    def overridden(self, override: Override | Mapping[str, Any] | None, worker: Toolbox | None = None) -> Agent:
        """The agent with what ``override`` changes, checked as a definition is; itself where nothing changes.

        ``settings`` and ``provider_options`` are merged over the agent's, and a setting of None is taken away;
        ``tools`` are names of the agent's own, the others are not offered. What a step keeps may name tools of the
        ``worker`` besides. Raises ``DefinitionError`` or ``SettingsError`` that names the field.
        """
        return get_overridden_agent(self, override, worker) if override else self

    async def call(
        self,
        message: MessageInput,
        *,
        id: str | None = None,
        context: Any = None,
        auth_context: Mapping[str, Any] | None = None,
        history: History | None = None,
        override: Override | Mapping[str, Any] | None = None,
        client: Client | None = None,
        on_approval: OnApproval | None = None,
    ) -> Response:
        """Run and wait for the answer to ``message`` (text, or a list of texts and ``File``): on this machine (an
        embedded server, and a worker in this process), or by the workers of ``client``.

        With ``id``, a run of that id that is there already is attached to, also one that has ended. ``context`` is the
        run's own data, a mapping or an instance of the agent's context type; ``auth_context`` on whose behalf it acts
        (see ``Client.start``); ``history`` the conversation to go on from: messages (or a session in the flat form of
        ``types.session_form``), or a run, a response, a head; ``override`` what this run changes of the agent. Several
        calls, also of different agents, may be made at once.

        ``on_approval`` says what becomes of a call that waits for a person: ``"prompt"`` asks on the terminal, which it
        does by default where there is one; ``"raise"``, the default elsewhere, raises ``ApprovalPendingError``, and the
        run stays open; ``"wait"`` waits until somebody decides; ``"approve"`` approves; a function is given the call
        and returns True, False, or None for somebody else.

        A call that is cancelled (Ctrl-C) cancels its run, unless it has an ``id``: then the run stays, and the same
        call goes on with it. Raises the run's error; ``InvalidInputError`` and ``DefinitionError`` for wrong
        arguments; ``NoWorkerError`` where no worker of ``client`` takes the run for 10 s.
        """
        from ..local_engine import call_agent

        given = self.check_context(context)
        self.overridden(override)
        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        return await call_agent(self, message, id=id, client=client, on_approval=on_approval, context=given, **options)

    async def stream(
        self,
        message: MessageInput,
        *,
        id: str | None = None,
        context: Any = None,
        auth_context: Mapping[str, Any] | None = None,
        history: History | None = None,
        override: Override | Mapping[str, Any] | None = None,
        client: Client | None = None,
        on_approval: OnApproval | None = None,
    ) -> AsyncGenerator[str]:
        """:meth:`call`, and the text of the replies as it is written: ``async for text in agent.stream("…")``.

        A reply behind another one begins on a new line. One that is cut off is written again by another attempt: what
        it says in the same words is not repeated; if it says something else, it begins on a new line too. Whoever has
        to tell such things apart follows ``run.events()``. Left before its end, it cancels its run, unless it has an
        ``id``. Raises as :meth:`call`, at its end.
        """
        from ..local_engine import stream_agent

        given = self.check_context(context)
        self.overridden(override)
        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        pieces = stream_agent(self, message, id=id, client=client, on_approval=on_approval, context=given, **options)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    def call_sync(
        self,
        message: MessageInput,
        *,
        id: str | None = None,
        context: Any = None,
        auth_context: Mapping[str, Any] | None = None,
        history: History | None = None,
        override: Override | Mapping[str, Any] | None = None,
        client: Client | None = None,
        on_approval: OnApproval | None = None,
    ) -> Response:
        """:meth:`call` for code without an event loop. Raises ``RuntimeError`` inside a running one."""
        from ..local_engine import run_sync

        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        options |= {"context": context, "client": client, "on_approval": on_approval}
        return run_sync(lambda: self.call(message, id=id, **options))


def _validate_subagents(name: str, subagents: Sequence[Agent | str]) -> Iterator[Agent | str]:
    for one in validate_list(name, "subagents", subagents, "[researcher]"):
        if not isinstance(one, Agent | str):
            raise DefinitionError(
                f"agent {name!r}: a subagent is an Agent or the name of one, not {one!r:.100}",
                hint="A function goes into tools=[…].",
            )
        yield one
