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

    ``model`` is ``"<provider>:<model>"`` or a ``Provider`` object, or a list of them, the fallback chain: when one
    fails, the next is called at once. ``instructions`` is the system prompt, a sync or async function of a
    ``RunContext`` that returns it, or a list of such parts. ``context`` is the type of the run's own data (a pydantic
    model, a dataclass, a TypedDict): it is validated when a run starts, and ``ctx.context`` is an instance of it.
    ``input`` and ``output`` are the types of the run's input and answer; text by default. ``finish="text"``: a reply
    with text and no tool calls is the answer; ``"tag"``: the answer is inside ``<finish>…</finish>``; ``"tool"``, the
    default for every output type but text: the arguments of the tool ``__finish__`` are the answer. An answer that does
    not fit the type, or that ``output_validators`` reject, goes back to the model up to ``parse_retries`` times.
    ``limits`` bounds what a run, its turns and a model call may use. At a limit, and at ``max_iterations`` model calls
    in a turn (50), ``on_limit`` decides: ask the model for its answer (``"finish"``), return the last text
    (``"return"``), raise ``MaxIterationsError`` or ``BudgetExceededError`` (``"error"``), or wait until the limit is
    raised (``"pause"``).

    ``compaction`` keeps long conversations short: a ``Compaction``, or a list of several. ``toolsets`` list their tools
    when a run begins: MCP servers, ``Artifacts``, or custom ones (``Toolset``). ``subagents`` are agents, or names of
    agents of the same worker: each is a tool ``call_NAME``, and each call of it is a run of its own. ``approvals`` are
    rules on calls; the first that matches decides: ``[allow("read_*"), deny("rm", path="/etc/*"), ask("*")]``. Where
    none matches, the tool's own ``needs_approval`` decides. On versioned workers a run moves to the current version at
    its next step, or with ``versioning="pinned"`` at the end of its turn. With ``client_tools=True`` the client of a
    turn may declare tools that it runs itself. ``caller_overrides`` and ``caller_claims`` name what a caller of a
    service may change and say; with ``internal=True`` only other agents call it.

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
        leave the decision to another approver.

        Cancelling the call (Ctrl-C), or an error of that function, cancels the run, unless it has an ``id``: then it
        stays, and the same call continues it. Raises the run's error, and that of the function; ``InvalidInputError``
        and ``DefinitionError`` for wrong arguments; ``NoWorkerError`` if no worker of ``client`` takes it for 10 s.
        """
        from .engine import call_agent

        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        return await call_agent(self, message, id, client, on_approval, context=context, **options)

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
        return stream_agent(self, message, id, client, on_approval, context=context, **options)

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
    ) -> AsyncGenerator[OutputT]:
        """Do the same as :meth:`call`, and yield the output so far while the model writes it, and last the validated
        output: ``async for outline in agent.stream_output("…")``. See ``Run.stream_output``; closing the stream before
        its end: see :meth:`stream`."""
        from .engine import stream_agent_output

        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        return stream_agent_output(self, message, id, client, on_approval, context=context, **options)

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
    ) -> Response[OutputT]:
        """Do the same as :meth:`call` in code without an event loop. Raises ``RuntimeError`` inside a running one."""
        from .engine import call_agent, run_sync

        options: Any = {"auth_context": auth_context, "history": history, "override": override}
        return run_sync(lambda: call_agent(self, message, id, client, on_approval, context=context, **options))


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
