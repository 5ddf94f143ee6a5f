"""``Agent``: an agent that can be called here, by the engine on this machine or by the workers of a client.

The engine is imported by the first call: a deployed agent never loads it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, overload

from ..agent.spec import AgentSpec
from ..context.run_context import ContextT
from ..types.interface import OutputT

if TYPE_CHECKING:
    from typing import _SpecialForm  # what Literal[…] is to mypy

    from typing_extensions import Unpack

    from ..agent.spec import Instructions, Validator
    from ..agent.validation import AgentOptions
    from ..client.client import Client
    from ..client.start import History
    from ..hooks import Hook, HookSet
    from ..ports.model import Provider
    from ..ports.toolset import Toolset
    from ..tools import Tool
    from ..tools.tool import Function, TakesAnyContext
    from ..types.interface import Override, Response
    from ..types.messages import MessageInput
    from .on_approval import OnApproval


class Agent(AgentSpec[ContextT, OutputT]):
    """A model with instructions and tools, under a name by which workers and clients refer to it.

    Args:
        name: What workers, clients and other agents call it.
        model: ``"<provider>:<model>"``, a ``Provider`` object, or a list of them: when one fails, the next is called at
            once.
        description: What the agent does, for the model of an agent that calls it.
        instructions: The system prompt: a text, a sync or async function of a ``RunContext`` that returns it, or a list
            of such parts.
        input: The type of the run's input. ``str`` is text and files.
        output: The type of the answer.
        context: The type of the run's own data: a pydantic model, a dataclass, a TypedDict. It is validated when a run
            starts, and ``ctx.context`` is an instance of it.
        tools: Functions, or what ``@tool`` makes of them.
        toolsets: Sources of tools that are listed when a run begins: MCP servers, ``Artifacts``, custom ones.
        subagents: Agents, or names of agents of the same worker. Each is a tool ``call_NAME``, and each call of it is a
            run of its own.
        settings: Settings of the model: ``{"temperature": 0}``.
        provider_options: Fields that the provider is sent as they are: ``{"store": True}``.
        finish: How a reply becomes the answer. ``"text"``: it has text and no tool calls. ``"tag"``: it has the answer
            inside ``<finish>…</finish>``. ``"tool"``, the default for every output type but text: it calls the tool
            ``__finish__``, whose arguments are the answer.
        parse_retries: How often an answer that does not fit the type, or that a validator rejects, goes back to the
            model.
        output_validators: Functions that check the answer, and may raise ``ModelRetry``.
        max_iterations: Model calls in a turn; 50 by default.
        on_limit: What happens at a limit, or at ``max_iterations``. ``"finish"`` asks the model for its answer,
            ``"return"`` returns the last text, ``"error"`` raises ``MaxIterationsError`` or ``BudgetExceededError``,
            ``"pause"`` waits until the limit is raised.
        limits: Bounds what a run, its turns and a model call may use.
        compaction: Keeps long conversations short: a ``Compaction``, or a list of several.
        hooks: Hooks around the agent's own calls, after those of the worker.
        approvals: Rules on calls, of which the first that matches decides: ``[allow("read_*"), ask("*")]``. Where none
            matches, the tool's own ``needs_approval`` decides.
        versioning: When a run moves to the current version of versioned workers: ``"auto_upgrade"`` at its next step,
            ``"pinned"`` at the end of its turn.
        client_tools: Whether the client of a turn may declare tools that it runs itself.
        caller_overrides: What of the agent callers of a service may change: ``["settings.temperature", "limits"]``.
        caller_claims: What callers of a service may say of themselves: ``context``, ``auth_context``, ``auth_ref``,
            ``user``.
        internal: Whether only other agents call it, and no caller of a service.

    Raises ``DefinitionError`` (or ``SettingsError``) that names the problem and the way out.

    To a type checker it is ``Agent[Context, Output]``, by its ``context`` and ``output``. What is not a class (``A |
    B``, ``Literal``) is ``Any`` there, unless it is named: ``Agent[Context, A | B](…)``.
    """

    if TYPE_CHECKING:  # at run time it is that of the base
        # By the arguments: no output, and no context or one; an output that is a class; `A | B`; any other output. The
        # last takes no validators: an output that is a class, with a validator of another one, must not fit it.
        @overload
        def __init__(
            self: Agent[Any, str],
            name: str,
            model: str | Provider | Sequence[str | Provider],
            *,
            context: UnionType | None = ...,
            instructions: Instructions[Any] = ...,
            tools: Sequence[Tool | Function] = ...,
            subagents: Sequence[AgentSpec[Any, Any] | str] = ...,
            hooks: Iterable[Hook | HookSet] = ...,
            output_validators: Sequence[Validator[str, Any]] = ...,
            **options: Unpack[AgentOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: Agent[ContextT, str],
            name: str,
            model: str | Provider | Sequence[str | Provider],
            *,
            context: type[ContextT],
            instructions: Instructions[ContextT] = ...,
            tools: Sequence[Tool[..., Any, ContextT] | TakesAnyContext | Function] = ...,
            subagents: Sequence[AgentSpec[Any, Any] | str] = ...,
            hooks: Iterable[Hook[ContextT] | TakesAnyContext | HookSet] = ...,
            output_validators: Sequence[Validator[str, ContextT]] = ...,
            **options: Unpack[AgentOptions],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            model: str | Provider | Sequence[str | Provider],
            *,
            output: type[OutputT],
            context: type[ContextT] | UnionType | None = ...,
            instructions: Instructions[ContextT] = ...,
            tools: Sequence[Tool[..., Any, ContextT] | TakesAnyContext | Function] = ...,
            subagents: Sequence[AgentSpec[Any, Any] | str] = ...,
            hooks: Iterable[Hook[ContextT] | TakesAnyContext | HookSet] = ...,
            output_validators: Sequence[Validator[OutputT, ContextT]] = ...,
            **options: Unpack[AgentOptions],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            model: str | Provider | Sequence[str | Provider],
            *,
            output: UnionType | _SpecialForm,
            context: type[ContextT] | UnionType | None = ...,
            instructions: Instructions[ContextT] = ...,
            tools: Sequence[Tool[..., Any, ContextT] | TakesAnyContext | Function] = ...,
            subagents: Sequence[AgentSpec[Any, Any] | str] = ...,
            hooks: Iterable[Hook[ContextT] | TakesAnyContext | HookSet] = ...,
            output_validators: Sequence[Validator[Any, ContextT]] = ...,
            **options: Unpack[AgentOptions],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            model: str | Provider | Sequence[str | Provider],
            *,
            output: Any,
            context: type[ContextT] | UnionType | None = ...,
            instructions: Instructions[ContextT] = ...,
            tools: Sequence[Tool[..., Any, ContextT] | TakesAnyContext | Function] = ...,
            subagents: Sequence[AgentSpec[Any, Any] | str] = ...,
            hooks: Iterable[Hook[ContextT] | TakesAnyContext | HookSet] = ...,
            **options: Unpack[AgentOptions],
        ) -> None: ...
        def __init__(self, name: str, model: Any, **options: Any) -> None: ...

    async def call(
        self,
        message: MessageInput,
        *,
        id: str | None = None,
        context: ContextT | Mapping[str, Any] | None = None,
        auth_context: Mapping[str, Any] | None = None,
        history: History | None = None,
        override: Override | Mapping[str, Any] | None = None,
        client: Client | None = None,
        on_approval: OnApproval | None = None,
        approve_as: str | None = None,
    ) -> Response[OutputT]:
        """Run and wait for the answer to ``message`` (text, or a list of texts and ``File``): on this machine (an
        embedded server, and a worker in this process), or by the workers of ``client``.

        With an ``id``, an existing run of that id is attached to, also one that has ended. ``context`` is the run's own
        data, a mapping or an instance of the agent's context type; ``auth_context`` is the identity on whose behalf it
        acts (see ``Client.start``); ``history`` is the conversation to continue: messages (or a session in the flat
        form of ``types.session_form``), or a run, a response, a head; ``override`` changes the agent for this run.
        Several calls, also of different agents, may run at the same time. Tools do not get the caller's context
        variables: pass ``context``. Without an ``id`` and a ``client``, the run has a task queue that only this agent
        object serves; with an ``id``, all programs and agent objects of this name that call at the same time serve it,
        so they must be the same agent.

        ``on_approval`` decides on a call that waits for approval: ``"prompt"``, the default on a terminal, prompts
        there; ``"raise"``, the default elsewhere, raises ``ApprovalPendingError`` and leaves the run open; ``"wait"``
        waits for a decision; ``"approve"`` approves; a function takes the call and returns True, False, or None to
        leave the decision to another approver. ``approve_as`` is the name that decides, by default the client's actor:
        a ``separate`` tool needs another than who sends the message, in a test for instance ``approve_as="ana"``.

        Cancelling the call (Ctrl-C), or an error of that function, cancels the run, unless it has an ``id``: then it
        stays, and the same call continues it. Raises the run's error, and that of the function; ``InvalidInputError``
        and ``DefinitionError`` for wrong arguments; ``NoWorkerError`` if no worker of ``client`` takes it for 10 s.
        """
        from .engine import call_agent

        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        return await call_agent(self, message, id, client, (on_approval, approve_as), context=context, **options)

    def stream(
        self,
        message: MessageInput,
        *,
        id: str | None = None,
        context: ContextT | Mapping[str, Any] | None = None,
        auth_context: Mapping[str, Any] | None = None,
        history: History | None = None,
        override: Override | Mapping[str, Any] | None = None,
        client: Client | None = None,
        on_approval: OnApproval | None = None,
        approve_as: str | None = None,
    ) -> AsyncGenerator[str]:
        """Do the same as :meth:`call`, and yield the text of the replies as it arrives: ``async for text in
        agent.stream("…")``.

        Each further reply begins on a new line. A reply that is cut off is generated again by another attempt: text
        that repeats it is not yielded again; text that differs begins on a new line. To tell these cases apart, follow
        ``run.events()``. Closing the stream before its end cancels the run, unless it has an ``id``. Raises as
        :meth:`call`, at its end.
        """
        from .engine import stream_agent

        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        return stream_agent(self, message, id, client, (on_approval, approve_as), context=context, **options)

    def stream_output(
        self,
        message: MessageInput,
        *,
        id: str | None = None,
        context: ContextT | Mapping[str, Any] | None = None,
        auth_context: Mapping[str, Any] | None = None,
        history: History | None = None,
        override: Override | Mapping[str, Any] | None = None,
        client: Client | None = None,
        on_approval: OnApproval | None = None,
        approve_as: str | None = None,
    ) -> AsyncGenerator[OutputT]:
        """Do the same as :meth:`call`, and yield the output so far while the model writes it, and last the validated
        output: ``async for outline in agent.stream_output("…")``. See ``Run.stream_output``; closing the stream before
        its end: see :meth:`stream`."""
        from .engine import stream_agent_output

        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        return stream_agent_output(self, message, id, client, (on_approval, approve_as), context=context, **options)

    def call_sync(
        self,
        message: MessageInput,
        *,
        id: str | None = None,
        context: ContextT | Mapping[str, Any] | None = None,
        auth_context: Mapping[str, Any] | None = None,
        history: History | None = None,
        override: Override | Mapping[str, Any] | None = None,
        client: Client | None = None,
        on_approval: OnApproval | None = None,
        approve_as: str | None = None,
    ) -> Response[OutputT]:
        """Do the same as :meth:`call` in code without an event loop. Raises ``RuntimeError`` inside a running one."""
        from .engine import call_agent, run_sync

        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        return run_sync(
            lambda: call_agent(self, message, id, client, (on_approval, approve_as), context=context, **options)
        )


def load_agent(
    source: str | Path | Mapping[str, Any],
    *,
    tools: Iterable[Tool | Callable[..., Any]] = (),
    toolsets: Iterable[Toolset] = (),
) -> Agent:
    """Load the agent that a file describes, or a mapping with the same fields.

    ``tools`` and ``toolsets`` are those that it may refer to by name. A file without a ``name`` names its agent after
    the file. Raises ``DefinitionError`` that names the file and the field, ``RuntimeSetupError`` if no YAML parser is
    installed.
    """
    from ..agent.agent_file import load_spec

    return load_spec(source, Agent, tools=tools, toolsets=toolsets)
