"""Runs agents from your own Temporal workflows: ``from perdure.workflow import run_agent``.

In a sandboxed workflow, import it with ``workflow.unsafe.imports_passed_through()``; a worker with ``PerdurePlugin``
passes perdure through by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, overload

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from .errors import InvalidInputError, ParseError
from .types.interface import WORKFLOW_TYPE, OutputT, Response, build_run_memo
from .types.run_ids import build_run_id

if TYPE_CHECKING:
    from .agent.spec import AgentSpec


@overload
async def run_agent(
    agent: AgentSpec[Any, OutputT],
    message: str | Mapping[str, Any],
    *,
    id: str | None = None,
    context: Mapping[str, Any] | None = None,
    auth_ref: str | None = None,
    override: Mapping[str, Any] | None = None,
    tenant: str | None = None,
    user: str | None = None,
    task_queue: str | None = None,
    **options: Any,
) -> Response[OutputT]: ...
@overload
async def run_agent(
    agent: str,
    message: str | Mapping[str, Any],
    *,
    id: str | None = None,
    context: Mapping[str, Any] | None = None,
    auth_ref: str | None = None,
    override: Mapping[str, Any] | None = None,
    tenant: str | None = None,
    user: str | None = None,
    task_queue: str | None = None,
    **options: Any,
) -> Response[Any]: ...
async def run_agent(
    agent: str | AgentSpec[Any, Any],
    message: str | Mapping[str, Any],
    *,
    id: str | None = None,
    context: Mapping[str, Any] | None = None,
    auth_ref: str | None = None,
    override: Mapping[str, Any] | None = None,
    tenant: str | None = None,
    user: str | None = None,
    task_queue: str | None = None,
    **options: Any,
) -> Response[Any]:
    """Run an agent as a child workflow, and return its answer. For several at once: ``asyncio.gather``.

    ``message`` is text, or the fields of an agent's input type. ``id`` is the run's id, by default the workflow's with
    the agent's name and a number; ``task_queue`` is that of a worker which serves the agent, by default the workflow's
    own. ``context``, ``auth_ref``, ``override``, ``tenant`` and ``user`` are as in ``Client.start``, as plain JSON;
    ``options`` are Temporal's for a child workflow. If the workflow is cancelled, the run closes its transcript first.

    The ``output`` of an agent that is given as an object has the agent's output type, whose validators run here, in the
    workflow (``ApplicationError`` of type ``ParseError`` if it does not fit); by the name it is plain JSON. A validator
    that does what the sandbox forbids, such as reading the clock, fails the workflow task until its code is mended.

    The response has no ``messages``, and a long answer is only in ``blob``: a client with the store has both. Raises
    ``temporalio.exceptions.ChildWorkflowError``; the ``type`` of its ``cause`` is the class of the error. Raises
    ``InvalidInputError`` if ``message`` is neither text nor fields.
    """
    if not isinstance(message, str | Mapping):
        raise InvalidInputError(
            f"run_agent: the message must be text, or the fields of an input, not {message!r:.100}",
            hint='For instance run_agent("researcher", "What is new?"), or run_agent("reporter", {"topic": "news"}).',
        )
    name = agent if isinstance(agent, str) else agent.name
    start = {
        "agent": name,
        "message": message if isinstance(message, str) else {"input": dict(message)},
        "context": None if context is None else dict(context),
        "auth_ref": auth_ref,
        "override": None if override is None else dict(override),
        "tenant": tenant,
        "user": user,
    }
    child_options: dict[str, Any] = {
        "cancellation_type": workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
        "parent_close_policy": workflow.ParentClosePolicy.REQUEST_CANCEL,
        "memo": build_run_memo(start),
        **options,
    }
    raw = await workflow.execute_child_workflow(
        WORKFLOW_TYPE,
        {field: value for field, value in start.items() if value is not None},
        id=build_run_id(id or f"{workflow.info().workflow_id}/{name}-{workflow.uuid4().hex[:12]}", tenant),
        task_queue=task_queue,
        **child_options,
    )
    response: Response[Any] = Response.model_validate_json(json.dumps(raw))
    if isinstance(agent, str) or not response.typed or response.blob is not None:
        return response
    return response.model_copy(update={"output": _read_output(agent, response.output)})


def _read_output(agent: AgentSpec[Any, OutputT], plain: Any) -> OutputT:
    try:
        return agent.read_output(plain)
    except ParseError as error:
        if isinstance(error.__cause__, workflow.NondeterminismError):
            # The sandbox stopped a validator: a fault of the code, not of the data.
            raise error.__cause__ from None
        # Any other error than Temporal's would fail the workflow task, again and again.
        raise ApplicationError(str(error), type=ParseError.__name__, non_retryable=True) from error
