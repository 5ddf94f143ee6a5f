"""``perdure store``: schema, state, copies and retention of the store."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import Commands
from .output import OutputOptions

StoreUrlOption = Annotated[
    str | None, typer.Option("--store-url", help="URL of the store; PERDURE_STORE_URL, else the embedded engine's.")
]


def get_store_url(given: str | None) -> str:
    """The URL of the store that a command of this group works on: its option, the environment's, or the embedded
    engine's."""
    from ..config import get_home_store_url, resolve_store_url

    return resolve_store_url(given) or get_home_store_url()


def migrate(store_url: StoreUrlOption = None, *, output: OutputOptions) -> None:
    """Bring the store's schema to the newest version. Safe while workers run, and to repeat."""
    import asyncio

    from ..store import open_store

    store = open_store(get_store_url(store_url))

    async def open_and_close() -> None:
        await store.open()
        await store.close()

    asyncio.run(open_and_close())
    output.print_result({"place": store.place}, f"{store.place}: the schema is current")


app = Commands(help="The store: its schema, state, copies and retention.", no_args_is_help=True)
app.add(migrate)
