"""``perdure webhook``: endpoints that get events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .._terminal import escape_line, print_line
from .connection import ActorStoreOptions, StoreOptions, call_client
from .options import Commands, TaskQueueOption
from .output import OutputOptions, Row

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.webhook_subscriptions import Webhook
    from ..ports.webhooks import DeliveryRow

WebhookArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the webhook.")]
LimitOption = Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")]
AfterOption = Annotated[str | None, typer.Option(help="The cursor that the page before has printed.")]
EventsOption = Annotated[
    list[str] | None, typer.Option("--event", help="Type, * for any characters: approval.*; repeatable. Default: all.")
]
SecretOption = Annotated[str | None, typer.Option(help="whsec_…; PERDURE_WEBHOOK_SECRET, else generated.")]


def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="https://… of the endpoint.")],
    event: EventsOption = None,
    agent: Annotated[str | None, typer.Option(help="Only events of this agent's runs.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only events of this tenant's runs.")] = None,
    session: Annotated[str | None, typer.Option(help="Only events of this run and its subagents.")] = None,
    secret: SecretOption = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Subscribe an endpoint to events, and print its id and its secret, which is not shown again."""

    async def act(client: Client) -> Webhook:
        filters = {"agent": agent, "tenant": tenant, "session": session}
        chosen = {"events": event} if event else {}
        return await client.webhooks.create(url, secret=_find_secret(secret), **filters, **chosen)  # type: ignore[arg-type]  # by name

    webhook = call_client(server, act)
    output.print_result(asdict(webhook), f"{webhook.id}  {webhook.secret}")


def _find_secret(given: str | None) -> str | None:
    return given or os.environ.get("PERDURE_WEBHOOK_SECRET") or None


def list_webhooks(
    limit: LimitOption = 100,
    after: AfterOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids, one a line.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List webhooks, the oldest first."""
    page = call_client(server, lambda client: client.webhooks.list(limit=limit, after=after))
    header = ("ID", "URL", "EVENTS", "STATE")
    output.print_list(list(page.webhooks), header, _format_webhook, quiet=quiet, empty="no webhooks")
    _print_cursor(page.cursor)


def _print_cursor(cursor: str | None) -> None:
    if cursor is not None:
        print_line(f"more: --after {cursor}", error=True)


def _format_webhook(webhook: Webhook) -> Row:
    return webhook.id, webhook.url, " ".join(webhook.events), _describe_state(webhook)


def _describe_state(webhook: Webhook) -> str:
    if not webhook.enabled:
        return f"disabled: {webhook.disabled_reason}"
    return f"failing since {webhook.failing_since[:19]}" if webhook.failing_since else "enabled"


def show(id: WebhookArgument, *, server: StoreOptions, output: OutputOptions) -> None:
    """Show a webhook: what it gets, and whether it fails."""
    webhook = call_client(server, lambda client: client.webhooks.get(id))
    output.print_result(_build_facts(webhook), (f"{name:<9} {fact}" for name, fact in _format_facts(webhook)))


def _build_facts(webhook: Webhook) -> dict[str, object]:
    facts = asdict(webhook)
    del facts["secret"]
    return facts


def _format_facts(webhook: Webhook) -> Iterator[tuple[str, str]]:
    yield "id", webhook.id
    yield "url", webhook.url
    yield "events", " ".join(webhook.events)
    for name, value in (("agent", webhook.agent), ("tenant", webhook.tenant), ("session", webhook.session)):
        if value is not None:
            yield name, value
    if webhook.allowed:
        yield "may reach", " ".join(webhook.allowed)
    yield "state", _describe_state(webhook)
    yield "created", f"{webhook.created_at[:19]} by {webhook.created_by}"


def rotate(
    id: WebhookArgument,
    keep: Annotated[str, typer.Option(help="Time for which requests are signed with the old secret too.")] = "24h",
    secret: SecretOption = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Give a webhook a new secret, and print it."""
    keep_time: float | str = 0.0 if keep == "0" else keep
    webhook = call_client(
        server, lambda client: client.webhooks.rotate_secret(id, keep=keep_time, secret=_find_secret(secret))
    )
    output.print_result(asdict(webhook), str(webhook.secret))


def enable(id: WebhookArgument, *, server: ActorStoreOptions, output: OutputOptions) -> None:
    """Enable a webhook: it gets events from now on."""
    _set_enabled(id, True, server, output)


def disable(id: WebhookArgument, *, server: ActorStoreOptions, output: OutputOptions) -> None:
    """Disable a webhook: it gets no events, and pending deliveries stop."""
    _set_enabled(id, False, server, output)


def _set_enabled(id: str, enabled: bool, server: ActorStoreOptions, output: OutputOptions) -> None:
    webhook = call_client(server, lambda client: client.webhooks.update(id, enabled=enabled))
    output.print_result(_build_facts(webhook), f"{id} is {'enabled' if enabled else 'disabled'}")


def delete(id: WebhookArgument, *, server: ActorStoreOptions, output: OutputOptions) -> None:
    """Delete a webhook and its log."""
    call_client(server, lambda client: client.webhooks.delete(id))
    output.print_result({"id": id, "deleted": True}, f"{id} is deleted")


def deliveries(
    id: WebhookArgument,
    limit: LimitOption = 50,
    after: AfterOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List the attempts of the last 30 days, the newest first."""
    page = call_client(server, lambda client: client.webhooks.deliveries(id, limit=limit, after=after))
    header = ("ID", "AT", "TYPE", "RUN", "TRY", "OUTCOME")
    output.print_list(list(page.deliveries), header, _format_delivery, quiet=False, empty="no deliveries")
    _print_cursor(page.cursor)


def _format_delivery(row: DeliveryRow) -> Row:
    outcome = row.outcome if row.error is None else f"{row.outcome}: {escape_line(row.error)}"
    return row.id, row.created_at[:19], row.type, row.context_id, str(row.attempt), outcome


def resend(
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="Id of an attempt, as listed by deliveries.")],
    task_queue: TaskQueueOption = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Send the event of an attempt once more, under the same webhook-id."""
    message_id = call_client(server, lambda client: client.webhooks.send_again(delivery), task_queue=task_queue)
    output.print_result({"message_id": message_id}, f"{message_id} is sent again")


def send_test(
    id: WebhookArgument, task_queue: TaskQueueOption = None, *, server: ActorStoreOptions, output: OutputOptions
) -> None:
    """Send an event of the type ping."""
    message_id = call_client(server, lambda client: client.webhooks.test(id), task_queue=task_queue)
    output.print_result({"message_id": message_id}, f"{message_id} is sent; `perdure webhook deliveries {id}` shows it")


app = Commands(help="Endpoints that get events: approvals, questions, ends of runs.", no_args_is_help=True)
app.add(create)
app.add(list_webhooks, name="list")
app.add(show, rotate, enable, disable, delete, deliveries, resend)
app.add(send_test, name="test")
