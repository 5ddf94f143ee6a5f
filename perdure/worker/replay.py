"""Does this version of perdure go on with runs that an earlier one began? Their histories say so, before a deploy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer

from ..client import Client
from ..errors import InvalidInputError, PerdureError
from ..workflows import AgentWorkflow
from .histories import histories_of_run, ids_of, read_histories


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of one history."""

    name: str
    """Its file, or the id of its run."""
    events: int
    error: str | None = None
    """Why it does not replay."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What came of all of them; ``str(report)`` is for people."""

    histories: tuple[Replayed, ...]

    @property
    def failed(self) -> tuple[Replayed, ...]:
        """Those that do not replay."""
        return tuple(one for one in self.histories if one.error is not None)

    def __str__(self) -> str:
        lines = [f"ok      {one.name} ({one.events} events)" for one in self.histories if one.error is None]
        lines += [f"FAILED  {one.name} ({one.events} events)\n        {one.error}" for one in self.failed]
        failed, total = len(self.failed), len(self.histories)
        said = f"all {total}" if total > 1 else "the one history"
        lines.append(
            f"{failed} of {total} do not replay: such runs get stuck when workers of this version take them over"
            if failed
            else f"{said} replay{'' if total > 1 else 's'}"
        )
        return "\n".join(lines)


class ReplayError(PerdureError):
    """A history does not replay. ``report`` has them all."""

    def __init__(self, report: ReplayReport) -> None:
        super().__init__(str(report), hint="Keep workers of the version that began these runs until they have ended.")
        self.report = report


async def replay(
    path: Path | str | None = None,
    *,
    client: Client | None = None,
    id: str | None = None,
    query: str | None = None,
    workflows: Sequence[type] = (),
    data_converter: DataConverter | None = None,
) -> ReplayReport:
    """Replay histories with the workflow of this version: those of a file or a folder (``path``), or of runs that the
    server of ``client`` knows: the run ``id``, or all that a Temporal ``query`` finds
    (``"ExecutionStatus = 'Running'"``), each with all its executions.

    ``workflows`` are classes of one's own whose histories are among them. Encrypted histories need the
    ``data_converter`` that reads them; a client brings its own.

    Raises ``ReplayError``, with the report, if one does not replay; ``InvalidInputError`` where there is nothing to
    replay: a check that looks at nothing must not pass. ``RunNotFoundError``, ``ServerUnreachableError``.
    """
    histories = await _histories(path, client, id, query)
    converter = data_converter or (client.temporal.data_converter if client else DataConverter.default)
    report = await replayed(histories, workflows, converter)
    if report.failed:
        raise ReplayError(report)
    return report


async def replayed(
    histories: Mapping[str, WorkflowHistory],
    workflows: Sequence[type] = (),
    data_converter: DataConverter = DataConverter.default,
) -> ReplayReport:
    """What comes of ``histories``, by their names."""
    replayer = Replayer(workflows=[AgentWorkflow, *workflows], data_converter=data_converter)
    found = []
    for name, history in histories.items():
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        failure = result.replay_failure
        error = None if failure is None else f"{type(failure).__name__}: {failure}"
        found.append(Replayed(name, len(history.events), error))
    return ReplayReport(tuple(found))


async def _histories(
    path: Path | str | None, client: Client | None, id: str | None, query: str | None
) -> dict[str, WorkflowHistory]:
    if sum(one is not None for one in (path, id, query)) != 1 or (path is None) != (client is not None):
        raise InvalidInputError(
            "what is to be replayed?", hint="replay(path), or replay(client=client, id=…), or with query=…."
        )
    if path is not None:
        return read_histories(Path(path))
    assert client is not None, "checked above"
    ids = [id] if id is not None else await ids_of(client, query or "")
    if not ids:
        raise InvalidInputError(f"no run is found by {query!r}", hint="`perdure list` shows the runs there are.")
    found: dict[str, WorkflowHistory] = {}
    for one in ids:
        found |= await histories_of_run(client, one)
    return found
