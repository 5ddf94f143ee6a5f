"""MCP: ``POST /mcp`` serves each agent that the caller may see as a tool. A call starts a run.

    task     a run; its id is the task's id         requestState   the same id, for clients without tasks
    input    an approval or a question that waits   key of it      the run, the call and the hash of its arguments

Stateless: any replica answers any request. Needs the extra ``mcp``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import Field
from starlette.responses import Response
from starlette.routing import Route

from ..client.decisions import RunWait
from ..client.turn import Turn
from ..errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    InvalidInputError,
    NoWorkerError,
    PerdureError,
    RunClosedError,
    RunExistsError,
    RunNotFoundError,
    join_sentences,
)
from ..types.events import ApprovalDecided, ModelDelta, QuestionAnswered, RunEvent, TurnEvent
from ..types.interface import TurnStatus
from ..types.messages import RUN_ID_CHARS
from ..types.plain_json import parse_json
from ..types.run_ids import get_root_id
from .admission import admit_start
from .argument_text import dump_arguments
from .auth import Caller, Resource, Verb
from .lists import read_callable_agents
from .mcp_transport import Ask, McpExchange
from .operations import KEY_CHARS, Call, Web
from .problems import WebError, build_problem, build_unexpected_problem, build_unknown_session_error
from .turns import (
    authorize_wait,
    build_endpoint,
    find_present_turn,
    follow_until_still,
    open_session,
    parse_wait_id,
    read_latest_seq,
    read_waits,
)

TASKS = "io.modelcontextprotocol/tasks"
KEY_META = "perdure/idempotencyKey"
"""In ``_meta`` of a call: a repeat with the same key is the same run. The header ``Idempotency-Key`` does the same."""
WAIT_SECONDS = 50.0
"""How long a call without a task waits for the answer at a time."""
POLL_MS = 1000
_MAX_INPUT_RESPONSES = 100
_SHOWN_CHARS = 20_000
"""Arguments of a call that are longer are not shown in a form, and not approved by one: nobody has read them there."""
_FIELD_TYPES = ("string", "number", "integer", "boolean")
_FIELD_KEYS = (
    "type", "title", "description", "default", "minimum", "maximum", "minLength", "maxLength", "format", "enum",
    "enumNames", "oneOf", "items", "minItems", "maxItems",
)  # fmt: skip
"""What a field of MCP's forms may say of itself."""
_ANSWER = "answer"
ParamsT = TypeVar("ParamsT")
Context = Any  # ServerRequestContext of the SDK, whose parameters say nothing here


class TaskParams(types.RequestParams):
    """Names a task."""

    task_id: str = Field(alias="taskId", min_length=1, max_length=1000)


class UpdateParams(TaskParams):
    """Answers what a task asks."""

    input_responses: dict[str, Any] = Field(alias="inputResponses", max_length=_MAX_INPUT_RESPONSES)


def mcp_routes(web: Web, path: str = "/mcp") -> list[Route]:
    """Build the route of the MCP server."""

    async def answer(call: Call) -> Response:
        return McpExchange(call, lambda ask: _McpCaller(call, ask))

    return [Route(path, build_endpoint(web, answer), methods=["POST"], name="mcp")]


@dataclass(frozen=True)
class _Task:
    """A run, as a task: its present turn, and what of it waits."""

    id: str
    resource: Resource
    status: TurnStatus
    turn: Turn[Any] | None
    waits: Sequence[RunWait]


class _McpCaller:
    """The methods of MCP for one caller."""

    def __init__(self, call: Call, ask: Ask | None = None) -> None:
        """``ask`` sends a request to a client of the older protocol that can be asked."""
        self._call = call
        self._client = call.client
        self._ask = ask
        self._progress, self._seen = 0, 0
        """How many events the client was told of, and the number of the last."""

    def build_server(self) -> Server[Any]:
        """Build the server, with the tasks extension."""
        server: Server[Any] = Server(
            "perdure",
            instructions="Each tool is an agent. A call starts a run, which goes on when the client leaves.",
            on_list_tools=_guard(self._call.caller, self._list_tools),
            on_call_tool=_guard(self._call.caller, self._call_tool),
        )
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, _guard(self._call.caller, self._get_task))
        server.add_request_handler("tasks/update", UpdateParams, _guard(self._call.caller, self._update_task))
        server.add_request_handler("tasks/cancel", TaskParams, _guard(self._call.caller, self._cancel_task))
        return server

    # ---
    # Tools.

    async def _list_tools(self, _: Context, params: Any) -> types.ListToolsResult:
        await self._call.authorize("read", "mcp", Resource("agent"))
        agents = await read_callable_agents(self._call)
        return types.ListToolsResult(
            tools=[_build_tool(name, json.loads(row.body)) for name, row in agents.items()],
            ttl_ms=0,
            cache_scope="private",
        )

    async def _call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        if params.request_state is not None:
            task = await self._find_task(params.request_state, "send", params.name)
            await self._give(task, params.input_responses or {})
            if _has_dismissed(params.input_responses or {}):
                shown = self._call.caller.show_id(task.id)
                return _describe_unfinished(shown, "has a question or an approval that was dismissed")
            return await self._wait(ctx, task.id)
        row = (await read_callable_agents(self._call)).get(params.name)
        if row is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r:.200}")
        try:
            run_id = await self._start(params, "input" in json.loads(row.body), _read_key(ctx, self._call))
        except (InvalidInputError, RunExistsError) as error:  # for the model, which may call again
            refused = self._call.caller.show_error(error)
            return _build_error(join_sentences(refused.message, refused.hint))
        if _has_tasks(ctx):
            return {"resultType": "task", **(await self._describe_task(await self._read_task(run_id, "read")))}
        return await self._wait(ctx, run_id)

    async def _start(self, params: types.CallToolRequestParams, takes_input: bool, key: str | None) -> str:
        """Start the run of a call. A repeat, by its key, is the same run."""
        arguments = params.arguments or {}
        message: Any = arguments
        if not takes_input:
            message = arguments.get("message")
            if not isinstance(message, str) or not message or len(arguments) > 1:
                raise InvalidInputError("the arguments are an object with message, a text", hint='{"message": "…"}')
        name = uuid.uuid4().hex
        if key is not None:
            name = hashlib.sha256(f"{self._call.scope}\0{params.name}\0{key}".encode(errors="replace")).hexdigest()[:32]
        call = replace(self._call, params={"agent": params.name})
        resource = await open_session(call, f"mcp-{name}", "send", "mcp")
        admitted = await admit_start(call, resource)
        if_exists: Literal["attach", "error"] = "attach" if key else "error"
        run = await self._client.start(params.name, message, id=resource.id, if_exists=if_exists, **admitted)
        return run.id

    async def _wait(self, ctx: Context, id: str) -> types.CallToolResult | types.InputRequiredResult:
        """Wait for the answer, or for something that the caller can answer, with notifications of progress."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._follow(ctx, id)
                await self._ask_while_open(ctx, id)
        except (TimeoutError, NoWorkerError):  # it goes on, or begins when a worker is there
            task = await self._read_task(id, "read")
            if task.status.state == "running" and not task.waits and _is_modern(ctx):
                return types.InputRequiredResult(request_state=self._call.caller.show_id(id))
        else:
            task = await self._read_task(id, "read")
        if task.status.state != "running":
            return await _build_result(task)
        asked, shown = await self._build_requests(ctx, task), self._call.caller.show_id(id)
        if asked and _is_modern(ctx):
            return types.InputRequiredResult.model_validate({"inputRequests": asked, "requestState": shown})
        return _describe_unfinished(shown, _describe_waits(task.waits) or "still runs")

    async def _follow(self, ctx: Context, id: str) -> None:
        """Return when the turn has ended, or nothing of it moves without a decision or an answer."""
        task = await self._read_task(id, "read")
        if task.turn is None and task.status.state == "running":
            await self._client.run(id).begun(WAIT_SECONDS)
            task = await self._read_task(id, "read")
        if task.turn is None or task.status.state != "running":
            return
        async with aclosing(follow_until_still(self._client, task.turn, self._seen, has_waits=True)) as events:
            async for event in events:
                if isinstance(event, list):
                    return
                self._progress, self._seen = self._progress + 1, max(self._seen, event.seq or 0)
                if not isinstance(event, ModelDelta):
                    await ctx.session.report_progress(self._progress, message=event.type)

    async def _ask_while_open(self, ctx: Context, id: str) -> None:
        """Ask a client of the older protocol what waits, as often as something does that it was not asked yet, until
        the turn has ended. Its answers come by other requests, also to other replicas."""
        asked: set[str] = set()
        while self._ask is not None and not _is_modern(ctx):
            since = await read_latest_seq(self._client, id)
            task = await self._read_task(id, "read")
            requests = await self._build_requests(ctx, task)
            if task.status.state != "running" or not requests:
                return
            for key in requests.keys() - asked:
                params = {name: value for name, value in requests[key]["params"].items() if name != "mode"}
                await self._ask({"id": key, "method": "elicitation/create", "params": params})
            asked |= requests.keys()
            await self._wait_for_decision(id, since)
            await self._follow(ctx, id)

    async def _wait_for_decision(self, id: str, since: int) -> None:
        async with aclosing(self._client.run(id).events(since)) as events:
            async for event in events:
                if isinstance(event, ApprovalDecided | QuestionAnswered | TurnEvent | RunEvent):
                    return

    async def give_reply(self, id: str, result: Any) -> None:
        """Take the reply of a client of the older protocol to what it was asked. An error is none: it waits on."""
        name = self._call.caller.read_id(id)
        root = get_root_id(name.rsplit("|", 2)[0])
        if parse_wait_id(name, root) is None:
            raise InvalidInputError("the reply is to nothing that was asked")
        if isinstance(result, dict):
            await self._give(await self._find_task(self._call.caller.show_id(root), "read"), {id: result})

    # ---
    # Tasks.

    async def _get_task(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        _require_tasks(ctx)
        task = await self._read_task(params.task_id, "read")
        fields = {"resultType": "complete", **await self._describe_task(task)}
        if fields["status"] == "input_required":
            fields["inputRequests"] = await self._build_requests(ctx, task)
        elif fields["status"] == "completed":
            fields["result"] = (await _build_result(task)).model_dump(mode="json", by_alias=True, exclude_none=True)
        return fields

    async def _update_task(self, ctx: Context, params: UpdateParams) -> dict[str, Any]:
        _require_tasks(ctx)
        await self._give(await self._find_task(params.task_id, "read"), params.input_responses)
        return {"resultType": "complete"}

    async def _cancel_task(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        _require_tasks(ctx)
        task = await self._find_task(params.task_id, "operate")
        with suppress(RunClosedError, RunNotFoundError):  # it has ended
            await self._client.run(task.id).cancel(by=self._call.by)
        return {"resultType": "complete"}

    async def _find_task(self, id: str, verb: Verb, agent: str | None = None) -> _Task:
        """Return the task without what waits in it. Raises ``RunNotFoundError``, ``ForbiddenError``."""
        if len(id) > RUN_ID_CHARS:
            raise build_unknown_session_error(id)
        run_id = self._call.caller.read_id(id)
        resource = await self._call.web.find_session(run_id)
        await self._call.authorize(verb, "mcp", resource)
        if agent is not None and resource.agent != agent:
            raise build_unknown_session_error(id)
        return _Task(run_id, resource, TurnStatus(task_id="", state="running"), None, ())

    async def _read_task(self, id: str, verb: Verb) -> _Task:
        task = await self._find_task(id, verb)
        try:
            turn = await find_present_turn(self._client, task.id)
        except RunNotFoundError:  # its first step has not run yet, or it was cancelled before
            end = await self._client.run(task.id).status()
            state: Literal["running", "cancelled"] = "cancelled" if end.state == "cancelled" else "running"
            return replace(task, status=TurnStatus(task_id="", state=state))
        status = await turn.status()
        if status.state == "completed":
            return replace(task, status=status.model_copy(update={"response": await turn.result()}), turn=turn)
        waits: Sequence[RunWait] = ()
        if status.state == "running":
            try:
                waits, _ = await read_waits(self._client, task.id)
            except PerdureError:  # no worker answers: what waits is known when one does
                waits = ()
        return replace(task, status=status, turn=turn, waits=waits)

    async def _describe_task(self, task: _Task) -> dict[str, Any]:
        state: str = task.status.state
        if state == "failed":  # the tool's error, and none of the protocol: its result has isError
            state = "completed"
        elif state not in ("completed", "cancelled"):
            state = "input_required" if task.waits else "working"
        row = await (await self._client.store()).get_run(task.id)
        if row is not None and row.created_at:
            created = row.created_at
        else:  # nothing of it is recorded yet
            created = (await self._client.run(task.id).describe()).start_time.isoformat()
        updated = row.updated_at if row is not None and row.updated_at else created
        message = _describe_waits(task.waits) if task.waits else None
        fields: dict[str, Any] = {"taskId": self._call.caller.show_id(task.id), "status": state}
        fields |= {"createdAt": created, "lastUpdatedAt": updated}
        fields |= {"ttlMs": None, "pollIntervalMs": POLL_MS}
        return fields | ({"statusMessage": f"The run {message}."} if message else {})

    # ---
    # Approvals and questions.

    async def _build_requests(self, ctx: Context, task: _Task) -> dict[str, Any]:
        """Build the elicitations for what waits, as far as the client can show and the caller may answer them."""
        capabilities = ctx.session.client_capabilities
        if self._ask is None and (capabilities is None or capabilities.elicitation is None):
            return {}
        requests: dict[str, Any] = {}
        for wait in task.waits:
            verb: Verb = "decide" if wait.call.kind == "approval" else "send"
            if wait.call.kind == "callback" or not await self._call.may(
                verb, await self._call.web.find_session(wait.run_id)
            ):
                continue
            params = {"mode": "form", "message": _describe_wait(wait), "requestedSchema": _build_form(wait)}
            requests[self._call.caller.show_id(wait.id)] = {"method": "elicitation/create", "params": params}
        return requests

    async def _give(self, task: _Task, responses: Mapping[str, Any]) -> None:
        """Decide and answer; what no longer waits is ignored, as the protocol has it."""
        if len(responses) > _MAX_INPUT_RESPONSES:
            raise InvalidInputError(f"inputResponses has more than {_MAX_INPUT_RESPONSES} entries")
        if not responses:
            return
        waits = {wait.id: wait for wait in (await read_waits(self._client, task.id))[0]}
        for key, response in responses.items():
            name = self._call.caller.read_id(key)
            wait, parsed = waits.get(name), parse_wait_id(name, task.id)
            if wait is None or parsed is None or wait.call.kind == "callback":
                continue
            action, content = _read_response(response)
            if action == "cancel":
                continue
            await authorize_wait(self._call, wait.run_id, "decide" if wait.call.kind == "approval" else "send")
            try:
                await self._answer_wait(wait, action == "accept", content)
            except (ApprovalDecidedError, ApprovalExpiredError, RunClosedError):  # too late
                continue

    async def _answer_wait(self, wait: RunWait, accepted: bool, content: Mapping[str, Any]) -> None:
        run, call, by = self._client.run(wait.run_id), wait.call, self._call.by
        if call.kind == "approval":
            approved, comment = content.get("approve"), content.get("comment")
            if accepted and not isinstance(approved, bool):
                raise InvalidInputError("the content of an approval has approve: true or false")
            if accepted and approved and _show_arguments(wait) is None:
                raise InvalidInputError(
                    f"the arguments of {call.tool} are too long to be shown in a form, so none can approve them",
                    hint=f"Read them: GET /v1/sessions/{wait.run_id}/items. Then decide by the HTTP API; or deny here.",
                )
            comment = comment if isinstance(comment, str) and comment else None
            decide = run.approve if accepted and approved else run.deny
            await decide(call.call_id, comment=comment, hash=call.hash, by=by)
        elif accepted:
            await run.answer(call.call_id, _read_answer(wait, content), hash=call.hash, by=by)
        else:
            await run.answer(call.call_id, None, error="the user gave no answer", hash=call.hash, by=by)


def _guard(
    caller: Caller, method: Callable[[Context, ParamsT], Awaitable[Any]]
) -> Callable[[Context, ParamsT], Awaitable[Any]]:
    """Answer perdure's errors as errors of JSON-RPC, without internals."""

    async def guarded(ctx: Context, params: ParamsT) -> Any:
        try:
            return await method(ctx, params)
        except MCPError:
            raise
        except PerdureError as error:
            response = build_problem(caller.show_error(error))
        except Exception as error:  # nothing of it is for the caller
            response = build_unexpected_problem(error)
        problem = json.loads(bytes(response.body))
        code = types.INVALID_PARAMS if problem["status"] < 500 else types.INTERNAL_ERROR
        data = {name: problem[name] for name in ("error", "status", "hint") if name in problem}
        raise MCPError(code, problem["detail"], data)

    return guarded


def _build_tool(name: str, definition: Mapping[str, Any]) -> types.Tool:
    text = {"message": {"type": "string", "description": "What the agent is asked."}}
    schema = definition.get("input") or {
        "type": "object", "properties": text, "required": ["message"], "additionalProperties": False,
    }  # fmt: skip
    return types.Tool(
        name=name,
        description=definition.get("description") or f"Asks the agent {name}.",
        input_schema={"type": "object", **schema},
        # What an agent's own tools do is not known here: the careful hints.
        annotations=types.ToolAnnotations(
            read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
        ),
    )


def _is_modern(ctx: Context) -> bool:
    return ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS


def _has_tasks(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    return _is_modern(ctx) and capabilities is not None and TASKS in (capabilities.extensions or {})


def _require_tasks(ctx: Context) -> None:
    if not _is_modern(ctx):
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
    if not _has_tasks(ctx):
        required: Any = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "the client has not declared tasks", required)


def _read_key(ctx: Context, call: Call) -> str | None:
    key = (ctx.meta or {}).get(KEY_META, call.request.headers.get("idempotency-key"))
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= KEY_CHARS):
        raise WebError(f"an idempotency key is a text of 1 to {KEY_CHARS} characters", name="InvalidInputError")
    return key


async def _build_result(task: _Task) -> types.CallToolResult:
    """Build the result of a call whose turn has ended."""
    status, response = task.status, task.status.response
    if status.state != "completed" or response is None:
        return _build_error(f"{status.error_type or 'The run'}: {status.error or status.state}"[:2000])
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=response.content)]
    structured = response.output if response.typed and isinstance(response.output, dict) else None
    meta = {"perdure/session": task.id, "perdure/finishReason": response.finish_reason}
    return types.CallToolResult.model_validate(
        {"content": content, "structuredContent": structured, "isError": False, "_meta": meta}
    )


def _build_error(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _describe_unfinished(id: str, state: str) -> types.CallToolResult:
    return _build_error(f"There is no answer yet: the run {id} {state}. It goes on; do not call again for it.")


def _describe_waits(waits: Sequence[RunWait]) -> str:
    if not waits:
        return ""
    return "waits for " + ", ".join(f"{wait.call.kind} of {wait.call.tool}" for wait in waits)[:500]


def _describe_wait(wait: RunWait) -> str:
    call = wait.call
    if call.kind == "question":
        return call.question or f"{call.tool} asks."
    if (arguments := _show_arguments(wait)) is not None:
        return f"Approve this call of {call.tool}? {arguments}"
    return (
        f"A call of {call.tool} waits for approval, with arguments that are too long to be shown here. Deny it here, "
        f"or read them by the HTTP API, and approve it there: GET /v1/sessions/{wait.run_id}/items"
    )


def _show_arguments(wait: RunWait) -> str | None:
    """Return the arguments of a call that waits for approval; None if they are too long to be read in a form."""
    text = None if wait.call.arguments is None else dump_arguments(wait.call.arguments)
    return text if text is not None and len(text) <= _SHOWN_CHARS else None


def _build_form(wait: RunWait) -> dict[str, Any]:
    """Build the form of an approval or a question: MCP's forms are flat objects of plain fields."""
    if wait.call.kind == "approval":
        approve: dict[str, Any] = {"type": "boolean"}
        if _show_arguments(wait) is None:
            approve |= {
                "title": "Leave this false: what is too long to be shown is not approved here",
                "default": False,
            }
        fields: dict[str, Any] = {"approve": approve, "comment": {"type": "string"}}
        return {"type": "object", "properties": fields, "required": ["approve"]}
    form = wait.call.form
    if form is not None and _is_flat_form(form):
        fields = {name: _build_field(field) for name, field in form["properties"].items()}
        return {"type": "object", "properties": fields, "required": list(form.get("required") or ())}
    return {"type": "object", "properties": {_ANSWER: _build_answer_field(wait)}, "required": [_ANSWER]}


def _is_flat_form(form: Mapping[str, Any] | None) -> bool:
    """Whether MCP's forms have each field of the answer: then the form is the question's own."""
    fields = form.get("properties") if form is not None and form.get("type") == "object" else None
    return isinstance(fields, dict) and bool(fields) and all(map(_is_plain_field, fields.values()))


def _is_plain_field(field: Any) -> bool:
    if not isinstance(field, dict):
        return False
    if field.get("type") == "array":  # several of a list of texts
        items = field.get("items")
        return isinstance(items, dict) and (_are_texts(items.get("enum")) or _are_choices(items.get("anyOf")))
    return field.get("type") in _FIELD_TYPES and ("oneOf" not in field or _are_choices(field["oneOf"]))


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)


def _are_choices(choices: Any) -> bool:
    return isinstance(choices, list) and _are_texts([isinstance(one, dict) and one.get("const") for one in choices])


def _build_field(field: Mapping[str, Any]) -> dict[str, Any]:
    """Build a field of MCP's forms, in which each choice has a title."""
    built = {key: field[key] for key in _FIELD_KEYS if key in field}
    if "oneOf" in built:
        built["oneOf"] = [{"title": choice["const"], **choice} for choice in built["oneOf"]]
    if built.get("type") == "array" and "anyOf" in (items := built["items"]):
        built["items"] = {"anyOf": [{"title": choice["const"], **choice} for choice in items["anyOf"]]}
    return built


def _build_answer_field(wait: RunWait) -> dict[str, Any]:
    form = wait.call.form
    if form is None:
        return {"type": "string"}
    if form.get("type") not in _FIELD_TYPES:
        return {"type": "string", "description": f"JSON of this schema: {json.dumps(form)[:4000]}"}
    return _build_field(form) if _is_plain_field(form) else {"type": form["type"]}


def _read_answer(wait: RunWait, content: Mapping[str, Any]) -> Any:
    if _is_flat_form(wait.call.form):
        return dict(content)
    if _ANSWER not in content:
        raise InvalidInputError(f"the content of an answer has {_ANSWER}")
    answer, form = content[_ANSWER], wait.call.form
    if form is not None and form.get("type") not in _FIELD_TYPES and isinstance(answer, str):
        try:
            return parse_json(answer.encode())
        except ValueError:
            raise InvalidInputError("the answer is not JSON", hint="Its form is in the question.") from None
    return answer


def _read_response(response: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the action and the content of an elicitation's response."""
    plain = response if isinstance(response, dict) else getattr(response, "__dict__", {})
    action, content = plain.get("action"), plain.get("content")
    if action not in ("accept", "decline", "cancel") or not isinstance(content, dict | None):
        raise InvalidInputError("a response has an action, accept, decline or cancel, and content, an object")
    return action, content or {}


def _has_dismissed(responses: Mapping[str, Any]) -> bool:
    return any(_read_response(response)[0] == "cancel" for response in responses.values())
