"""Standard output of a process of the benchmarks, which another one reads line by line."""

from __future__ import annotations

from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig


def keep_clean() -> None:
    """Temporal's core writes its warnings there, as on a busy machine it does. Before the process's first client."""
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="ERROR"))))
