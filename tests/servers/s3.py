"""A server that speaks S3, on loopback, in a process and a Python environment of its own: moto's."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
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
        request = urllib.request.Request(f"{self.url}/{path}", data=body, method=method)
        with urllib.request.urlopen(request) as response:
            return bytes(response.read())

    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_REGION": "us-east-1",
        }
