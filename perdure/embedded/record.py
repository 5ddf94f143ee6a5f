"""server.json: which dev server was started last, and how to recognise it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from .home import Home, private


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
    """When it was started, ISO 8601, UTC."""
    start_token: str
    """What tells its process from a later one with the same pid."""
    instance_id: str | None
    """The cluster id that its RPC answers with, the identity of its database. None until it has answered."""

    @property
    def ui_url(self) -> str:
        """Where a browser finds the Temporal UI."""
        return f"http://{self.ui_address}"


def read_record(home: Home) -> ServerInfo | None:
    """The last record; None when there is none, or nothing usable in it."""
    try:
        fields: Any = json.loads(home.server_file.read_bytes())
        record = ServerInfo(**fields)
    except (OSError, ValueError, TypeError):
        return None
    texts = (record.address, record.ui_address, record.version, record.started_at, record.start_token)
    if type(record.pid) is not int or record.pid <= 0 or not all(isinstance(text, str) for text in texts):
        return None
    return record if record.instance_id is None or isinstance(record.instance_id, str) else None


def write_record(home: Home, record: ServerInfo) -> None:
    """Replace the record in one step: a reader sees the old one or the new one."""
    fresh = home.server_file.with_suffix(".json.new")  # writers hold the server lock, so one name does
    with home.guard():
        with open(fresh, "w", opener=private) as file:
            file.write(json.dumps(asdict(record), indent=2) + "\n")
        fresh.replace(home.server_file)


def remove_record(home: Home) -> None:
    """Forget the server."""
    home.server_file.unlink(missing_ok=True)
