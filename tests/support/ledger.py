"""A file that counts side effects across processes: one line per effect, appended whole."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any


class Ledger:
    """Appends ``{"what", "key", "at", …}`` lines; O_APPEND keeps lines of several processes apart."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def add(self, what: str, key: str = "", **more: Any) -> None:
        """One effect, on disk when this returns (a killed process loses none)."""
        line = json.dumps({"what": what, "key": key, "at": time.time(), **more}) + "\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    def entries(self, what: str | None = None) -> list[dict[str, Any]]:
        """The effects so far, in order."""
        if not self.path.exists():
            return []
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [entry for entry in found if what in (None, entry["what"])]

    def counts(self, what: str) -> Counter[str]:
        """How often each key had that effect."""
        return Counter(entry["key"] for entry in self.entries(what))
