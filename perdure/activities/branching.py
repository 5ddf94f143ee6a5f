"""What a step policy may ask of other agents: ``step.branch``, from the conversation as the policy has it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..agent import Agent
from ..errors import BranchError, DefinitionError, PerdureError, from_type
from ..hooks.branch import Branch, Branches
from ..hooks.files import by_reference
from ..hooks.step import Step
from ..loop.edited import taken_over, unsound
from ..loop.finish import REMINDER_ID
from ..loop.sizes import size
from ..overriding import overridden
from ..ports import Blob, Fork, ModelCall, ModelReply
from ..tools.subagent import agent_name
from ..types.branch import BRANCHES, MODEL_BYTES, SAID_CHARS, BranchAsked, BranchOutcome
from ..types.interface import plain_output
from ..types.messages import Message, clean
from ..types.wire import ModelOutput
from .agents import Agents

Messages = Literal["all", "none"]


@dataclass(frozen=True, slots=True)
class Waits:
    """The policy waits for branches: what the call comes to, in a reply's place."""

    branches: tuple[BranchAsked, ...]
    forks: tuple[Fork | None, ...]
    blobs: tuple[Blob, ...]

    def reply(self, call: ModelCall) -> ModelReply:
        """Nothing of what the attempt did counts: the policy, and the hooks before it, run again."""
        call.writes.clear()
        call.blobs += self.blobs
        return ModelReply(ModelOutput(branches=self.branches), message=None, forks=self.forks)


class Branching:
    """The branches of one attempt of a policy."""

    def __init__(self, agents: Agents, call: ModelCall, known: Sequence[Message], recorded: int) -> None:
        """``known``: the conversation, of which the first ``recorded`` messages are in the transcript already."""
        self._agents = agents
        self._call = call
        self._known = self._without_order(known)
        self._recorded = recorded
        self._forks: dict[int, tuple[Fork | None, list[Blob]]] = {}
        self._asked = len(call.branches)
        self.branches = Branches(tuple(call.branches), self._answer)

    def begin(self, step: Step, agent: Any, message: Any, model: Any, messages: Any) -> Branch:
        """``step.branch``. Raises ``DefinitionError``, ``AgentNotFoundError``, ``InvalidInputError``."""
        found = self._agents.get(_name(agent))
        if messages not in get_args(Messages):
            raise DefinitionError(f'step.branch(messages=…) is "all" or "none", not {messages!r:.100}')
        models = self._models(found, model)
        text, typed = _said(found, message)
        if text is None and messages == "none":
            raise DefinitionError(
                f"a branch to agent {found.name!r} without the conversation has nothing to answer",
                hint='Give it a message, or messages="all".',
            )
        fork, blobs = self._fork(step, text) if messages == "all" else (None, [])
        asked = _asked(found.name, text, typed, models, messages)
        branch = self.branches.begin(asked)
        if not branch.awaited:
            self._forks[id(branch)] = fork, blobs
            self._check_count()
        return branch

    def waits(self) -> Waits:
        """What the policy waits for."""
        new = self.branches.new
        forks = [self._forks[id(branch)] for branch in new]
        return Waits(
            branches=tuple(branch.asked for branch in new),
            forks=tuple(fork for fork, _ in forks),
            blobs=tuple(blob for _, blobs in forks for blob in blobs),
        )

    def _check_count(self) -> None:
        if self._asked + len(self.branches.new) > BRANCHES:
            raise DefinitionError(
                f"a step may have {BRANCHES} branches, and the policy begins one more",
                hint="Ask an agent that has the others as subagents, or spread them over several steps.",
            )

    def _models(self, agent: Agent, model: Any) -> tuple[str, ...]:
        if model is None:
            return ()
        given = list(model) if isinstance(model, Sequence) and not isinstance(model, str) else model
        overridden(agent, {"model": given})  # what is wrong with it is said now
        if (found := size(given)) > MODEL_BYTES:
            raise DefinitionError(
                f"step.branch(model=…) has {found:,} bytes as JSON and may have {MODEL_BYTES:,}",
                hint="Give the name of a model, or a short list of names.",
            )
        return (given,) if isinstance(given, str) else tuple(given)

    def _fork(self, step: Step, text: str | None) -> tuple[Fork | None, list[Blob]]:
        """The conversation as the policy has it now, behind as much of the transcript as it has left unchanged."""
        call, known = self._call, self._known
        now = self._without_order(step.messages)
        if len(now) == len(known) and all(a is b for a, b in zip(now, known, strict=True)):
            return Fork(call.head, tuple(known[self._recorded :])), []
        sent = [*now, *([] if text is None else [Message.user(text)])]
        if (why := unsound(sent)) is not None:
            raise DefinitionError(
                f"step.messages cannot be sent to another agent: {why}",
                hint="A call and its result go together; step.trim(keep=20) shortens a conversation so.",
            )
        edited, blobs = by_reference(taken_over(now, known))
        unchanged = len(edited) >= self._recorded and all(
            a is b or a == b for a, b in zip(edited, known[: self._recorded], strict=False)
        )
        return (Fork(call.head, tuple(edited[self._recorded :])) if unchanged else Fork(None, tuple(edited))), blobs

    def _without_order(self, messages: Sequence[Message]) -> list[Message]:
        """Without the engine's order to finish, which is for the agent of the run alone."""
        if self._call.input.purpose != "force_finish":
            return list(messages)
        # Behind a reply without an answer there is a reminder too, under the same id: without it the reply came last.
        order = next((one for one in reversed(self._call.fresh) if one.id == REMINDER_ID), None)
        return [message for message in messages if message is not order]

    def _answer(self, outcome: BranchOutcome) -> Any:
        """The answer of a branch that has ended. Raises ``BranchError``."""
        what = f"the branch {outcome.said} (run {self._call.input.context_id}/{outcome.op})"
        if outcome.error_type is not None:
            cause = from_type(outcome.error_type, outcome.error or "")
            if isinstance(cause, BranchError):
                raise BranchError(f"{what}: {cause.message}")
            raise BranchError(f"{what} failed: {outcome.error_type}: {outcome.error}") from cause
        kind = self._agents.get(outcome.agent).output_type
        if kind.is_text:
            return outcome.content
        if not outcome.typed:
            raise BranchError(f"{what} ended without an output; the agent said: {outcome.content[:SAID_CHARS]!r}")
        try:
            return kind.load(plain_output(outcome.content))
        except PerdureError as error:
            raise BranchError(f"{what}: {error}") from error


def _name(agent: Any) -> str:
    try:
        return agent_name(agent)
    except DefinitionError:
        raise DefinitionError(
            f"step.branch asks an Agent, or the name of one, not {agent!r:.100}",
            hint='For instance await step.branch("critic", "Is this enough?").',
        ) from None


def _said(agent: Agent, message: Any) -> tuple[str | None, bool]:
    """The text of what ``agent`` is asked, and whether it is JSON of its input type."""
    if message is None:
        return None, False
    if isinstance(message, str) and message:
        return clean(message), False
    if isinstance(message, list | tuple | bytes | str) or not agent.takes_input:
        raise DefinitionError(
            f"a branch to agent {agent.name!r} is given text"
            + (", or a value of its input type" if agent.takes_input else "")
            + f", not {message!r:.100}",
            hint="What the conversation has in it, files too, it sees by itself.",
        )
    return clean(json.dumps(agent.check_input(message), ensure_ascii=False)), True


def _asked(agent: str, text: str | None, typed: bool, models: tuple[str, ...], messages: str) -> BranchAsked:
    plain = json.dumps([agent, text, typed, models, messages])
    said = agent if text is None else f"{agent}: {text}"
    return BranchAsked(
        key=hashlib.sha256(plain.encode()).hexdigest()[:32],
        said=repr(said if len(said) <= SAID_CHARS else said[:SAID_CHARS] + "…"),
        agent=agent,
        message=text,
        typed=typed,
        model=models,
    )
