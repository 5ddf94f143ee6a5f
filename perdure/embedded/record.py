"""The dev server that was started last: its record, server.json, and whether it still runs.

Apart because clients need no more of the server than this: without what starts it their import is cheaper.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from ..temporal.namespaces import read_cluster_id
from .home import Home, current_home, open_private
from .process import is_alive

PROBE_SECONDS = 2.0
"""Seconds after which a server without an answer counts as not running."""


@dataclass(frozen=True)
class ServerInfo:
    """An embedded dev server."""

    pid: int
    address: str
    """host:port of the gRPC frontend, for ``Client.connect``."""
    ui_address: str
    """host:port of the Temporal UI."""
    version: str
    """Version of the Temporal server."""
    started_at: str
    """Time of its start, ISO 8601, UTC."""
    start_token: str
    """Identifies its process among later ones with the same pid."""
    instance_id: str | None
    """The cluster id that its RPC returns, which identifies its database. None until it has answered."""

    @property
    def ui_url(self) -> str:
        """URL of the Temporal UI."""
        return f"http://{self.ui_address}"


def read_record(home: Home) -> ServerInfo | None:
    """Read the last record; None if there is no valid one."""
    try:
        plain = json.loads(home.server_file.read_bytes())
        record = ServerInfo(**{field.name: plain[field.name] for field in fields(ServerInfo)})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (record.address, record.ui_address, record.version, record.started_at, record.start_token)
    is_valid = (
        type(record.pid) is int
        and record.pid > 0
        and all(isinstance(text, str) for text in texts)
        and isinstance(record.instance_id, str | None)
    )
    return record if is_valid else None


def write_record(home: Home, record: ServerInfo) -> None:
    """Replace the record atomically: a reader sees the old one or the new one."""
    new_file = home.server_file.with_suffix(".json.new")  # one name is enough: writers hold the server lock
    with home.translate_errors():
        with open(new_file, "w", opener=open_private) as file:
            file.write(json.dumps(asdict(record), indent=2) + "\n")
        new_file.replace(home.server_file)


async def find_running_server(home: Home | None = None) -> ServerInfo | None:
    """Find the running embedded server; None if none answers (or it is still starting)."""
    record = read_record(home or current_home())
    if record is None or record.instance_id is None or not is_alive(record.pid, record.start_token):
        return None
    answered = await read_cluster_id(record.address, seconds=PROBE_SECONDS)
    return record if answered == record.instance_id else None
