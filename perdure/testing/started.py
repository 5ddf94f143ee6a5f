"""What an execution was started with."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class Started:
    """As the workflow's ``info()`` gives it, where it asks."""

    workflow_id: str
    input: list[Any]
    memo: Any = None
    task_queue: str = ""
    first_execution_run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    continued_run_id: str | None = None
    cron_schedule: str | None = None
    parent_id: str | None = None
    """Id of the run that started it as its child."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Search attributes."""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
