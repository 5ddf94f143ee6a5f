"""A model that costs next to nothing, the same for every contestant: chat completions over loopback.

The first user message is the order, ``until 50 size 64``: ask for the tool ``work`` (argument ``size``) while the
request has fewer than 50 assistant messages, then answer with text. ``kill 7f3a at 3`` behind it stops the first
reply to a request with 3 assistant messages in its middle, for good; ``GET /seen/7f3a`` then has the times
(``time.time()``) at which that request arrived, and ``GET /calls`` says how many requests there have been. ``wait
300`` at the end delays each reply by 300 ms. Streams if the request says so; all events leave in one write.

``GET /delay/300`` delays every reply from then on by 300 ms, whatever its order says.

``GET /said`` has the number of assistant messages in the latest request.

``say 100 every 20`` is answered with 100 pieces of text, one every 20 ms. Each piece is the moment at which it left:
``time.monotonic_ns()``, a clock that all processes of a machine share.

``python -m benchmarks.mock_model`` prints its base URL and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from functools import lru_cache
from typing import Any, ClassVar

_ORDER = re.compile(rb"until (\d+) size (\d+)(?: kill (\w+) at (\d+))?(?: wait (\d+))?")
_SAY = re.compile(rb"say (\d+) every (\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_MODEL = re.compile(rb'"model": ?"([^"]+)"')
_STREAM = re.compile(rb'"stream": ?true')
_ASSISTANT = re.compile(rb'"role": ?"assistant"')
_SHORT = 4096  # the order and the parameters stand in front, or the request is short

_seen: dict[str, list[float]] = {}
_latest = {"said": 0}


class Model(asyncio.Protocol):
    """One connection."""

    calls: ClassVar[int] = 0
    """Of all connections."""
    delay: ClassVar[int] = 0
    """Milliseconds, of all replies."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See base class."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._data = bytearray()
        self._body_at = 0
        self._end = 0

    def data_received(self, data: bytes) -> None:
        """See base class."""
        self._data += data
        while self._complete():
            body = bytes(self._data[self._body_at : self._end])
            line = bytes(self._data[: self._data.find(b"\r\n")])
            del self._data[: self._end]
            self._end = 0
            self._answer(line, body)

    def _complete(self) -> bool:
        if not self._end:
            head = self._data.find(b"\r\n\r\n")
            if head < 0:
                return False
            length = _LENGTH.search(self._data, 0, head)
            self._body_at = head + 4
            self._end = self._body_at + (int(length[1]) if length else 0)
        return len(self._data) >= self._end

    def _answer(self, line: bytes, body: bytes) -> None:
        if line.startswith(b"GET /said"):
            self._transport.write(_json(str(_latest["said"])))
            return
        if line.startswith(b"GET /seen/"):
            name = line.split(b" ")[1].rpartition(b"/")[2].decode()
            self._transport.write(_json(json.dumps(_seen.get(name, []))))
            return
        if line.startswith(b"GET /calls"):
            self._transport.write(_json(str(Model.calls)))
            return
        if line.startswith(b"GET /delay/"):
            Model.delay = int(line.split(b" ")[1].rpartition(b"/")[2])
            self._transport.write(_json(str(Model.delay)))
            return
        Model.calls += 1
        model = _MODEL.search(body, 0, _SHORT) or _MODEL.search(body)
        if model is not None and (say := _SAY.search(body, 0, _SHORT)):
            _Slow(self._transport, model[1].decode(), int(say[1]), int(say[2]) / 1000).begin()
            return
        order = _ORDER.search(body, 0, _SHORT)
        if order is None or model is None:
            self._transport.write(_json('{"error": {"message": "no order"}}', b"400 Bad Request"))
            return
        _latest["said"] = said = len(_ASSISTANT.findall(body))
        size = int(order[2]) if said < int(order[1]) else None
        streamed = _STREAM.search(body, 0, _SHORT) is not None
        reply = (_stream if streamed else _whole)(model[1].decode(), said, size)
        if order[3] and said == int(order[4]):
            seen = _seen.setdefault(order[3].decode(), [])
            seen.append(time.time())
            if len(seen) == 1:
                reply = reply[: len(reply) // 2]
        if wait := int(order[5] or Model.delay):
            asyncio.get_running_loop().call_later(wait / 1000, self._transport.write, reply)
        else:
            self._transport.write(reply)


class _Slow:
    """A reply whose pieces say when they left. They leave on a schedule, which no delay moves."""

    def __init__(self, transport: asyncio.Transport, model: str, pieces: int, interval: float) -> None:
        self._transport = transport
        self._model = model
        self._left = pieces
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()

    def begin(self) -> None:
        """Begin the answer."""
        self._transport.write(_STREAM_HEAD + _chunk(_delta(self._model, 0, {"role": "assistant", "content": ""})))
        self._later()

    def _later(self) -> None:
        self._due += self._interval
        self._loop.call_at(self._due, self._next)

    def _next(self) -> None:
        if self._transport.is_closing():
            return
        if self._left:
            self._left -= 1
            self._transport.write(_chunk(_delta(self._model, 0, {"content": f"{time.monotonic_ns()} "})))
            self._later()
            return
        self._transport.write(b"".join(map(_chunk, _ending(self._model, 0, None))) + _STREAM_END)


def _json(body: str, status: bytes = b"200 OK") -> bytes:
    data = body.encode()
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(data)) + data


@lru_cache(maxsize=4096)
def _whole(model: str, said: int, size: int | None) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    message |= {"content": "Done."} if size is None else {"tool_calls": [_call(said, size)]}
    choice = {"index": 0, "message": message, "finish_reason": _reason(size), "logprobs": None}
    head = {"id": f"chatcmpl-{said}", "object": "chat.completion", "created": 1_700_000_000, "model": model}
    return _json(json.dumps(head | {"choices": [choice], "usage": _USAGE}))


@lru_cache(maxsize=4096)
def _stream(model: str, said: int, size: int | None) -> bytes:
    if size is None:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": "Done."}]
    else:
        call = _call(said, size)
        arguments = call["function"]["arguments"]
        first = call | {"index": 0, "function": {"name": "work", "arguments": ""}}
        piece = {"index": 0, "function": {"arguments": arguments}}
        deltas = [{"role": "assistant", "content": None, "tool_calls": [first]}, {"tool_calls": [piece]}]
    events = [*(_delta(model, said, delta) for delta in deltas), *_ending(model, said, size)]
    return _STREAM_HEAD + b"".join(map(_chunk, events)) + _STREAM_END


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _chunk(event: dict[str, Any]) -> bytes:
    data = f"data: {json.dumps(event)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(model: str, said: int, **more: Any) -> dict[str, Any]:
    head = {"id": f"chatcmpl-{said}", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}
    return head | more


def _delta(model: str, said: int, delta: dict[str, Any]) -> dict[str, Any]:
    return _event(model, said, choices=[{"index": 0, "delta": delta, "finish_reason": None}])


def _ending(model: str, said: int, size: int | None) -> list[dict[str, Any]]:
    last = {"index": 0, "delta": {}, "finish_reason": _reason(size)}
    return [_event(model, said, choices=[last]), _event(model, said, choices=[], usage=_USAGE)]


_USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def _call(said: int, size: int) -> dict[str, Any]:
    function = {"name": "work", "arguments": json.dumps({"size": size})}
    return {"id": f"call_{said}", "type": "function", "function": function}


def _reason(size: int | None) -> str:
    return "stop" if size is None else "tool_calls"


async def main() -> None:
    """Serve until standard input ends."""
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
