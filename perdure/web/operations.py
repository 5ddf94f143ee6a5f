"""Operations of the HTTP API: each is declared once, for the route and for the OpenAPI document.

    request ─► caller ─► may it see this session? ─► body and query ─► seen this key before? ─► handler ─► answer

A handler gets a :class:`Call` that has passed all of it, and returns what is sent: a model, or a response of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from .._encryption import KeyRing
from ..client.agents import list_other_agents
from ..client.audit import SteeringAudit, audit_caller
from ..client.client import Client
from ..client.pages import TranscriptPages
from ..client.run import Run
from ..client.schedules import ScheduleStatus
from ..errors import InvalidInputError, PerdureError, RunIdError, RunNotFoundError, ScheduleNotFoundError
from ..ports.idempotency import IDEMPOTENCY_ANSWER_BYTES
from ..ports.store import Blob, Commit, Store
from ..types.interface import LABELS, WORKFLOW_TYPE
from ..types.messages import RUN_ID_CHARS, BlobRef
from ..types.run_ids import build_run_id_error, check_run_name
from ..types.validation_errors import describe_validation_error
from .auth import AgentTerms, Authenticator, Authorizer, Caller, ContextFunction, Resource, Verb
from .key_lease import KeyLease
from .limits import (
    REFUSED_BODY_KEY,
    ConnectionLimiter,
    HeldBytes,
    RateLimiter,
    WebLimits,
    call_for_size,
    get_caller_key,
    iterate_body,
    parse_json_body,
)
from .origins import get_client_address
from .problems import (
    ForbiddenError,
    UnauthorizedError,
    WebError,
    build_forbidden_error,
    build_problem,
    build_unexpected_problem,
    build_unknown_agent_error,
    build_unknown_schedule_error,
    build_unknown_session_error,
)

logger = logging.getLogger("perdure.web")
ModelT = TypeVar("ModelT", bound=BaseModel)

KEY_CHARS = 255
ACT_SECONDS = 50.0
"""Longest time of a request that acts."""
MAX_JSON_BYTES = 32 * 1024 * 1024
"""Most bytes of a JSON body, where no proxy or middleware has a lower limit."""


class Input(BaseModel):
    """Base of bodies and queries: an unknown field is an error, so that the sender learns of a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Empty(Input):
    """A body without fields."""


@dataclass(frozen=True)
class Web:
    """What the routes work with: one client, and the two hooks that decide who may do what."""

    client: Client
    authenticator: Authenticator
    authorizer: Authorizer
    rates: RateLimiter
    streams: ConnectionLimiter
    limits: WebLimits
    held: HeldBytes = field(default_factory=HeldBytes)
    transcripts: TranscriptPages = field(default_factory=TranscriptPages)
    context: ContextFunction | None = None
    """Builds the context of the runs that a caller starts."""
    terms: AgentTerms = field(default_factory=AgentTerms)

    async def authenticate(self, request: Request) -> Caller:
        """Return the caller, and count the request. Raises ``UnauthorizedError``, ``WebError`` for too many."""
        caller = await self.authenticator.authenticate(request)
        if caller is None:
            raise UnauthorizedError(
                "the request has no credentials", hint="Send `Authorization: Bearer <token>`; `perdure token create`."
            )
        self.rates.check(caller)
        if (refused := request.scope.get(REFUSED_BODY_KEY)) is not None:
            raise refused
        return caller

    async def authorize(self, caller: Caller, verb: Verb, resource: Resource) -> None:
        """Raises ``ForbiddenError``; for a session or schedule that the caller may not see ``RunNotFoundError`` or
        ``ScheduleNotFoundError``."""
        if not await self.authorizer.is_allowed(caller, verb, resource):
            if not await self.authorizer.is_allowed(caller, "read", resource):
                if resource.kind == "session":
                    raise build_unknown_session_error(resource.id or "")
                if resource.kind == "schedule" and resource.id is not None:
                    raise build_unknown_schedule_error(resource.id)
            raise build_forbidden_error(caller.name, verb)

    async def check_agent(self, name: str | None) -> None:
        """Raises ``NotFoundError`` for an agent that no worker has recorded."""
        if name is not None and await list_other_agents(self.client, name) is not None:
            raise build_unknown_agent_error(name)

    async def find_session(self, id: str) -> Resource:
        """Return the session with its agent, tenant and user. Raises ``RunNotFoundError``."""
        if not 0 < len(id) <= RUN_ID_CHARS:
            raise build_unknown_session_error(id)
        if self.client.store_url is not None:
            row = await (await self.client.store()).get_run(id)
            if row is not None:
                return Resource("session", id, row.agent, row.tenant, row.user)
        try:
            execution = await self.client.run(id).describe()
        except RunNotFoundError:
            raise build_unknown_session_error(id) from None
        if execution.workflow_type != WORKFLOW_TYPE:  # a workflow of another program in this namespace
            raise build_unknown_session_error(id)
        try:
            memo = await execution.memo()
        except Exception:  # written with another codec: whose it is, is unknown
            memo = {}
        labels = {name: memo.get(name) for name in ("agent", *LABELS)}
        return Resource("session", id, **labels)

    async def find_schedule(self, id: str) -> Resource:
        """Return the schedule, with the agent, tenant and user of its runs; the labels are None where the input of the
        runs cannot be read here. Raises ``ScheduleNotFoundError``."""
        try:
            status = await self.client.get_schedule(id).describe()
        except (ScheduleNotFoundError, InvalidInputError):  # unknown, or another workflow's
            raise build_unknown_schedule_error(id) from None
        return build_schedule_resource(status)


def build_schedule_resource(status: ScheduleStatus) -> Resource:
    """Build the resource of a schedule, with the labels of its runs."""
    labels = {name: value if isinstance(value := status.start.get(name), str) else None for name in LABELS}
    return Resource("schedule", status.id, status.agent or None, **labels)


@dataclass
class Call:
    """A request that may act: of a known caller, for a session that it may see, with a valid body and query."""

    web: Web
    request: Request
    caller: Caller
    params: Mapping[str, str]
    body: Any
    query: Any
    key: str | None = None
    """Identifies the request for repeats: that of its ``Idempotency-Key``, with its caller."""
    resource: Resource | None = None
    """The session of the path, with its labels; of a list only its kind."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the answer."""
    body_bytes: int = 0
    """Size of the body that ``read_body`` has read; see ``call_for_size``."""

    @property
    def client(self) -> Client:
        """perdure's client."""
        return self.web.client

    @property
    def by(self) -> str:
        """Who acts: never what a body says."""
        return self.caller.name

    @property
    def run(self) -> Run[Any]:
        """The session of the path."""
        return self.client.run(self.params["id"])

    @property
    def scope(self) -> str:
        """A digest of the caller and of what it may see: for what is kept for this caller alone."""
        scope = json.dumps([self.caller.name, self.caller.tenants, self.caller.agents, self.caller.sessions])
        return hashlib.sha256(scope.encode()).hexdigest()[:16]

    def derive_id(self, purpose: str) -> str:
        """Return an id that is new, and the same for a repeat of this request."""
        if self.key is None:
            return uuid.uuid4().hex
        return hashlib.sha256(f"{self.key}\0{purpose}".encode()).hexdigest()[:32]

    async def authorize(self, verb: Verb, action: str, resource: Resource | None = None) -> None:
        """Check that the caller may; the refusal of a request that acts is recorded as ``action`` in the audit trail.

        Raises as :meth:`Web.authorize`.
        """
        resource = resource or self.resource or Resource("session")
        try:
            await self.web.authorize(self.caller, verb, resource)
        except (ForbiddenError, RunNotFoundError) as error:
            if verb != "read" or self.request.method not in ("GET", "HEAD"):
                await self.record_refusal(action, resource.id or resource.kind, error)
            raise

    async def record_refusal(self, action: str, subject: str, error: PerdureError, detail: str | None = None) -> None:
        """Record in the audit trail that the caller was refused ``action``. ``subject`` is what exists, or a kind: each
        name that a caller thinks up would be a row of its own; ``detail`` has it."""
        labels = {"tenant": self.caller.tenant}
        if self.resource is not None and self.resource.id == subject:
            labels |= {name: getattr(self.resource, name) for name in ("agent", *LABELS)}
        await SteeringAudit(self.client, action, subject, self.by, detail, labels).record_refusal(error)

    async def authorize_start(self, action: str, name: str, start: Resource) -> Resource:
        """Return the new session of the request: ``start``, with the id that the ``name`` gives it. Every operation
        that begins a run passes here. Raises ``ForbiddenError`` for an agent or tenant that is not the caller's,
        ``RunIdError`` for an id that no new run may have, and ``NotFoundError`` for an unknown agent."""
        error: PerdureError | None = None
        subject: str = start.kind
        try:
            start = replace(start, id=check_run_name(name, start.tenant))
        except RunIdError as refused:
            error = refused
        if not await self.may("send", start):
            which = f"tenant {start.tenant!r}" if start.tenant is not None else "no tenant"
            error = ForbiddenError(f"{self.by!r:.200} may not start agent {start.agent!r} for {which}")
        elif error is None:
            with suppress(RunNotFoundError):
                if not await self.may("read", await self.web.find_session(str(start.id))):
                    error, subject = build_run_id_error(), str(start.id)
        if error is not None:
            await self.record_refusal(action, subject, error, start.id or name)
            raise error
        await self.web.check_agent(start.agent)
        return start

    async def may(self, verb: Verb, resource: Resource) -> bool:
        """Whether the caller may, for the rows of a list."""
        return await self.web.authorizer.is_allowed(self.caller, verb, resource)

    def hold_stream(self) -> Callable[[], None]:
        """Count an open stream of the caller, and return what ends it. Raises ``WebError`` for too many."""
        held = ExitStack()
        held.enter_context(self.web.streams.hold(self.caller))
        return held.close

    async def is_current(self) -> bool:
        """Whether the credentials of the request still say the same of its caller, and it may still read: false after a
        revocation, or for a role that has changed. True while that cannot be found out."""
        try:
            known = await self.web.authenticator.authenticate(self.request) == self.caller
            return known and (self.resource is None or await self.may("read", self.resource))
        except (UnauthorizedError, ForbiddenError):
            return False
        except Exception as error:  # the store does not answer: neither do the events
            logger.info("whether %r is still known cannot be checked: %s", self.caller.name, error)
            return True

    def link(self, name: str, **params: str) -> str:
        """Return the path of another operation, as the caller reaches it."""
        scope = self.request.scope
        shown = params | ({"id": self.caller.show_id(params["id"])} if "id" in params else {})
        return quote(scope["root_path"]) + str(scope[_ROUTER_KEY].url_path_for(name, **shown))


Handler = Callable[[Call], Awaitable[BaseModel | Response | None]]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True)
class Operation:
    """One operation. ``path`` is relative to the prefix of its API; ``{id}`` in it is a session, whose run the caller
    must be allowed to ``verb``."""

    method: Method
    path: str
    handler: Handler
    verb: Verb
    body: type[BaseModel] | type[bytes] | None = None
    """Type of the body; ``bytes`` for a body that is taken as it is."""
    max_bytes: int = MAX_JSON_BYTES
    """Most bytes of the body."""
    query: type[BaseModel] | None = None
    answer: Any = None
    """Type of the answer's JSON; None for none, or for a response of its own."""
    status: int = 200
    kind: Literal["session", "agent", "approval", "schedule", "webhook", "file", "audit", "usage"] = "session"
    is_public: bool = False
    """Answers anyone."""
    body_type: str = "application/json"
    answer_type: str = "application/json"
    can_repeat: bool = True
    """For a POST: whether it takes an ``Idempotency-Key``."""
    has_secret: bool = False
    """The answer has a secret: for repeats it is kept encrypted, where the service has a key."""
    tag: str = "sessions"

    @property
    def name(self) -> str:
        """Name of the route, and ``operationId``."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """First line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().split("\n")[0]

    def build_route(self, web: Web, prefix: str = "") -> Route:
        """Build the route that serves it."""

        async def endpoint(request: Request) -> Response:
            try:
                return await _answer(self, web, request)
            except PerdureError as error:
                return build_problem(error)
            except ClientDisconnect:  # in the middle of its body
                return Response(status_code=400)
            except Exception as error:  # nothing of it is for the caller
                return build_unexpected_problem(error)

        return Route(prefix + self.path, endpoint, methods=[self.method], name=self.name)


async def _answer(operation: Operation, web: Web, request: Request) -> Response:
    """Answer the request. Raises the error that it is refused with."""
    params = dict(request.path_params)
    if operation.is_public:
        call = Call(web, request, _PUBLIC, params, None, None)
        return _encode(operation, call, await operation.handler(call))
    caller = await web.authenticate(request)
    with audit_caller(caller.auth, get_client_address(request.scope)), shown_errors(caller):
        if operation.kind in ("session", "schedule") and "id" in params:
            params["id"] = caller.read_id(params["id"])
        call = Call(web, request, caller, params, None, None)
        call.resource = await _find_resource(operation, web, params)
        await call.authorize(operation.verb, operation.name)
        call.query = _parse_query(operation, request)
        async with _receive_body(operation, call) as raw:
            if operation.body is not bytes:
                web.rates.charge(caller, len(raw))
            call.body = await call_for_size(len(raw), _parse_body, operation, raw, web.limits)
            if operation.method != "POST" or not operation.can_repeat:
                return _encode(operation, call, await operation.handler(call))
            return await _answer_once(operation, call, raw)


@contextmanager
def shown_errors(caller: Caller) -> Generator[None]:
    """Within the block, errors name runs as the caller does."""
    try:
        yield
    except PerdureError as error:
        caller.show_error(error)
        raise


@asynccontextmanager
async def _receive_body(operation: Operation, call: Call) -> AsyncGenerator[bytes]:
    """Receive the body; its bytes are counted for the length of the block. Raises ``WebError``."""
    held, size, pieces, key = call.web.held, 0, list[bytes](), get_caller_key(call.caller)
    try:
        if operation.body is not None:
            async for piece in iterate_body(call.request, operation.max_bytes):
                held.take(len(piece), key)
                size += len(piece)
                pieces.append(piece)
        yield b"".join(pieces)
    finally:
        held.release(size, key)


_PUBLIC = Caller("", "none", frozenset())
"""The caller of an operation that answers anyone."""


async def _find_resource(operation: Operation, web: Web, params: Mapping[str, str]) -> Resource:
    if operation.kind == "session" and "id" in params:
        return await web.find_session(params["id"])
    if operation.kind == "schedule" and "id" in params:
        return await web.find_schedule(params["id"])
    return Resource(operation.kind, params.get("id"))


def _parse_query(operation: Operation, request: Request) -> Any:
    names = [name for name, _ in request.query_params.multi_items()]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise WebError(f"query: {repeated!r:.100} is given twice", name="InvalidInputError")
    if operation.query is None:
        if names:
            raise WebError(f"query: there is no parameter {names[0]!r:.100}", name="InvalidInputError")
        return None
    return validate(operation.query, dict(request.query_params), "query")


def _parse_body(operation: Operation, raw: bytes, limits: WebLimits) -> Any:
    if operation.body is None:
        return None
    if not issubclass(operation.body, BaseModel):
        return raw
    plain = parse_json_body(raw, limits.json_depth, limits.json_values) if raw else {}
    return validate(operation.body, plain, "body")


def validate(model: type[ModelT], plain: Any, name: str) -> ModelT:
    """Validate what a caller sent. Raises ``WebError``."""
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        text = describe_validation_error(error, name, max_problems=5)
        raise WebError(text, name="InvalidInputError") from None


def _encode(operation: Operation, call: Call, result: BaseModel | Response | None) -> Response:
    """Build the answer of a handler's result."""
    if isinstance(result, Response):
        result.headers.update(call.headers)
        return result
    if result is None:
        return Response(status_code=operation.status if operation.status != 200 else 204, headers=call.headers)
    if call.caller.tenant is None:
        body = result.model_dump_json(exclude_none=True)
    else:
        body = json.dumps(call.caller.show_ids(result.model_dump(mode="json", exclude_none=True)), ensure_ascii=False)
    return Response(body, operation.status, call.headers, "application/json")


# ---
# Repeated requests: the answer to an ``Idempotency-Key`` is kept for a day, in the store.


async def _answer_once(operation: Operation, call: Call, raw: bytes) -> Response:
    """Answer the request; one that was answered before gets that answer."""
    given = call.request.headers.getlist("idempotency-key")
    if not given:
        return _encode(operation, call, await _act(operation, call))
    if len(given) > 1 or not 0 < len(given[0]) <= KEY_CHARS or not given[0].isprintable() or not given[0].isascii():
        raise WebError(f"an Idempotency-Key has 1 to {KEY_CHARS} printable ASCII characters", name="InvalidInputError")
    store = await call.client.store(create=True)
    # With what the caller may do: the answer to an operator is not for a viewer of the same name.
    verbs = hashlib.sha256(" ".join(sorted(call.caller.verbs)).encode()).hexdigest()[:8]
    call.key = f"http/{call.scope}/{verbs}/{given[0]}"
    url = call.request.url
    digest = hashlib.sha256(f"{operation.method} {url.path}?{url.query}\n".encode() + raw).hexdigest()
    lease = KeyLease(store, call.key, digest, uuid.uuid4().hex)
    match await lease.claim():
        case "mismatch":
            raise WebError(
                "this Idempotency-Key was sent with another request", status=409, name="IdempotencyKeyConflict",
                hint="Give each request a key of its own.",
            )  # fmt: skip
        case "running":
            raise WebError(
                "the request of this Idempotency-Key is in progress", status=409, name="IdempotencyKeyInUse",
                hint="Send it again later.", headers={"Retry-After": "1"},
            )  # fmt: skip
        case "done":
            return await _restore_answer(store, lease.answer or b"{}", call.key)
        case "new":
            return await _record_answer(operation, call, store, lease)


async def _record_answer(operation: Operation, call: Call, store: Store, lease: KeyLease) -> Response:
    answer: Response | None = None
    try:
        try:
            async with lease.hold():
                answer = _encode(operation, call, await _act(operation, call))
        except PerdureError as error:
            answer = build_problem(call.caller.show_error(error))
        return answer
    finally:
        # A failure of ours may pass, and so may a refusal for the state of things: the same key may try again. What is
        # wrong with the request itself stays wrong.
        kept = answer is not None and (answer.status_code < 300 or answer.status_code in _LASTING)
        record = await _build_record(store, answer) if kept and answer is not None else None
        if record is not None and operation.has_secret and (key := KeyRing.from_environment().find_given_key()):
            record = json.dumps({"sealed": key.seal(record, cast(str, call.key))}).encode()
        await store.complete_idempotency(cast(str, call.key), lease.owner, record)


async def _act(operation: Operation, call: Call) -> BaseModel | Response | None:
    try:
        async with asyncio.timeout(ACT_SECONDS):
            return await operation.handler(call)
    except TimeoutError:
        raise WebError(
            f"the request took longer than {ACT_SECONDS:g} s, and may still take effect", status=504,
            name="TimeoutError", hint="Send it again with the same Idempotency-Key.", headers={"Retry-After": "1"},
        ) from None  # fmt: skip


_LASTING = (400, 413, 415, 422)
_KEPT_HEADERS = ("content-type", "location", "etag", "retry-after")


async def _build_record(store: Store, answer: Response) -> bytes:
    body = bytes(answer.body)
    record: dict[str, Any] = {
        "status": answer.status_code,
        "headers": {name: value for name, value in answer.headers.items() if name in _KEPT_HEADERS},
    }
    encoded = json.dumps({**record, "body": body.decode()}).encode()
    if len(encoded) <= IDEMPOTENCY_ANSWER_BYTES:
        return encoded
    blob = Blob.from_content(body)
    await store.commit(Commit(blobs=[blob]))
    return json.dumps({**record, "blob": blob.ref.model_dump()}).encode()


async def _restore_answer(store: Store, recorded: bytes, key: str) -> Response:
    record = json.loads(recorded)
    if "sealed" in record:
        record = json.loads(KeyRing.from_environment().open(record["sealed"], [key]))
    if "blob" in record:
        ref = BlobRef.model_validate(record["blob"])
        body = (await store.read_blobs([ref.hash]))[ref.hash]
    else:
        body = record["body"].encode()
    return Response(body, record["status"], {**record["headers"], "Idempotency-Replayed": "true"})


# ---
# Ids in paths: a subagent's has slashes, which a client sends as %2F.


class _SegmentConvertor(Convertor[str]):
    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("segment", _SegmentConvertor())


def decode_path(scope: dict[str, Any]) -> dict[str, Any]:
    """Return ``scope`` with a path in which %2F and %25 are still encoded, so that an id with a slash is one segment:
    parameters of the type ``segment`` decode them."""
    raw = scope.get("raw_path")
    if not raw or b"%2" not in raw:
        return scope
    kept = raw.decode("ascii", "replace").replace("%25", "%2525").replace("%2F", "%252F").replace("%2f", "%252F")
    return {**scope, "path": unquote(kept)}


_ROUTER_KEY = "perdure.router"


class ApiRouter(Router):
    """The routes of one API. Their links are relative to it, so that the mounts above it may have any name."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        super().__init__(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        await super().__call__({**scope, _ROUTER_KEY: self}, receive, send)


def list_routes(web: Web, operations: Sequence[Operation], prefix: str = "") -> list[Route]:
    """Build the routes of ``operations``."""
    return [operation.build_route(web, prefix) for operation in operations]
