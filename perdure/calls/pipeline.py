"""What is around each call of a worker, from the outside in: five pipelines, one for each kind of activity.

A stage is a method that is given a call and ``next``, which runs the stages inside it. Outside the journal a step's
call returns its output; inside, its reply, with what is recorded; inside the iteration, the model's message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from ..agent.spec import AgentSpec
from ..context.auth import AuthContext
from ..hooks import HookSet, list_hook_events
from ..ports.store import Cache, Journal, Store, TranscriptChain
from ..types.messages import Message
from ..types.wire import (
    CallFacts,
    CloseInput,
    CloseOutput,
    CollectOutput,
    CompactOutput,
    ModelOutput,
    RemindInput,
    RemindOutput,
    ToolOutput,
)
from .agent_setup import AgentSetup
from .agents import Agents
from .approvals import ApprovalGate, ApprovalStage
from .author_loop import AuthorLoop
from .budget import BudgetStage
from .call import (
    ActivityCall,
    ActivityOutput,
    CloseCall,
    CollectCall,
    CompactCall,
    ConversationCall,
    ModelCall,
    NextTool,
    RemindCall,
    RequestCall,
    ToolCall,
)
from .events import EventsStage
from .failures import FailuresStage
from .inline_tools import InlineStage
from .iteration import IterationStage
from .iteration_hooks import MESSAGE_EVENTS, HookRunner
from .journal import JournalStage
from .model_hooks import ModelHookStage
from .prepare import PrepareStage
from .prompt import RequestBuilder
from .reply import ReplyReader
from .reply_cache import ReplyCacheStage
from .run_owner import RunOwnerStage
from .step_policy import StepPolicy
from .summary import SummaryStage
from .tool_hooks import ToolContextFactory, ToolHookStage
from .tracing import TracingStage
from .transcript import TranscriptStage
from .view import ViewStage

CallT = TypeVar("CallT")
ResultT = TypeVar("ResultT")
InnerT = TypeVar("InnerT")
InnerResultT = TypeVar("InnerResultT")
NextT = TypeVar("NextT")
NextResultT = TypeVar("NextResultT")


@dataclass(frozen=True)
class Pipeline(Generic[CallT, ResultT, InnerT, InnerResultT]):
    """Stages around a bare call, which is given an ``InnerT`` and returns an ``InnerResultT``."""

    stages: tuple[Callable[..., Awaitable[Any]], ...] = ()

    def then(
        self, stage: Callable[[InnerT, Callable[[NextT], Awaitable[NextResultT]]], Awaitable[InnerResultT]]
    ) -> Pipeline[CallT, ResultT, NextT, NextResultT]:
        """Return the pipeline with ``stage`` inside all others."""
        return Pipeline((*self.stages, stage))

    def around(self, call: Callable[[InnerT], Awaitable[InnerResultT]]) -> Callable[[CallT], Awaitable[ResultT]]:
        """Return the bare ``call`` with the stages around it."""
        wrapped: Any = call
        for stage in reversed(self.stages):
            wrapped = partial(stage, next=wrapped)
        return wrapped  # type: ignore[no-any-return]


async def note_begin(call: ToolCall, next: NextTool) -> ToolOutput:
    """Note that the function may have been called: the innermost stage of a tool call."""
    call.has_begun = True
    return await next(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the stages of a worker are made of."""

    store: Store
    chain: TranscriptChain
    journal: Journal
    """``store``, with a cache of outcomes."""
    views: Cache[Any]
    """Of conversations as models are sent them."""
    agents: Agents
    author: AuthorLoop
    hooks: HookSet | None
    """The worker's."""
    hook_runner: HookRunner
    setup: AgentSetup
    authorise: Callable[[CallFacts], Awaitable[AuthContext | None]] | None
    """Returns a run's ``auth_context``."""
    can_force_tool: Callable[[AgentSpec], bool]
    """Whether an agent's models can be forced to call a tool."""
    tool_contexts: ToolContextFactory
    call_tool: NextTool
    """The bare call of a tool, for those that run inside the model's activity."""
    is_stopped_by_run: Callable[[], bool]
    """Whether the run has cancelled the present activity; else the worker is stopping."""
    stream: bool
    report_waiting: Callable[[str], None]
    """Called with the reason when a call waits for the store, and with "" when it continues."""

    def can_hooks_change_messages(self, agent: str) -> bool:
        """Whether hooks may change users' messages to the agent; for an agent that is not served here, those of the
        worker."""
        served = self.agents.find(agent)
        return not list_hook_events(self.hooks, None if served is None else served.hooks).isdisjoint(MESSAGE_EVENTS)


@dataclass(frozen=True, slots=True)
class Pipelines:
    """The pipelines of a worker."""

    model: Pipeline[ModelCall, ModelOutput, RequestCall, Message]
    compact: Pipeline[CompactCall, CompactOutput, RequestCall, Message]
    close: Pipeline[CloseCall, CloseOutput, ConversationCall[CloseInput], None]
    remind: Pipeline[RemindCall, RemindOutput, ConversationCall[RemindInput], None]
    tool: Pipeline[ToolCall, ToolOutput, ToolCall, ToolOutput]

    async def run(self, call: ActivityCall, bare: Callable[[Any], Awaitable[Any]]) -> ActivityOutput:
        """Run ``call`` through its pipeline, with ``bare`` inside; what is collected has no stages."""
        match call:
            case ModelCall():
                return await self.model.around(bare)(call)
            case ToolCall():
                return await self.tool.around(bare)(call)
            case CompactCall():
                return await self.compact.around(bare)(call)
            case CloseCall():
                return await self.close.around(bare)(call)
            case RemindCall():
                return await self.remind.around(bare)(call)
            case CollectCall():
                collected: CollectOutput = await bare(call)
                return collected


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages of a worker; those of several pipelines are shared."""

    tracing: TracingStage
    owner: RunOwnerStage
    failures: FailuresStage
    prepare: PrepareStage
    journal: JournalStage
    events: EventsStage
    transcript: TranscriptStage
    iteration: IterationStage
    summary: SummaryStage
    view: ViewStage
    model_hooks: ModelHookStage
    reply_cache: ReplyCacheStage
    budget: BudgetStage
    approvals: ApprovalStage
    tool_hooks: ToolHookStage


def build_pipelines(parts: Parts) -> Pipelines:
    """Build the pipelines. A tool call passes the same stages in an activity of its own and inline."""
    stages = _build_stages(parts)
    tool = _build_tool(stages)
    model = _build_model(stages, InlineStage(tool.around(parts.call_tool)))
    return Pipelines(model, _build_compact(stages), _build_close(stages), _build_remind(stages), tool)


def _build_model(stages: _Stages, inline: InlineStage) -> Pipeline[ModelCall, ModelOutput, RequestCall, Message]:
    return (
        Pipeline[ModelCall, ModelOutput, ModelCall, ModelOutput]()
        .then(stages.tracing.step)
        .then(inline.model)
        .then(stages.owner.step)
        .then(stages.failures.step)
        .then(stages.prepare.step)
        .then(stages.journal.step)
        .then(stages.events.model)
        .then(stages.transcript.model)
        .then(stages.iteration.model)
        .then(stages.view.request)
        .then(stages.model_hooks.request)
        .then(stages.reply_cache.request)
        .then(stages.budget.request)
    )


def _build_compact(stages: _Stages) -> Pipeline[CompactCall, CompactOutput, RequestCall, Message]:
    return (
        Pipeline[CompactCall, CompactOutput, CompactCall, CompactOutput]()
        .then(stages.tracing.step)
        .then(stages.owner.step)
        .then(stages.failures.step)
        .then(stages.prepare.step)
        .then(stages.journal.step)
        .then(stages.events.compact)
        .then(stages.transcript.compact)
        .then(stages.summary.compact)
        .then(stages.model_hooks.request)
        .then(stages.reply_cache.request)
        .then(stages.budget.request)
    )


def _build_close(stages: _Stages) -> Pipeline[CloseCall, CloseOutput, ConversationCall[CloseInput], None]:
    return (
        Pipeline[CloseCall, CloseOutput, CloseCall, CloseOutput]()
        .then(stages.tracing.step)
        .then(stages.owner.close)
        .then(stages.failures.step)
        .then(stages.journal.step)
        .then(stages.events.close)
        .then(stages.transcript.close)
    )


def _build_remind(stages: _Stages) -> Pipeline[RemindCall, RemindOutput, ConversationCall[RemindInput], None]:
    return (
        Pipeline[RemindCall, RemindOutput, RemindCall, RemindOutput]()
        .then(stages.tracing.step)
        .then(stages.failures.step)
        .then(stages.prepare.step)
        .then(stages.journal.step)
        .then(stages.events.remind)
        .then(stages.transcript.remind)
    )


def _build_tool(stages: _Stages) -> Pipeline[ToolCall, ToolOutput, ToolCall, ToolOutput]:
    return (
        Pipeline[ToolCall, ToolOutput, ToolCall, ToolOutput]()
        .then(stages.tracing.tool)
        .then(stages.failures.tool)
        .then(stages.prepare.tool)
        .then(stages.journal.tool)
        .then(stages.events.tool)
        .then(stages.approvals.tool)
        .then(stages.tool_hooks.tool)
        .then(note_begin)
    )


def _build_stages(parts: Parts) -> _Stages:
    store, agents, author, hook_runner = parts.store, parts.agents, parts.author, parts.hook_runner
    gate = ApprovalGate(author, agents.find)
    requests, view = RequestBuilder(author, parts.can_force_tool), ViewStage(parts.views)
    policy = StepPolicy(author, agents, hook_runner)
    return _Stages(
        tracing=TracingStage(),
        owner=RunOwnerStage(store, parts.report_waiting),
        failures=FailuresStage(store),
        prepare=PrepareStage(parts.chain, store.store_id, agents.get, parts.authorise),
        journal=JournalStage(parts.journal, parts.report_waiting),
        events=EventsStage(
            store,
            parts.is_stopped_by_run,
            stream=parts.stream,
            changed_by_hooks=parts.can_hooks_change_messages,
            find_agent=agents.find,
        ),
        transcript=TranscriptStage(parts.chain, parts.journal, store, store.store_id, parts.setup.render_input),
        iteration=IterationStage(parts.setup, hook_runner, policy, requests, ReplyReader(author, gate), author),
        summary=SummaryStage(parts.setup, requests, view),
        view=view,
        model_hooks=ModelHookStage(author.run, parts.hooks),
        reply_cache=ReplyCacheStage(store, parts.hooks),
        budget=BudgetStage(lambda agent: agents.get(agent).limits),
        approvals=ApprovalStage(agents, gate, hook_runner, parts.setup.build_run_context),
        tool_hooks=ToolHookStage(author.run, agents.get, agents.find_tool, parts.tool_contexts, parts.hooks),
    )
