"""``perdure resume --all``, ``perdure cancel --all`` and ``perdure bulk``: what is done to all runs that match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._terminal import escape_line, print_line
from ..errors import InvalidInputError
from ..types.run_states import StateFilter
from .connection import ActorStoreOptions, StoreOptions, call_client
from .options import Commands
from .output import OutputOptions, Row

if TYPE_CHECKING:
    from ..client.bulk_actions import BulkAction, BulkFilter, BulkPreview
    from ..client.client import Client
    from ..ports.bulk_actions import BulkRunRow, BulkVerb

_RESULT_ROWS = 200
_OUTCOMES = {"pending": "to do", "acted": "done", "skipped": "skipped", "refused": "refused", "failed": "failed"}


@dataclass(frozen=True)
class BulkOptions:
    """``--all``, and which runs it means."""

    everything: Annotated[bool, typer.Option("--all", help="All runs that the options below name, not one.")] = False
    agent: Annotated[str | None, typer.Option(help="With --all: runs of this agent.")] = None
    status: Annotated[StateFilter | None, typer.Option(help="With --all: runs of this status.")] = None
    error: Annotated[
        str | None, typer.Option(help="With --all: runs that failed with this class of error: AuthenticationError.")
    ] = None
    search: Annotated[str | None, typer.Option(help="With --all: words in the id, the first message or the error.")] = (
        None
    )
    tenant: Annotated[str | None, typer.Option(help="With --all: runs of this tenant.")] = None
    user: Annotated[str | None, typer.Option(help="With --all: runs of this user.")] = None
    started: Annotated[
        str | None, typer.Option(metavar="AGE", help="With --all: runs that started in the last 90s, 15m, 1h, 7d.")
    ] = None
    ids: Annotated[list[str] | None, typer.Option("--id", help="With --all: this run; repeatable.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --all: count them, and do nothing.")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --all: do it.")] = False
    detach: Annotated[bool, typer.Option("--detach", help="With --all: do not wait for the end.")] = False
    per_second: Annotated[float, typer.Option(help="With --all: at most so many runs a second.")] = 5.0
    concurrency: Annotated[int, typer.Option(help="With --all: at most so many runs at a time.")] = 10

    def build_filter(self) -> BulkFilter:
        """Build the filter. Raises ``InvalidInputError``."""
        from ..client.bulk_actions import BulkFilter
        from ..client.run_pages import RunFilters
        from ..types.limits import parse_seconds

        started_from = None
        if self.started is not None:
            try:
                started_from = datetime.now(UTC) - timedelta(seconds=parse_seconds(self.started))
            except (ValueError, OverflowError) as error:
                raise InvalidInputError(f"--started: {error}", hint="For instance --started 1h.") from None
        filters = RunFilters(
            agent=self.agent,
            status=self.status,
            tenant=self.tenant,
            user=self.user,
            started_from=started_from,
            error=self.error,
            search=self.search,
        )
        return BulkFilter(filters, tuple(dict.fromkeys(self.ids or ())))

    def check_single(self, id: str | None) -> str:
        """Return the id of the one run that is meant. Raises ``InvalidInputError``."""
        given = [name for name, value in asdict(self).items() if value != getattr(BulkOptions(), name)]
        if id is None:
            raise InvalidInputError(
                "name a run, or with --all those that match", hint="For instance --all --status failed."
            )
        if given:
            raise InvalidInputError(f"--{given[0].replace('_', '-')} belongs to --all", hint="Leave it out, or the ID.")
        return id


def act_on_all(
    verb: BulkVerb,
    id: str | None,
    options: BulkOptions,
    server: ActorStoreOptions,
    output: OutputOptions,
    task_queue: str | None,
) -> None:
    """Resume or cancel all runs that match, print how far it is, and what became of each that was not acted on.

    Raises ``InvalidInputError`` without ``--yes``, after the preview.
    """
    if id is not None:
        raise InvalidInputError(
            f"--all is for the runs that match, and {id!r} names one", hint="Leave one of them out."
        )
    chosen = options.build_filter()

    async def act(client: Client) -> BulkAction | BulkPreview:
        actions = client.bulk_actions
        preview = await actions.preview(verb, chosen)
        if options.dry_run or not options.yes or not preview.counts.get("pending"):
            return preview
        action = await actions.start(
            verb,
            chosen,
            as_of=preview.as_of,
            per_second=options.per_second,
            concurrency=options.concurrency,
        )
        if output.format == "text":
            print_line(f"{action.id}: {describe_counts(action.counts)}", error=True)
        shown = action.counts
        while not options.detach and not action.is_over:
            action = await actions.wait(action.id, seconds=1.0)
            if action.counts != shown and output.format == "text":
                shown = action.counts
                print_line(describe_counts(shown), error=True)
            elif action.problem is not None and output.format == "text":
                print_line(f"it stands still: {escape_line(action.problem)}", error=True)
        return action

    done = call_client(server, act, task_queue=task_queue)
    from ..client.bulk_actions import BulkPreview

    if isinstance(done, BulkPreview):
        _print_preview(done, options, output)
        return
    _print_results(done, server, output)
    if done.counts.get("failed"):
        raise typer.Exit(1)


def describe_counts(counts: Mapping[Any, int]) -> str:
    """Return how many runs have which outcome, in words."""
    return ", ".join(f"{counts[name]:,} {text}" for name, text in _OUTCOMES.items() if counts.get(name)) or "no runs"


def _print_preview(preview: BulkPreview, options: BulkOptions, output: OutputOptions) -> None:
    pending = preview.counts.get("pending", 0)
    fields = asdict(preview) | {"as_of": preview.as_of.isoformat()}
    output.print_result(fields, list(_format_preview(preview)))
    if options.dry_run:
        return
    if not pending:
        raise InvalidInputError(f"there is no run to {preview.verb}", hint="Change the filter.")
    raise InvalidInputError(
        f"nothing was done: {pending:,} runs would be {'resumed' if preview.verb == 'resume' else 'cancelled'}",
        hint="Add --yes.",
    )


def _format_preview(preview: BulkPreview) -> Iterator[str]:
    more = "" if preview.is_complete else ", and more that were not counted"
    yield f"{preview.verb}: {describe_counts(preview.counts)}{more}"
    yield from (_format_run(run) for run in preview.runs)


def _format_run(run: BulkRunRow) -> str:
    detail = f": {escape_line(run.detail)}" if run.detail else ""
    return f"  {run.context_id}  {run.agent}  {_OUTCOMES[run.outcome]}{detail}"


def _print_results(action: BulkAction, server: StoreOptions, output: OutputOptions) -> None:
    """Print the end, and the runs that were not acted on."""
    rows: list[BulkRunRow] = []
    if action.is_over:

        async def read(client: Client) -> list[BulkRunRow]:
            found: list[BulkRunRow] = []
            for outcome in ("failed", "refused", "skipped"):
                found += (await client.bulk_actions.runs(action.id, outcome=outcome, limit=_RESULT_ROWS)).runs
            return found

        rows = call_client(server, read)
    lines = [f"{action.state}: {describe_counts(action.counts)}", *map(_format_run, rows)]
    output.print_result(asdict(action) | {"runs": [asdict(row) for row in rows]}, lines)


# ---
# `perdure bulk`.


BulkArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the bulk action.")]


def list_bulks(
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most this many.")] = 50,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids, one a line.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List bulk actions of the last 30 days, the newest first."""
    page = call_client(server, lambda client: client.bulk_actions.list(limit=limit))
    header = ("ID", "WHAT", "STATE", "BY", "AT", "RUNS")
    output.print_list(list(page.actions), header, _format_row, quiet=quiet, empty="no bulk actions")


def _format_row(action: BulkAction) -> Row:
    return action.id, action.verb, action.state, action.by, action.created_at[:19], describe_counts(action.counts)


def show_bulk(id: BulkArgument, *, server: StoreOptions, output: OutputOptions) -> None:
    """Show how far a bulk action is, and the runs that were not acted on."""
    action = call_client(server, lambda client: client.bulk_actions.get(id))
    if action.problem is not None and output.format == "text":
        print_line(f"it stands still: {escape_line(action.problem)}", error=True)
    _print_results(action, server, output)


def stop_bulk(id: BulkArgument, *, server: ActorStoreOptions, output: OutputOptions) -> None:
    """Stop a bulk action: its pending runs are left as they are."""
    action = call_client(server, lambda client: client.bulk_actions.stop(id))
    output.print_result(asdict(action), f"{action.id} is {action.state}: {describe_counts(action.counts)}")


app = Commands(help="What was done to all runs that match: resume --all, cancel --all.", no_args_is_help=True)
app.add(list_bulks, name="list")
app.add(show_bulk, name="show")
app.add(stop_bulk, name="stop")
