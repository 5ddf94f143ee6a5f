"""Who looks at a page: logins of browsers, and the proof that a form is the page's own.

A login is made with an API token. The cookie has an id and a secret of its own; the store has the hash of the secret,
and the token's id. Each request reads both rows, so a revocation of the token, or a logout, counts from the next
request on, on every replica. Users named by a reverse proxy, and ``--dev``, need no login.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..client.client import Client
from ..client.deferred_decisions import UNDO_SECONDS, DecisionSender
from ..errors import PerdureError, join_sentences
from ..ports.times import add_seconds, format_utc_now
from ..ports.tokens import LoginRow, hash_login
from ..types.messages import clean_text
from ..web.app import MAX_CONSOLE_UPLOAD_BYTES
from ..web.auth import BearerTokens, Caller, build_token_caller, check_token_validity
from ..web.limits import FailureLimiter, iterate_body
from ..web.operations import Web
from ..web.origins import is_loopback_name, is_own_origin, parse_host
from ..web.problems import ForbiddenError, UnauthorizedError, WebError
from .texts import format_size

LOGIN_COOKIE, FORM_COOKIE = "perdure_login", "perdure_form"
LOGIN_SECONDS = 12 * 3600.0
MAX_FORM_BYTES = 1024 * 1024
MAX_FORM_FIELDS = 1000
MAX_FILES = 10
"""Most files of a form that takes files."""
_DROP_SECONDS = 120.0
"""How long the rest of a form that is refused is read."""
_LOGIN = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{64})")
_SEED = re.compile(r"[0-9a-f]{64}")
FORM_TOKEN = "form_token"  # noqa: S105  # the name of a field
"""Name of the field with the token of a form."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """A caller with a browser."""

    caller: Caller
    seed: str
    """A secret of the browser, which the tokens of its forms are made from: of its login, or of a cookie for forms."""
    is_new_seed: bool = False
    """Whether the browser has yet to be given the cookie for forms."""
    login_id: str | None = None
    """None if it is known without a login: by a proxy, or by ``--dev``."""

    @property
    def form_token(self) -> str:
        """The token of this browser's forms. Another user, or another login, has another one."""
        text = f"form\0{self.seed}\0{self.caller.auth}\0{self.caller.name}"
        return hashlib.sha256(text.encode()).hexdigest()


class ConsoleAccess:
    """Finds out who looks at a page, logs in and out, and checks forms."""

    def __init__(self, web: Web, undo_seconds: float = UNDO_SECONDS) -> None:
        self._web = web
        self.undo_seconds = undo_seconds
        """How long a decision can be taken back; 0 sends it at once."""
        self.sender = DecisionSender(web.client)
        self._failures = FailureLimiter(web.limits)

    @property
    def client(self) -> Client:
        """perdure's client."""
        return self._web.client

    async def find_visitor(self, request: Request) -> Visitor:
        """Return who sends the request, and count it. Raises ``UnauthorizedError`` for an unknown one."""
        visitor = await self._find_login(request)
        if visitor is None:
            caller = await self._web.authenticator.authenticate(request)
            if caller is None:
                raise UnauthorizedError("nobody is logged in")
            visitor = build_visitor(request, caller)
        self._web.rates.check(visitor.caller)
        if self.undo_seconds:
            self.sender.start()  # also of a replica that was killed meanwhile
        return visitor

    async def _find_login(self, request: Request) -> Visitor | None:
        """Return the visitor that the login cookie names, or None if there is no valid one.

        The caller then tries the other ways to authenticate.
        """
        parts = _LOGIN.fullmatch(request.cookies.get(LOGIN_COOKIE, ""))
        if parts is None:
            return None
        store = await self.client.store()
        login = await store.get_login(parts[1])
        expected = login.hash if login is not None else "0" * 64
        if not hmac.compare_digest(hash_login(parts[1], parts[2]), expected) or login is None:
            return None
        now = format_utc_now()
        token = await store.get_token(login.token_id)
        if token is None or login.expires_at <= now:
            return None
        try:
            check_token_validity(token, now)
        except UnauthorizedError:
            return None
        return Visitor(build_token_caller(token), parts[2], login_id=login.id)

    async def log_in(self, request: Request, token: str) -> tuple[Caller, str]:
        """Make a login with an API token; return the caller, and the value of the cookie. Raises
        ``UnauthorizedError``, and ``WebError`` for an address that has failed too often."""
        self._failures.check(request)
        try:
            caller = await BearerTokens(self.client).check_token(token)
        except UnauthorizedError:
            self._failures.record(request)
            raise
        login_id, secret, now = secrets.token_hex(8), secrets.token_hex(32), format_utc_now()
        token_id = caller.auth.removeprefix("token:")
        row = LoginRow(login_id, hash_login(login_id, secret), token_id, now, add_seconds(now, LOGIN_SECONDS))
        await (await self.client.store()).create_login(row)
        return caller, f"{login_id}.{secret}"

    async def log_out(self, visitor: Visitor) -> None:
        """End the login of the visitor: its cookie is of no use any longer."""
        if visitor.login_id is not None:
            await (await self.client.store()).delete_login(visitor.login_id)


def build_visitor(request: Request, caller: Caller) -> Visitor:
    """Build a visitor without a login: its forms are bound to a cookie of their own."""
    seed = request.cookies.get(FORM_COOKIE, "")
    if _SEED.fullmatch(seed):
        return Visitor(caller, seed)
    return Visitor(caller, secrets.token_hex(32), is_new_seed=True)


NOBODY = Caller("", "none", frozenset())
"""Who looks at the page with the login."""


def set_cookie(request: Request, response: Response, name: str, value: str, seconds: float | None = None) -> None:
    """Set a cookie that no script reads, and that browsers send only by https beyond this machine.

    ``SameSite=Lax``: a link in a mail or a chat opens the page that it names, and a form of another site is sent
    without the cookie.
    """
    host = parse_host(request.headers.get("host", ""))
    is_local = host is not None and is_loopback_name(host.name) and request.url.scheme != "https"
    response.set_cookie(
        name,
        value,
        max_age=None if seconds is None else int(seconds),
        path=request.scope["root_path"] or "/",
        httponly=True,
        samesite="lax",
        secure=not is_local,
    )


def delete_cookie(request: Request, response: Response, name: str) -> None:
    """Have the browser forget a cookie."""
    set_cookie(request, response, name, "", 0)


# ---
# Forms.


class Form:
    """The fields of a form, as a browser sends them. Line breaks in them are line feeds."""

    def __init__(self, pairs: list[tuple[str, str]], files: Sequence[UploadFile] = ()) -> None:
        self.files = files
        """The files that were chosen; they are closed at the end of the request."""
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(clean_text(value.replace("\r\n", "\n")))

    def get(self, name: str) -> str:
        """Return the value of a field, "" if it is missing. Raises ``WebError`` for one that is there twice."""
        values = self._values.get(name, [""])
        if len(values) > 1:
            raise WebError(f"the form has the field {name!r:.100} twice", name="FormError")
        return values[0]

    def get_all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self._values.get(name, [])

    def __contains__(self, name: str) -> bool:
        return name in self._values

    async def close(self) -> None:
        """Delete the files."""
        for file in self.files:
            await file.close()


async def read_form(request: Request, visitor: Visitor, *, takes_files: bool = False) -> Form:
    """Read a form of this console's own pages, in this browser. Raises ``WebError`` for another one, before it acts."""
    check_origin(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "multipart/form-data" and takes_files:
            form = await _read_parts(request)
        elif kind == "application/x-www-form-urlencoded":
            form = Form(await _read_fields(request))
        else:
            raise WebError("the console takes its own forms", status=415, name="ContentTypeError")
    except WebError as error:
        if error.status != 408:
            await _drop_rest(request)
        raise
    if not hmac.compare_digest(form.get(FORM_TOKEN).encode(), visitor.form_token.encode()):
        await form.close()
        raise ForbiddenError(
            "the form is out of date, or not of this page", hint="Nothing was done. Load the page again, and repeat."
        )
    return form


async def _drop_rest(request: Request) -> None:
    """Read what is left of a form that is refused: a browser reads the answer when it has sent all. The application's
    rule of the body bounds the bytes."""
    with suppress(ClientDisconnect, TimeoutError, RuntimeError):  # the last: it was read to its end
        async with asyncio.timeout(_DROP_SECONDS):
            async for _ in request.stream():
                pass


async def _read_fields(request: Request) -> list[tuple[str, str]]:
    raw = bytearray()
    try:
        async for piece in request.stream():
            raw += piece
            if len(raw) > MAX_FORM_BYTES:
                raise _build_size_error("what was written", MAX_FORM_BYTES)
    except ClientDisconnect:
        raise WebError("the form ended early", name="BodyIncompleteError") from None
    try:
        return parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS, errors="strict")
    except ValueError:
        raise WebError("the form cannot be read", name="FormError") from None


def _build_size_error(what: str, most: int) -> WebError:
    hint = "Go back: what you wrote may still be there, and files have to be chosen again."
    return WebError(
        f"Nothing was sent: {what} may have {format_size(most)}.", status=413, name="BodyTooLargeError", hint=hint
    )


async def _read_parts(request: Request) -> Form:
    """Read a form with files: those beyond 1 MB wait on the disk, not in memory."""
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and len(length) < 16 and int(length) > MAX_CONSOLE_UPLOAD_BYTES:
        raise _build_size_error("the files of a message together", MAX_CONSOLE_UPLOAD_BYTES)
    parser = MultiPartParser(
        request.headers,
        iterate_body(request, MAX_CONSOLE_UPLOAD_BYTES),
        max_files=MAX_FILES + 1,  # a field without a file comes as one without a name
        max_fields=MAX_FORM_FIELDS,
        max_part_size=MAX_FORM_BYTES,
    )
    try:
        items = (await parser.parse()).multi_items()
    except MultiPartException as error:
        raise WebError(f"the form cannot be read: {error.message}", name="FormError") from None
    files = []
    for _, value in items:
        if isinstance(value, UploadFile):
            if value.filename or value.size:
                files.append(value)
            else:
                await value.close()
    form = Form([(name, value) for name, value in items if isinstance(value, str)], files)
    if len(files) > MAX_FILES:
        await form.close()
        raise WebError(f"a message takes {MAX_FILES} files", status=413, name="BodyTooLargeError")
    return form


def check_origin(request: Request) -> None:
    """Raise ``ForbiddenError`` for a request that acts and comes from a page of another origin, also one whose pages
    may call the API."""
    headers = request.headers
    origins = headers.getlist("origin")
    is_own = (
        len(origins) == 1 and is_own_origin(request.url.scheme, headers.get("host", ""), origins[0])
        if origins
        else headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    )
    if not is_own:
        raise ForbiddenError("the request comes from a page of another origin")


def describe_error(error: PerdureError) -> str:
    """Return what a person is told of an error."""
    return join_sentences(error.message, error.hint)
