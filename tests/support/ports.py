"""Ports of servers that a test stops and starts again on the same one."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

_RANGE = range(20_000, 32_000)
"""Below those that a kernel gives to outgoing connections: no other program takes one while its server is down. And
Temporal keeps ports in columns of 16 bits, with a sign."""


def find_free_ports(count: int) -> list[int]:
    """Ports of loopback that are free now."""
    found: list[int] = []
    with ExitStack() as held:
        for port in random.sample(_RANGE, len(_RANGE)):
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError(f"this machine has not {count} free ports from {_RANGE.start} to {_RANGE.stop}")
