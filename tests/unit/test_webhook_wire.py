"""Webhooks on the wire: which URLs may be called, signatures, bodies, and what an endpoint may answer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

import pytest

from perdure._webhook_wire import (
    BODY_BYTES,
    WEBHOOK_TYPES,
    AllowList,
    WebhookTask,
    _parse_answer,
    build_event_body,
    check_secret,
    find_addresses,
    generate_secret,
    is_public,
    parse_webhook_url,
    sign_webhook,
)
from perdure.errors import InvalidInputError
from perdure.types.events import ApprovalRequested, Event, RunEvent, TurnEvent
from perdure.types.subagents import PathStep

TASK = WebhookTask(
    webhook_id="w", message_id="m", type="approval.requested", stream="c", agent="support", tenant="acme"
)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::", "::1", "fe80::1", "fc00::1"),
        *("ff02::1", "::ffff:8.8.8.8", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "fec0::1", "2001:db8::1"),
        *("fe80::1%eth0", "::127.0.0.1"),
        *("168.63.129.16", "3fff::1", "3fff:fff:ffff::1", "192.88.99.1", "5f00::1", "100::1", "2001:2::1"),
    ],
)
def test_what_is_no_address_of_the_internet(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "168.63.129.17", "2606:4700:4700::1111", "2001:4860:4860::8888"]
)
def test_what_is(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        *("", "x" * 3000, None, 7, "ftp://h.example", "https://", "https:///x", "//h.example", "h.example/x"),
        *(
            "https://user:pass@h.example/",
            "https://user@h.example/",
            "https://h.example:99999/",
            "https://h.example:x/",
        ),
        *(
            "https://h.example/a b",
            "https://h.example/\r\nx: y",
            "https://h\u00e4.example/",
            "https://[::1",
            "file:///x",
        ),
        *("https://h.example\\@10.0.0.1/", "https://h.example:0/", "https://[fe80::1%25eth0]/"),
    ],
)
def test_urls_that_are_refused(url: Any) -> None:
    with pytest.raises(InvalidInputError):
        parse_webhook_url(url)


def test_the_parts_of_a_url() -> None:
    one = parse_webhook_url("https://Hooks.Example.:8443/a/b?c=d")
    assert (one.host, one.port, one.target, one.host_header) == (
        "hooks.example",
        8443,
        "/a/b?c=d",
        "hooks.example:8443",
    )
    assert parse_webhook_url("https://[2606:4700::1]").host_header == "[2606:4700::1]"


async def look_up(url: str, *addresses: str, allow: str = "") -> list[str]:
    async def resolve(_host: str, _port: int) -> list[str]:
        return list(addresses)

    return await find_addresses(parse_webhook_url(url), AllowList.parse(allow), resolve)


async def test_every_address_of_the_host_has_to_be_public() -> None:
    assert await look_up("https://h.example", "8.8.8.8", "2606:4700::1") == ["8.8.8.8", "2606:4700::1"]
    with pytest.raises(InvalidInputError, match=r"10\.0\.0\.1, which is not public"):
        await look_up("https://h.example", "8.8.8.8", "10.0.0.1")
    with pytest.raises(InvalidInputError, match="has no address"):
        await look_up("https://h.example")
    with pytest.raises(InvalidInputError, match="is https"):
        await look_up("http://h.example", "8.8.8.8")


@pytest.mark.parametrize("url", ["https://2130706433/", "https://0x7f.1/", "https://127.1/", "https://localhost/"])
async def test_other_spellings_of_loopback(url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"which is not public|cannot be resolved"):
        await find_addresses(parse_webhook_url(url), AllowList())


async def test_the_allow_list() -> None:
    allow = "hooks.corp.example, 10.1.0.0/16,[::1]"
    assert await look_up("http://HOOKS.corp.example", "192.168.0.1", allow=allow)
    assert await look_up("http://other.example", "10.1.2.3", "::1", allow=allow)
    for host, address in (("sub.hooks.corp.example", "10.2.0.1"), ("other.example", "10.2.0.1")):
        with pytest.raises(InvalidInputError, match="not public"):
            await look_up(f"https://{host}", address, allow=allow)
    with pytest.raises(InvalidInputError, match="neither a host nor a network"):
        AllowList.parse("10.1.0.0/99")


def test_the_signature_of_the_specification() -> None:
    """The example of standardwebhooks.com."""
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    [signature] = sign_webhook([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body).split()
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert len(sign_webhook([secret, generate_secret()], "m", 1, body).split(" ")) == 2


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_AAAA", "secret", None, "whsec_" + "A" * 400, "whsec_\u00e4"])
def test_secrets_that_are_none(secret: Any) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_secret(secret)
    assert "AAAA" not in str(refused.value)


def body_of(event: Event, url: str | None = None) -> dict[str, Any]:
    return dict(json.loads(build_event_body(event, TASK, url)))


def test_the_body_of_an_approval() -> None:
    event = ApprovalRequested(
        context_id="c/call 1",
        task_id="t",
        path=(PathStep(agent="helper", call_id="call 1"),),
        seq=7,
        at="2026-01-01T00:00:01.000000+00:00",
        call_id="a/b",
        name="refund",
        arguments={"amount": 3},
        hash="h",
        summary="Refund 3.",
        expires_in=60,
    )
    body = body_of(event, "https://perdure.example/x")
    data = body.pop("data")
    assert body == {"type": "approval.requested", "timestamp": "2026-01-01T00:00:01.000000+00:00"}
    assert data == {
        "run_id": "c/call 1",
        "root": "c",
        "task_id": "t",
        "agent": "support",
        "tenant": "acme",
        "user": None,
        "seq": 7,
        "path": [{"agent": "helper", "call_id": "call 1"}],
        "call_id": "a/b",
        "tool": "refund",
        "arguments": {"amount": 3},
        "hash": "h",
        "summary": "Refund 3.",
        "on_expiry": "deny",
        "expires_at": "2026-01-01T00:01:01.000000+00:00",
        "decision_url": "https://perdure.example/x/decide/c%2Fcall%201/a%2Fb?hash=h",
    }
    assert "decision_url" not in body_of(event)["data"]


def test_long_fields_are_named_and_left_out() -> None:
    data = body_of(ApprovalRequested(call_id="a", name="x", arguments={"text": "x" * 40_000}, hash="h"))["data"]
    assert (data["arguments"], data["omitted"], data["hash"]) == (None, ["arguments"], "h")
    event = TurnEvent(
        state="completed", content="\u00e4" * 2_500, error="\u00e4" * 2_500, unanswered=("x" * 15_000,) * 1
    )
    event = event.model_copy(update={"error_type": "\ud800" * 2_600, "finish_reason": "\u00e4" * 2_600})
    encoded = build_event_body(event, TASK, None)
    assert len(encoded) <= BODY_BYTES
    assert json.loads(encoded)["data"]["omitted"]


def test_the_types_have_the_states() -> None:
    assert {"run.idle", "turn.completed", "approval.revoked", "question.asked"} <= set(WEBHOOK_TYPES)
    assert "model.delta" not in WEBHOOK_TYPES
    assert RunEvent(state="paused").type not in WEBHOOK_TYPES


@pytest.mark.parametrize(
    ("head", "rest", "status", "text"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"fine", 200, "fine"),
        (b"HTTP/1.0 500\r\ncontent-length: 2\r\n\r\n", b"no more", 500, "no"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"3\r\nabc\r\n9\r\nde", 200, "abc"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"zz", 200, ""),
        (b"HTTP/1.1 302 Found\r\nlocation: http://10.0.0.1\r\n\r\n", b"\xff\0" * 9999, 302, "\ufffd" * 4096),
    ],
)
def test_answers(head: bytes, rest: bytes, status: int, text: str) -> None:
    answer = _parse_answer(head, rest)
    assert (answer.status, answer.text) == (status, text)


@pytest.mark.parametrize(
    "head", [b"\r\n\r\n", b"SSH-2.0 x\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 99999 x\r\n\r\n"]
)
def test_what_is_no_answer(head: bytes) -> None:
    with pytest.raises(ValueError, match="not HTTP"):
        _parse_answer(head, b"")


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("9" * 9, 86400.0), ("-3", None), ("soon", None), ("9" * 99, None)]
)
def test_retry_after(value: str, seconds: float | None) -> None:
    assert _parse_answer(f"HTTP/1.1 503 X\r\nretry-after: {value}\r\n\r\n".encode(), b"").retry_after == seconds


def test_retry_after_a_date() -> None:
    past, later = "Mon, 01 Jan 2001 00:00:00 GMT", f"Mon, 01 Jan {datetime.now(UTC).year + 1} 00:00:00 GMT"
    found = [_parse_answer(f"HTTP/1.1 503 X\r\nretry-after: {at}\r\n\r\n".encode(), b"") for at in (past, later)]
    assert found[0].retry_after == 0.0
    assert 0 < (found[1].retry_after or 0) <= 86400.0
