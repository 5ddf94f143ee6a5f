"""OAuth 2.1 with the authorization server of an MCP server: sign-ins of people, refreshes, tokens of machines.

The protocol is the SDK's: discovery (RFC 9728, RFC 8414), registration (RFC 7591, client metadata documents), PKCE,
``iss`` (RFC 9207), resource indicators (RFC 8707). Its flow is one coroutine that waits for the person in the middle;
here a sign-in is two halves, with a :class:`PendingSignIn` between them that can be stored: another process may take
the browser's return.

What servers name in their metadata is hostile until it is checked: each answer is bounded in bytes and time, and an
MCP server on the internet leads to no address of this network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn
from urllib.parse import urlencode, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, PKCEParameters
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.utils import issuers_match, union_scopes, validate_authorization_response_iss
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import AnyUrl, ValidationError

from .._webhook_wire import is_public, resolve_host
from ..errors import PerdureError, ToolError
from ..types.redaction import Redaction
from .connection import NotSentError
from .grants import Grant, describe_url
from .oauth import ClientCredentials, OAuth, Refusal

ANSWER_BYTES = 256 * 1024
"""Most bytes of one answer of an authorization server, or of metadata."""
ANSWER_SECONDS = 20.0
"""Most seconds that one of them may take."""
SCOPE_CHARS = 2000
"""Most characters of all scopes of a demand or a grant."""
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
TOKEN_SECONDS = 10 * 365 * 86400
"""Longest time that a token is believed to be valid: servers name any number."""
_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")
_PASSING_ERRORS = ("temporarily_unavailable", "server_error", "slow_down")
"""Errors of a token endpoint that say nothing of the grant."""
CLIENT_NAME = "perdure"
HTTP_OK, HTTP_UNAUTHORIZED, HTTP_FORBIDDEN, HTTP_TOO_MANY, HTTP_SERVER_ERROR = 200, 401, 403, 429, 500

_in_flow: ContextVar[bool] = ContextVar("perdure_mcp_oauth_flow", default=False)


class _FlowFilter(logging.Filter):
    """Drops what the SDK logs of perdure's flows: it has bodies of token endpoints, and each is raised to us too."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is another's."""
        return not _in_flow.get()


for _module in ("oauth2", "utils"):
    logging.getLogger(f"mcp.client.auth.{_module}").addFilter(_FlowFilter())


class SignInError(ToolError):
    """A sign-in, or a request for tokens, failed. The text has no secret."""


# ---
# Requests to addresses that servers name.


Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


@asynccontextmanager
async def _open_sender(server_url: str) -> AsyncIterator[Send]:
    """Send requests on behalf of a sign-in at ``server_url``."""
    may_be_private = await _is_private_host(server_url)

    async def send(request: httpx2.Request) -> httpx2.Response:
        url = str(request.url)
        await _check_address(url, server_url, may_be_private)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    return await _read_bounded(request, response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise NotSentError(f"{describe_url(url)} did not answer within {ANSWER_SECONDS:g} s") from None
        except httpx2.HTTPError as error:
            raise NotSentError(f"{describe_url(url)} cannot be reached: {type(error).__name__}") from None

    async with create_mcp_http_client(timeout=httpx2.Timeout(ANSWER_SECONDS)) as client:
        yield send


async def _read_bounded(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    body = bytearray()
    is_endless = response.headers.get("content-type", "").startswith("text/event-stream")
    if not is_endless:
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > ANSWER_BYTES:
                shown = describe_url(str(request.url))
                raise SignInError(f"the answer of {shown} is larger than {ANSWER_BYTES // 1024} KiB")
    unread = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in unread]
    return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)


async def _check_address(url: str, server_url: str, may_be_private: bool) -> None:
    """Raise ``SignInError`` for a URL to which ``server_url`` may not lead."""
    parts = urlsplit(url)
    shown, server = describe_url(url), describe_url(server_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:  # one above 65535 raises
        raise SignInError(f"MCP server {server} leads to {shown:.200}, which is not an http(s) URL")
    if parts.username is not None:
        raise SignInError(f"MCP server {server} leads to {shown:.200} with credentials in the URL")
    if may_be_private:
        return
    if parts.scheme != "https":
        raise SignInError(f"MCP server {server} leads to {shown:.200}, which is not https")
    if not await _is_public_host(url):
        raise SignInError(f"MCP server {server} leads to {shown:.200}, whose address is not public")


async def _is_public_host(url: str) -> bool:
    """Whether all of its addresses are of the internet."""
    return all(map(is_public, await _resolve(url)))


async def _is_private_host(url: str) -> bool:
    """Whether none of its addresses is of the internet: the owner of a name there may give it any others besides."""
    return not any(map(is_public, await _resolve(url)))


async def _resolve(url: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    parts = urlsplit(url)
    try:
        found = await resolve_host(parts.hostname or "", parts.port or 443)
    except (OSError, UnicodeError) as error:
        raise NotSentError(f"the host of {describe_url(url):.200} cannot be resolved: {type(error).__name__}") from None
    return [ipaddress.ip_address(address.partition("%")[0]) for address in found]


# ---
# The SDK's flow, driven request by request.


class _FlowStorage:
    """The SDK's storage, for one flow."""

    def __init__(self, client: OAuthClientInformationFull | None = None, tokens: OAuthToken | None = None) -> None:
        self.client, self.tokens = client, tokens

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class _PersonNeeded(BaseException):  # not an Exception: the SDK would log it as an error of the flow
    """Leaves the SDK's flow where it would wait for the person."""

    def __init__(self, url: str, state: str, verifier: str) -> None:
        super().__init__("a person has to sign in")
        self.url, self.state, self.verifier = url, state, verifier


class _PersonFlow(OAuthClientProvider):
    """The SDK's flow up to the person, and from there on."""

    async def _perform_authorization(self) -> NoReturn:
        """Leave the flow with the URL that the person opens. The SDK's own keeps the verifier in a local variable until
        the person has come back, which may be to another process."""
        context = self.context
        metadata, client, redirects = context.oauth_metadata, context.client_info, context.client_metadata.redirect_uris
        assert client is not None, "registered before"
        assert redirects, "set for the flow"
        if metadata is not None and "S256" not in (metadata.code_challenge_methods_supported or ()):
            raise OAuthFlowError(
                f"the authorization server {metadata.issuer} does not support PKCE with S256, which MCP demands"
            )
        _settle_client_authentication(client, metadata)
        pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
        fields = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": str(redirects[0]),
            "state": state,
            "code_challenge": pkce.code_challenge,
            "code_challenge_method": "S256",
        }
        if context.should_include_resource_param(context.protocol_version):
            fields["resource"] = context.get_resource_url()
        if context.client_metadata.scope:
            fields["scope"] = context.client_metadata.scope
            if "offline_access" in context.client_metadata.scope.split():
                fields["prompt"] = "consent"  # OpenID Connect demands it
        endpoint = context.get_authorization_base_url(context.server_url) + "/authorize"
        if metadata is not None:
            endpoint = str(metadata.authorization_endpoint)
        joint = "&" if urlsplit(endpoint).query else "?"
        raise _PersonNeeded(f"{endpoint}{joint}{urlencode(fields)}", state, pkce.code_verifier)


def _settle_client_authentication(client: OAuthClientInformationFull, metadata: OAuthMetadata | None) -> None:
    """Choose how a client with a secret authenticates, where neither its registration nor its owner says so."""
    if client.client_secret is None or client.token_endpoint_auth_method is not None:
        return
    supported = (metadata.token_endpoint_auth_methods_supported if metadata else None) or ["client_secret_basic"]
    is_post = "client_secret_basic" not in supported and "client_secret_post" in supported
    client.token_endpoint_auth_method = "client_secret_post" if is_post else "client_secret_basic"


@contextmanager
def _translate_errors(server_url: str, *secrets: str | None) -> Iterator[None]:
    """Raise the SDK's errors as ``SignInError``. A server may repeat in its own what it was sent: ``secrets``."""
    try:
        with _translate_sdk_errors(server_url):
            yield
    except PerdureError as error:
        raise Redaction(tuple(filter(None, secrets))).redact_error(error) from None


@contextmanager
def _translate_sdk_errors(server_url: str) -> Iterator[None]:
    token = _in_flow.set(True)
    try:
        yield
    except OAuthRegistrationError as error:
        text = str(error).splitlines()[0] if str(error) else "it has no endpoint"
        raise SignInError(
            f"sign-in at {describe_url(server_url)}: the authorization server registers no clients: {text:.300}",
            hint="Register one there by hand, and give OAuth(client_id=…), or `perdure mcp login --client-id`.",
        ) from None
    except OAuthFlowError as error:  # also its subclasses
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if text.startswith("State parameter mismatch"):
            text = "the answer belongs to another sign-in"
        raise SignInError(f"sign-in at {describe_url(server_url)}: {text:.500}") from None
    except ValidationError as error:
        names = ", ".join(sorted({str(flaw["loc"][0]) for flaw in error.errors() if flaw["loc"]}))
        raise SignInError(f"sign-in at {describe_url(server_url)}: an answer is not valid ({names:.200})") from None
    except (httpx2.InvalidURL, ValueError, ArithmeticError) as error:  # of a URL or a number that is none
        what = type(error).__name__
        raise SignInError(f"sign-in at {describe_url(server_url)}: an answer is not valid ({what})") from None
    finally:
        _in_flow.reset(token)


async def _run_flow(
    provider: OAuthClientProvider, request: httpx2.Request, challenge: httpx2.Response, send: Send
) -> None:
    """Run the SDK's flow after ``challenge``, the answer to ``request``, up to where it would send it again."""
    flow = provider.async_auth_flow(request)
    try:
        await flow.__anext__()  # the request itself
        response = challenge
        while (outgoing := await flow.asend(response)) is not request:
            response = await send(outgoing)
    finally:
        await flow.aclose()


def _build_challenge(request: httpx2.Request, refusal: Refusal, scopes: str | None) -> httpx2.Response:
    """Build the answer from which the SDK begins: a server's, with the scopes that are to be asked for."""
    fields = {"resource_metadata": refusal.resource_metadata, "scope": scopes}
    if refusal.status == HTTP_FORBIDDEN:
        fields["error"] = "insufficient_scope"
    values = ", ".join(f'{name}="{value}"' for name, value in fields.items() if value)
    return httpx2.Response(refusal.status, headers={"WWW-Authenticate": f"Bearer {values}"}, request=request)


def read_refusal(response: httpx2.Response, token: str | None) -> Refusal | None:
    """Return what a server demands that has refused a token; None for any other answer."""
    from mcp.client.auth.utils import extract_field_from_www_auth

    def get(name: str) -> str | None:
        value = extract_field_from_www_auth(response, name)
        return None if value is None or '"' in value or len(value) > 2000 else value  # no real one is

    is_scope = response.status_code == HTTP_FORBIDDEN and get("error") == "insufficient_scope"
    if response.status_code != HTTP_UNAUTHORIZED and not is_scope:
        return None
    return Refusal(response.status_code, clean_scope(get("scope")), get("resource_metadata"), token)


def clean_scope(scope: str | None) -> str | None:
    """Return the scopes of a server's text that are such (RFC 6749), without those beyond ``SCOPE_CHARS``: they are
    stored, and shown to people."""
    if scope is None:
        return None
    names = [name for name in scope.split(" ") if _SCOPE.fullmatch(name)]
    while names and len(" ".join(names)) > SCOPE_CHARS:
        del names[len(names) // 2 :]
    return " ".join(names) or None


# ---
# A person's sign-in.


@dataclass(frozen=True, slots=True, repr=False)
class PendingSignIn:
    """A sign-in between its two halves, as plain JSON. It is never printed: it has the verifier."""

    server: str
    redirect_uri: str
    state: str
    verifier: str
    scope: str | None
    protocol_version: str
    client: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    resource: dict[str, Any] | None = None


async def begin_sign_in(
    url: str, auth: OAuth, redirect_uri: str, *, scopes: tuple[str, ...] = (), previous: Grant | None = None
) -> tuple[str, PendingSignIn]:
    """Return the URL that the person opens, and what :func:`finish_sign_in` needs.

    ``scopes`` are asked for besides those of ``auth`` and of the server; ``previous``: its client is used again where
    it fits. Raises ``SignInError``, and ``NotSentError`` for a server that cannot be reached.
    """
    storage = _FlowStorage(_find_client(auth, redirect_uri, previous))
    client_metadata = OAuthClientMetadata(
        redirect_uris=[AnyUrl(redirect_uri)],
        client_name=CLIENT_NAME,
        scope=" ".join(auth.scopes) or None,
        application_type="native" if urlsplit(redirect_uri).hostname in ("127.0.0.1", "::1") else "web",
    )
    provider = _PersonFlow(url, client_metadata, storage, client_metadata_url=auth.client_metadata_url)
    request = _build_probe(url)
    async with _open_sender(url) as send:
        with _translate_errors(url, auth.client_secret):
            refusal = read_refusal(await send(request), None) or Refusal(HTTP_UNAUTHORIZED, None, None, None)
            wanted = union_scopes(" ".join(dict.fromkeys((*auth.scopes, *scopes))) or None, refusal.scope)
            try:
                await _run_flow(provider, request, _build_challenge(request, refusal, wanted), send)
            except OAuthFlowError:
                _check_issuer(provider, auth)
                raise
            except _PersonNeeded as needed:
                _check_issuer(provider, auth)
                await _check_address(needed.url, url, await _is_private_host(url))
                return needed.url, _build_pending(provider, needed, redirect_uri)
    raise SignInError(f"{describe_url(url)} needs no sign-in")  # pragma: no cover  # the flow always leads to a person


def _check_issuer(provider: _PersonFlow, auth: OAuth) -> None:
    """Raise ``SignInError`` if the server has led to another authorization server than the one of ``auth``."""
    metadata = provider.context.oauth_metadata
    if auth.issuer is not None and (metadata is None or not issuers_match(str(metadata.issuer), auth.issuer)):
        found = "none" if metadata is None else describe_url(str(metadata.issuer))
        server = describe_url(provider.context.server_url)
        raise SignInError(
            f"sign-in at {server}: it names the authorization server {found}, and the client is known to "
            f"{describe_url(auth.issuer)}",
            hint="If that is right, give OAuth(issuer=…) its URL; the client's secret would be sent to it.",
        )


def _build_probe(url: str) -> httpx2.Request:
    """Build a request that does nothing, whose refusal says how to sign in."""
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": CLIENT_NAME, "version": "0"}}
    headers = {"Accept": "application/json, text/event-stream", "mcp-protocol-version": LATEST_PROTOCOL_VERSION}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    return httpx2.Request("POST", url, json=body, headers=headers)


def _find_client(auth: OAuth, redirect_uri: str, previous: Grant | None) -> OAuthClientInformationFull | None:
    if auth.client_id is not None:
        return OAuthClientInformationFull(
            client_id=auth.client_id,
            client_secret=auth.client_secret,
            redirect_uris=[AnyUrl(redirect_uri)],
            issuer=auth.issuer,
        )
    if previous is None or previous.client is None:
        return None
    client = OAuthClientInformationFull.model_validate(previous.client)
    is_fitting = AnyUrl(redirect_uri) in (client.redirect_uris or ())
    is_over = bool(client.client_secret_expires_at) and (client.client_secret_expires_at or 0) < time.time()
    return client if is_fitting and not is_over else None


def _build_pending(provider: _PersonFlow, needed: _PersonNeeded, redirect_uri: str) -> PendingSignIn:
    context = provider.context
    assert context.client_info is not None, "the flow has registered it"
    return PendingSignIn(
        server=context.server_url,
        redirect_uri=redirect_uri,
        state=needed.state,
        verifier=needed.verifier,
        scope=context.client_metadata.scope,
        protocol_version=LATEST_PROTOCOL_VERSION,
        client=context.client_info.model_dump(mode="json", exclude_none=True),
        metadata=_dump(context.oauth_metadata),
        resource=_dump(context.protected_resource_metadata),
    )


def _dump(model: OAuthMetadata | ProtectedResourceMetadata | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


async def finish_sign_in(pending: PendingSignIn, answer: dict[str, str]) -> Grant:
    """Exchange the code of the browser's return for tokens. ``answer``: the parameters of its URL.

    Raises ``SignInError`` if they belong to another sign-in or another server, or the person did not agree;
    ``NotSentError`` for an authorization server that cannot be reached.
    """
    if not secrets.compare_digest(answer.get("state", "").encode(), pending.state.encode()):
        raise SignInError("the browser came back with another state than it left with: begin the sign-in again")
    storage = _FlowStorage()
    grant = Grant(pending.client, pending.metadata, pending.resource, protocol_version=pending.protocol_version)
    provider = _restore_flow(pending.server, grant, storage, pending.redirect_uri, pending.scope)
    secret = pending.client.get("client_secret")
    with _translate_errors(pending.server, answer.get("code"), pending.verifier, pending.state, secret):
        validate_authorization_response_iss(answer.get("iss"), provider.context.oauth_metadata)
        if "error" in answer:
            why = ": ".join(answer[name] for name in ("error", "error_description") if answer.get(name))
            raise SignInError(f"the authorization server has refused: {why:.500}")
        if not answer.get("code"):
            raise SignInError("the browser came back without a code: begin the sign-in again")
        request = await provider._exchange_token_authorization_code(answer["code"], pending.verifier)  # a subclass
        async with _open_sender(pending.server) as send:
            response = await send(request)
        if response.status_code not in (HTTP_OK, 201):
            raise SignInError(f"the code was not taken: {_describe_token_error(response)}")
        await provider._handle_token_response(response)  # a subclass
    return _add_tokens(grant, storage)


def _restore_flow(
    url: str, grant: Grant, storage: _FlowStorage, redirect_uri: str | None = None, scope: str | None = None
) -> _PersonFlow:
    redirects = None if redirect_uri is None else [AnyUrl(redirect_uri)]
    provider = _PersonFlow(url, OAuthClientMetadata(redirect_uris=redirects, scope=scope), storage)
    context = provider.context
    context.client_info = OAuthClientInformationFull.model_validate(grant.client)
    if grant.metadata is not None:
        context.oauth_metadata = OAuthMetadata.model_validate(grant.metadata)
    if grant.resource is not None:
        context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(grant.resource)
    context.protocol_version = grant.protocol_version
    return provider


def _add_tokens(grant: Grant, storage: _FlowStorage) -> Grant:
    tokens = storage.tokens
    assert tokens is not None, "the flow has stored them"
    if not _TOKEN.fullmatch(tokens.access_token):  # an error of the header would show it
        raise SignInError("the authorization server gives an access token that no header can carry")
    lasts = None if tokens.expires_in is None else min(max(tokens.expires_in, 0), TOKEN_SECONDS)
    return replace(
        grant,
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token,
        scope=clean_scope(tokens.scope),
        expires_at=None if lasts is None else time.time() + lasts,
    )


# ---
# Tokens after the sign-in.


async def refresh_tokens(url: str, grant: Grant) -> Grant | None:
    """Return the grant with new tokens, without any if the authorization server does not know the client any more;
    None if it refuses the grant for good.

    Raises ``NotSentError`` if the server cannot be reached or has an error of its own: a retry may help;
    ``SignInError`` for an answer that is none of an authorization server.
    """
    tokens = OAuthToken(access_token=grant.access_token or "", refresh_token=grant.refresh_token, scope=grant.scope)
    storage = _FlowStorage(tokens=tokens)
    provider = _restore_flow(url, grant, storage)
    provider.context.current_tokens = tokens
    with _translate_errors(url, *_list_secrets(grant)):
        request = await provider._refresh_token()  # a subclass
        async with _open_sender(url) as send:
            response = await send(request)
        status, error = response.status_code, (_read_token_error(response) or [""])[0]
        if status >= HTTP_SERVER_ERROR or status == HTTP_TOO_MANY or error in _PASSING_ERRORS:
            raise NotSentError(f"the grant for {describe_url(url)} was not refreshed: HTTP {status}")
        if error:  # also with 200, as GitHub does
            is_unknown = error == "invalid_client"
            return Grant(metadata=grant.metadata, resource=grant.resource, scope=grant.scope) if is_unknown else None
        if status != HTTP_OK:  # of a proxy, or of a wrong address: the refresh token may be as good as before
            raise SignInError(f"the grant for {describe_url(url)} was not refreshed: HTTP {status}")
        if not await provider._handle_refresh_response(response):  # a subclass
            raise SignInError(f"the grant for {describe_url(url)} was not refreshed: the answer is not valid")
    return _add_tokens(grant, storage)


async def fetch_machine_tokens(url: str, auth: ClientCredentials, refusal: Refusal) -> Grant:
    """Return tokens of the client itself, after the server's ``refusal``.

    Raises ``SignInError``, and ``NotSentError`` if the authorization server cannot be reached.
    """
    storage, scope = _FlowStorage(), " ".join(auth.scopes) or None
    provider: OAuthClientProvider
    if auth.client_secret is not None:
        provider = ClientCredentialsOAuthProvider(
            url, storage, auth.client_id, auth.client_secret, scope=scope, issuer=auth.issuer
        )
    else:
        assert auth.private_key is not None, "one of them"
        signed = SignedJWTParameters(
            issuer=auth.client_id,
            subject=auth.client_id,
            signing_key=auth.private_key,
            signing_algorithm=auth.algorithm,
        )
        assertion = signed.create_assertion_provider()
        provider = PrivateKeyJWTOAuthProvider(url, storage, auth.client_id, assertion, scope=scope, issuer=auth.issuer)
    request = _build_probe(url)
    challenge = _build_challenge(request, refusal, union_scopes(scope, refusal.scope))
    async with _open_sender(url) as send:

        async def send_checked(request: httpx2.Request) -> httpx2.Response:
            response = await send(request)
            if "grant_type" in request.content.decode(errors="replace") and response.status_code >= 400:  # of HTTP
                raise SignInError(f"{describe_url(str(request.url))} gives no token: {_describe_token_error(response)}")
            return response

        with _translate_errors(url, auth.client_secret):
            await _run_flow(provider, request, challenge, send_checked)
    return _add_tokens(Grant(), storage)


async def revoke_tokens(url: str, grant: Grant) -> bool:
    """Revoke the tokens where the authorization server has an endpoint for it; whether it has. Raises as
    :func:`refresh_tokens`."""
    endpoint = None if grant.metadata is None else grant.metadata.get("revocation_endpoint")
    token = grant.refresh_token or grant.access_token
    if endpoint is None or token is None or grant.client is None:
        return False
    provider = _restore_flow(url, grant, _FlowStorage())
    hint = "refresh_token" if grant.refresh_token else "access_token"
    data = {"token": token, "token_type_hint": hint, "client_id": provider.context.client_info.client_id}  # type: ignore[union-attr]  # restored
    with _translate_errors(url, *_list_secrets(grant)):
        data, headers = provider.context.prepare_token_auth(data, {})
        async with _open_sender(url) as send:
            response = await send(httpx2.Request("POST", str(endpoint), data=data, headers=headers))
    if response.status_code != HTTP_OK:
        raise SignInError(f"{describe_url(str(endpoint))} has not revoked the grant: {_describe_token_error(response)}")
    return True


def _list_secrets(grant: Grant) -> tuple[str | None, ...]:
    return grant.access_token, grant.refresh_token, (grant.client or {}).get("client_secret")


def _describe_token_error(response: httpx2.Response) -> str:
    return ": ".join([f"HTTP {response.status_code}", *_read_token_error(response)])[:500]


def _read_token_error(response: httpx2.Response) -> list[str]:
    """Return the error of a token endpoint, by the fields that RFC 6749 has; the rest may be anything."""
    try:
        body = json.loads(response.content)
        return [body[name] for name in ("error", "error_description") if isinstance(body.get(name), str)]
    except (ValueError, AttributeError, RecursionError):
        return []
