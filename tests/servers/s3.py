"""Servers that speak S3, on loopback: moto's, in a process and a Python environment of its own, and one with faults."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

import pytest

_PYTHONS = (Path(sys.prefix) / "objects/bin/python",)
"""Where ``make test-all`` installs requirements/objects.txt."""
_PROGRAM = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class S3Server:
    """``with S3Server() as server:`` serves; it ends with the block, and with this process. Skips where moto is not
    installed."""

    def __enter__(self) -> S3Server:
        python = next((path for path in _PYTHONS if path.exists()), None)
        if python is None:
            pytest.skip("needs requirements/objects.txt in an environment of its own: make test-all")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([python, "-c", _PROGRAM], text=True, **pipes)  # type: ignore[call-overload]
        lines = iter(self._process.stdout.readline, "")
        self.port = next(int(line) for line in lines if line.strip().isdigit())
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def create_bucket(self, name: str) -> None:
        self.request("PUT", name)

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, f"/{path}", body)
        content = connection.getresponse().read()
        connection.close()
        return content

    def environment(self) -> dict[str, str]:
        return build_environment(self.url)


class ThroughFaults:
    """``with ThroughFaults() as server:`` a server with objects in memory that has the faults a test gives it.

    It knows what perdure asks of S3: PUT, GET, HEAD and DELETE of small objects.
    """

    def __init__(self) -> None:
        self.status = 200
        """Of every answer; 0 closes the connection without one."""
        self.body = "<Error><Code>Fault</Code></Error>"
        self.objects: dict[str, bytes] = {}
        self.held = threading.Event()
        """Set while a PUT waits."""
        self._open = threading.Event()
        self._open.set()

    def hold(self) -> None:
        """Let the next PUTs wait until ``release``."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def __enter__(self) -> ThroughFaults:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.command == "PUT" and not owner._open.is_set():
                    owner.held.set()
                    owner._open.wait(60)
                if owner.status == 0:
                    self.close_connection = True
                    return
                self.answer(*((owner.status, owner.body.encode()) if owner.status != 200 else self.serve(content)))

            do_PUT = do_GET = do_HEAD = do_DELETE = handle_any  # noqa: N815  # the names of http.server

            def serve(self, content: bytes) -> tuple[int, bytes]:
                match self.command:
                    case "PUT":
                        owner.objects[self.path] = content
                    case "DELETE":
                        owner.objects.pop(self.path, None)
                    case _:
                        if self.path not in owner.objects:
                            return 404, b"<Error><Code>NoSuchKey</Code></Error>"
                        return 200, owner.objects[self.path]
                return 200, b""

            def answer(self, status: int, body: bytes) -> None:
                with suppress(OSError):  # the caller may be gone
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.send_header("Last-Modified", formatdate(usegmt=True))
                    self.send_header("ETag", '"1"')
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        return build_environment(f"http://127.0.0.1:{self._server.server_port}")


def build_environment(url: str) -> dict[str, str]:
    """What a process needs to use the server at ``url``."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
        "AWS_REGION": "us-east-1",
    }
