"""What no API should send, from a real server to every adapter: its secrets in an error, endless nesting, numbers that
are none; and what must never go out to one."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from perdure import errors
from perdure.ports.model import ModelRequest, ToolSpec
from perdure.providers import OpenAIChat
from perdure.types.messages import Message, ToolCallPart, ToolResultPart
from tests.servers.http import Answer, Handler, HttpServer, Request
from tests.support.adapters import ADAPTERS

KEY = "n0-vendors-form-0123456789"
TENANT = 'q7#te "7"/s3cret+value'
LOGIN, PASSWORD = "ana-the-user", "pass-w0rd-0123"
SECRETS = (KEY, TENANT, LOGIN, PASSWORD)
"""Of no adapter's own words."""
HEADERS = {"X-Tenant": TENANT, "X-Kind": "application/json", "X-Level": "1"}
HI = ModelRequest("model-1", [Message.user("hi")])


adapters = pytest.mark.parametrize("adapter", ADAPTERS)


class Api:
    """A server that answers every adapter with ``handler``."""

    def __init__(self) -> None:
        self.handler: Handler = self.refuse
        self.requests: list[Request] = []
        self.http = HttpServer(self.handle)

    async def handle(self, request: Request, answer: Answer) -> None:
        self.requests.append(request)
        await self.handler(request, answer)

    async def refuse(self, request: Request, answer: Answer) -> None:
        await answer.json(500, {"error": {"message": "not told what to answer"}})

    async def ask(self, adapter: str, request: ModelRequest = HI, login: str = "") -> errors.ProviderError:
        """What ``adapter`` raises."""
        base_url = f"http://{login}127.0.0.1:{self.http.port}"
        provider = ADAPTERS[adapter].make(base_url=base_url, api_key=KEY, headers=HEADERS)
        try:
            with pytest.raises(errors.ProviderError) as caught:
                async for _ in provider.stream(request):
                    pass
        finally:
            await provider.aclose()
        assert caught.value.__suppress_context__, "the original has the request, and with it the key"
        return caught.value


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    made = Api()
    async with made.http:
        yield made


def failure(message: str, status: int = 401) -> dict[str, Any]:
    """An error as each of the APIs has it."""
    return {"type": "error", "error": {"message": message, "type": "server_error", "code": status, "status": "X"}}


def everything(request: Request) -> str:
    """All that the request has, as it came and in other forms."""
    said = [f"{name}: {value}" for name, value in request.headers.items()]
    forms = [said, map(quote, said), map(json.dumps, said), (base64.b64encode(one.encode()).decode() for one in said)]
    forms += [
        [f"http://{LOGIN}:{PASSWORD}@host/", f"Basic {base64.b64encode(f'{LOGIN}:{PASSWORD}'.encode()).decode()}"]
    ]
    return " | ".join(text for form in forms for text in form if "accept" not in text)


def shows(text: str) -> list[str]:
    """The secrets of which ``text`` has anything."""
    found = [secret for secret in SECRETS if secret[:6] in text or quote(secret, safe="")[:8] in text]
    encoded = [base64.b64encode(secret.encode()).decode() for secret in SECRETS]
    return found + [secret for secret in encoded if secret[:8] in text]


@adapters
async def test_a_configured_header_that_an_error_echoes_is_not_shown(api: Api, adapter: str) -> None:
    """Row 14: one in an API's 401 stood in history."""

    async def echo(request: Request, answer: Answer) -> None:
        await answer.json(401, failure(f"no {TENANT} for X-Tenant {request.headers['x-tenant']}, application/json 1"))

    api.handler = echo
    error = await api.ask(adapter)
    assert isinstance(error, errors.AuthenticationError)
    assert not shows(f"{error} {error.args!r}")
    assert "no [redacted] for X-Tenant [redacted], application/json 1" in str(error)


@adapters
async def test_no_form_of_a_secret_is_shown_however_the_error_is_cut(api: Api, adapter: str) -> None:
    for skipped in (0, 150, 300, 450):

        async def echo(request: Request, answer: Answer, skipped: int = skipped) -> None:
            await answer.json(400, failure(everything(request)[skipped:], 400))

        api.handler = echo
        assert not shows(str(await api.ask(adapter)))


@adapters
async def test_a_secret_at_the_border_of_what_is_shown_is_not_shown_in_part(api: Api, adapter: str) -> None:
    for length in range(565, 605, 7):

        async def echo(request: Request, answer: Answer, length: int = length) -> None:
            await answer.json(400, failure("x" * length + f" {KEY} {TENANT}", 400))

        api.handler = echo
        error = str(await api.ask(adapter))
        assert not [secret for secret in SECRETS if secret[:4] in error], length


@adapters
async def test_an_error_in_the_stream_shows_no_secret(api: Api, adapter: str) -> None:
    async def echo(request: Request, answer: Answer) -> None:
        answer.start(200, {"content-type": "text/event-stream"})
        data = json.dumps(failure(f"no {TENANT} for {KEY}", 500))
        await answer.write(f"event: error\ndata: {data}\n\n".encode())
        await answer.finish()

    api.handler = echo
    error = await api.ask(adapter)
    assert error.retryable
    assert not shows(str(error))


@pytest.mark.parametrize("adapter", ["google", "pydantic-ai"])  # the HTTP client of the others refuses such an address
async def test_the_login_of_an_address_is_not_shown(api: Api, adapter: str) -> None:
    async def echo(request: Request, answer: Answer) -> None:
        basic = base64.b64encode(f"{LOGIN}:{PASSWORD}".encode()).decode()
        said = f"Basic {basic}, http://{LOGIN}:{PASSWORD}@host/, {request.headers['authorization']}"
        await answer.json(400, failure(said, 400))

    api.handler = echo
    assert not shows(str(await api.ask(adapter, login=f"{LOGIN}:{PASSWORD}@")))


@adapters
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_garbage_is_tried_again_deeply_nested_or_not(api: Api, adapter: str, kind: str) -> None:
    """Row 28: deeply nested SSE JSON failed a run at once (RecursionError)."""

    for garbage in ("[" * 100_000, '{"a":' * 5_000, "[" * 900 + "]" * 900, "9" * 5_000, "{"):

        async def send(request: Request, answer: Answer, garbage: str = garbage) -> None:
            body = f"event: message_start\ndata: {garbage}\n\n" if "event" in kind else garbage
            await answer.send(200, body.encode(), {"content-type": kind})

        api.handler = send
        error = await api.ask(adapter)
        assert error.retryable, error
        assert len(str(error)) < 2_000


BAD = {"n": math.inf}


def unsendable(where: str) -> ModelRequest:
    call = ToolCallPart(id="c1", name="add", arguments=BAD if where == "arguments" else {})
    said = [Message.user("hi"), Message.assistant("", call)]
    said.append(Message(role="tool", parts=(ToolResultPart(call_id="c1", name="add", content="1"),)))
    schema = {"type": "object", "properties": {"n": {"type": "number", "default": math.nan}}}
    return ModelRequest(
        "model-1", said, tools=[ToolSpec("add", "", schema if where == "schema" else {"type": "object"})]
    )


@adapters
async def test_infinity_is_never_sent(api: Api, adapter: str) -> None:
    """Row 10: bodies with Infinity in them are not JSON."""
    error = await api.ask(adapter, unsendable("arguments"))
    assert isinstance(error, errors.BadRequestError)
    assert "JSON" in str(error)
    assert error.hint
    assert not api.requests


@adapters
async def test_a_tool_whose_schema_has_no_json_is_left_out(api: Api, adapter: str) -> None:
    await api.ask(adapter, unsendable("schema"))
    sent = api.requests[0].body
    json.loads(sent, parse_constant=pytest.fail)
    assert b'"default"' not in sent


@adapters
async def test_nul_is_never_sent(api: Api, adapter: str) -> None:
    """Row 28: NUL went out to the provider."""
    call = ToolCallPart(id="c1", name="add", arguments={"a\0": ["b\0", "\\u0000", "\\\0"]})
    said = [Message.user("x\0y \\u0000"), Message.assistant("", call)]
    said.append(Message(role="tool", parts=(ToolResultPart(call_id="c1", name="add", content="1\0"),)))
    await api.ask(adapter, ModelRequest("model-1", said, system="be\0brief"))
    sent = api.requests[0].body.decode()
    assert not [text for text in texts(json.loads(sent)) if "\0" in text]
    assert "x\ufffdy" in sent
    assert "be\ufffdbrief" in sent
    assert "\\\\u0000" in sent, "a text that only looks like an escape"


def texts(value: Any) -> Iterator[str]:
    """All texts of ``value``, and of the JSON that a text holds."""
    if isinstance(value, str):
        yield value
        if value.startswith("{"):
            yield from texts(json.loads(value))
    elif isinstance(value, dict | list):
        for part in value if isinstance(value, list) else [part for pair in value.items() for part in pair]:
            yield from texts(part)


async def test_a_key_that_was_changed_while_the_api_thought_is_not_shown(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def echo(request: Request, answer: Answer) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "an-other-key-0123456789")
        await answer.json(401, failure(f"no {request.headers['authorization'].removeprefix('Bearer ')}"))

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    api.handler = echo
    provider = OpenAIChat(f"http://127.0.0.1:{api.http.port}")
    with pytest.raises(errors.AuthenticationError) as caught:
        async for _ in provider.stream(HI):
            pass
    await provider.aclose()
    assert KEY[:6] not in str(caught.value)
