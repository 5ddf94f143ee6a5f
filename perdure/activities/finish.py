"""Whether a reply is the answer: by the finish protocol, the agent's output type, and its output validators.

What does not fit goes back to the model, ``parse_retries`` times; then the run fails with ``ParseError``. A reply is
paid for, and recorded whatever becomes of it: nothing here raises what the reply is to blame for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..agent.agent import Agent
from ..agent.output import OutputError, OutputValidator
from ..errors import AbortError, HookError, ModelRetry, ParseError, PerdureError
from ..loop.finish import NO_ANSWER, classify, forced
from ..loop.transcript import malformed
from ..ports import ModelCall
from ..tools import RunContext, shortened
from ..types.interface import FINISH_TOOL
from ..types.messages import Message, ToolCallPart, clean
from ..types.tool_calls import Answered, Refused
from ..types.wire import Failed, Finish
from .author_loop import AuthorLoop, OverdueError
from .step_policy import Stepped

VALIDATOR = 60.0
"""Seconds that an output validator may take, from when it begins."""
_SHOWN = 600
"""Characters of an error, and of what the model said, in a ``ParseError``."""
_ACCEPTED = "The answer is accepted; the task is finished."
_BESIDE = "not run: the task was finished in the same reply"
_FAILED = "not run: the run failed"
_FORCED = f"not run: the task has to be finished; call {FINISH_TOOL}"


class _FailedError(Exception):
    """Code of the author's failed; the run does, with ``error``."""

    def __init__(self, error: PerdureError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class Ending:
    """What a reply means for its turn."""

    finish: Finish | None = None
    rejected: bool = False
    reminder: str | None = None
    failed: Failed | None = None
    answered: Mapping[str, Answered | Refused] = field(default_factory=dict)
    """Of calls, by their ids: those that the engine answers itself."""


class Finishing:
    """Reads replies for answers. Code of the author's runs on the author's side."""

    def __init__(self, author: AuthorLoop) -> None:
        self._author = author

    async def read(self, agent: Agent, call: ModelCall, message: Message, told: RunContext[Any]) -> Ending:
        """What ``message`` means for the turn. Raises what another attempt may not meet (an unreachable store)."""
        try:
            if agent.finish == "tool":
                return await self._by_tool(agent, call, message, told)
            return await self._by_text(agent, call, message, told)
        except _FailedError as error:
            return failing(message, error.error)

    async def stepped(self, agent: Agent, stepped: Stepped, told: RunContext[Any]) -> Finish:
        """The answer that a step policy gives, behind the output validators. Raises ``HookError``, ``AbortError``."""
        finish = stepped.finish
        assert finish is not None, "it has finished"
        if not agent.output_validators:
            return finish
        try:
            value = await self._validated(agent, stepped.value, told)
            made: Finish = await self._typed(agent, agent.output_type.finish, value)
        except (OutputError, ModelRetry) as error:
            raise HookError(
                f"step.finish: the answer of agent {agent.name!r} was not accepted: {_short(clean(str(error)))}",
                hint="There is no model to tell it: finish with another answer, or let the model give one.",
            ) from error
        except _FailedError as error:
            raise error.error from error
        return made.model_copy(update={"called": finish.called})

    async def _by_text(self, agent: Agent, call: ModelCall, message: Message, told: RunContext[Any]) -> Ending:
        reason = message.finish_reason or "stop"
        finish = classify(agent.finish, message, reason)
        if call.input.purpose == "force_finish":
            finish = forced(agent.finish, message.text)
        if finish is None or not agent.output_validators or reason in NO_ANSWER:
            return Ending(finish)
        try:
            content = clean(await self._validated(agent, finish.content, told))
            return Ending(finish.model_copy(update={"content": content}))
        except (OutputError, ModelRetry) as error:
            return _rejected(agent, call, message, _why(error), {})

    async def _by_tool(self, agent: Agent, call: ModelCall, message: Message, told: RunContext[Any]) -> Ending:
        if not message.tool_calls and (message.finish_reason or "stop") in NO_ANSWER:
            return Ending(Finish(content=message.text))
        forcing = call.input.purpose == "force_finish"
        given = [part for part in message.tool_calls if part.name == FINISH_TOOL]
        if not message.tool_calls:
            return await self._by_xml(agent, call, message, told)
        problems: dict[str, str] = {}
        for part in given:
            try:
                finish = await self._given(agent, part, told)
            except (OutputError, ModelRetry) as error:
                problems[part.id] = _why(error)
            else:
                others = {one.id: Answered(text=_BESIDE, is_error=True) for one in message.tool_calls}
                return Ending(finish, answered=others | {part.id: Answered(text=_ACCEPTED)})
        if problems:
            beside = dict.fromkeys((part.id for part in message.tool_calls if forcing), _FORCED)
            return _rejected(agent, call, message, next(iter(problems.values())), beside | problems)
        if forcing:
            asked = dict.fromkeys((part.id for part in message.tool_calls), _FORCED)
            return _rejected(agent, call, message, f"it called other tools, not {FINISH_TOOL}", asked)
        return Ending()

    async def _by_xml(self, agent: Agent, call: ModelCall, message: Message, told: RunContext[Any]) -> Ending:
        """A reply without a call may have the answer in its text."""
        arguments = agent.output_type.read_xml(message.text)
        if arguments is None:
            if call.input.purpose != "force_finish":
                return Ending()
            return _rejected(agent, call, message, f"your reply has no call of {FINISH_TOOL}", {})
        try:
            return Ending(await self._accepted(agent, arguments, told))
        except (OutputError, ModelRetry) as error:
            return _rejected(agent, call, message, _why(error), {})

    async def _given(self, agent: Agent, part: ToolCallPart, told: RunContext[Any]) -> Finish:
        if part.malformed is not None:
            raise OutputError(malformed(part))
        return await self._accepted(agent, part.arguments, told)

    async def _accepted(self, agent: Agent, arguments: Mapping[str, Any], told: RunContext[Any]) -> Finish:
        """The answer of these arguments. Raises ``OutputError`` and ``ModelRetry`` with what the model is told."""
        kind = agent.output_type
        value = await self._typed(agent, kind.read, arguments)
        value = await self._validated(agent, value, told)
        finish: Finish = await self._typed(agent, kind.finish, value)
        return finish

    async def _typed(self, agent: Agent, fn: Callable[[Any], Any], value: Any) -> Any:
        """``fn`` of the output type: where code of the author's runs in it, on the author's side."""
        if not agent.output_type.runs_code:
            return fn(value)
        return await self._author.run(f"validators of the output of agent {agent.name}", fn, value)

    async def _validated(self, agent: Agent, value: Any, told: RunContext[Any]) -> Any:
        """What the agent's validators make of ``value``, one behind the other."""
        for validator in agent.output_validators:
            changed = await self._run(agent, validator, value, told)
            if changed is None or changed is value:
                continue
            try:
                value = await self._typed(agent, agent.output_type.changed, changed)
            except OutputError as error:
                why = f"the output validator {validator.name} gave what is not of the output type: {error}"
                raise _FailedError(HookError(f"agent {agent.name!r}: {why}")) from error
        return value

    async def _run(self, agent: Agent, validator: OutputValidator, value: Any, told: RunContext[Any]) -> Any:
        name = f"the output validator {validator.name} of agent {agent.name!r}"
        try:
            return await self._author.run(name, validator.fn, *validator.arguments(value, told), timeout=VALIDATOR)
        except ModelRetry:
            raise
        except AbortError as error:
            raise _FailedError(error) from error
        except PerdureError as error:
            if error.retryable:
                raise
            raise _FailedError(HookError(f"{name} failed: {type(error).__name__}: {error}")) from error
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, OverdueError):
                why = f"it did not return within {VALIDATOR:g} s"
            raise _FailedError(HookError(f"{name} failed: {why}")) from error


def failing(message: Message, error: PerdureError) -> Ending:
    """The run fails with ``error``; the reply is recorded, and none of its calls runs."""
    results = {part.id: Answered(text=_FAILED, is_error=True) for part in message.tool_calls}
    return Ending(failed=Failed(type=type(error).__name__, message=_short(clean(str(error)))), answered=results)


def _why(error: OutputError | ModelRetry) -> str:
    if isinstance(error, ModelRetry):
        return shortened(f"The answer was not accepted: {error}")
    return shortened(str(error))


def _rejected(agent: Agent, call: ModelCall, message: Message, why: str, calls: Mapping[str, str]) -> Ending:
    """The reply will not do: the model is told, or the run fails. ``calls`` says what is told of which call."""
    count = (call.input.rejected or 0) + 1
    if count <= agent.parse_retries:
        results = {call_id: Refused(text=text) for call_id, text in calls.items()}
        again = f"call {FINISH_TOOL} again" if agent.finish == "tool" else "give another one"
        return Ending(rejected=True, reminder=None if calls else f"{why}\nPlease {again}.", answered=results)
    given = [part for part in message.tool_calls if part.id in calls]
    said = json.dumps(given[0].arguments, ensure_ascii=False) if given and not given[0].malformed else ""
    said = said or (given[0].malformed if given else None) or message.text
    times = "1 attempt" if count == 1 else f"{count} attempts"
    text = f"agent {agent.name!r} gave no output that will do in {times}: {_short(why)}\nThe model said: {_short(said)}"
    ended = {part.id: Answered(text=calls.get(part.id, _FAILED), is_error=True) for part in message.tool_calls}
    return Ending(rejected=True, failed=Failed(type=ParseError.__name__, message=clean(text)), answered=ended)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
