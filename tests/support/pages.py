"""The console under test: its pages by httpx, as a browser without JavaScript gets and sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from perdure import Client
from perdure.console import console_routes
from perdure.web.app import WebOptions, create_app
from perdure.web.auth import AuthenticatorChain, BearerTokens, Caller
from tests.support.web import ADA, NamedCallers, Service, serve


@dataclass
class HtmlForm:
    """A form: where it is sent to, its fields as they are, and its buttons."""

    action: str
    method: str
    id: str = ""
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str]] = field(default_factory=list)


class Html(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        """What it shows, blanks as they are."""
        self.parts: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.forms: list[HtmlForm] = []
        self._form: HtmlForm | None = None
        self._textarea: str | None = None
        self._select: str | None = None
        self._boxes: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        form = self._form
        match tag:
            case "form":
                self._form = HtmlForm(given.get("action", ""), given.get("method", "get"), given.get("id", ""))
                self.forms.append(self._form)
            case "input" if given.get("type") == "checkbox":
                self._boxes.append((given.get("form", ""), given.get("name", ""), given.get("value", "")))
                if form is not None and "checked" in given:
                    form.fields.append((given.get("name", ""), given.get("value", "")))
            case "input" if given.get("type") == "radio" and "checked" not in given:
                pass
            case "input" if form is not None:
                form.fields.append((given.get("name", ""), given.get("value", "")))
            case "button" if form is not None and given.get("name"):
                form.buttons.append((given["name"], given.get("value", "")))
            case "textarea":
                self._textarea = given.get("name", "")
                if form is not None:
                    form.fields.append((self._textarea, ""))
            case "select":
                self._select = given.get("name", "")
            case "option" if form is not None and "selected" in given:
                form.fields.append((self._select or "", given.get("value", "")))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "textarea":
            self._textarea = None

    def handle_data(self, data: str) -> None:
        self.text += data
        self.parts += data.split()
        if self._textarea is not None and self._form is not None:
            name, before = self._form.fields[-1]
            self._form.fields[-1] = (name, before + (data.removeprefix("\n") if not before else data))

    def squeeze(self) -> str:
        """What it shows on one line, with a blank between its parts."""
        return " ".join(self.parts)

    def list_links(self) -> list[str]:
        """Where its links lead to."""
        return [given["href"] for tag, given in self.tags if tag == "a" and "href" in given]

    def find_boxes(self, form_id: str) -> list[tuple[str, str]]:
        """Name and value of the boxes that belong to a form."""
        return [(name, value) for form, name, value in self._boxes if form == form_id]

    def find_form(self, to: str = "", **buttons_or_fields: str) -> HtmlForm:
        """The only form that is sent to a path that ends so, with a button or a field of each name and value."""
        found = [
            form
            for form in self.forms
            if form.action.partition("?")[0].endswith(to)
            and all((name, value) in [*form.buttons, *form.fields] for name, value in buttons_or_fields.items())
        ]
        assert len(found) == 1, f"{len(found)} forms with {buttons_or_fields}: {self.text}"
        return found[0]


class Browser:
    """A browser without JavaScript: it keeps cookies, follows redirects, and sends an Origin with forms."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        headers = {"accept": "text/html"} | ({"authorization": f"Bearer {token}"} if token else {})
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=30, follow_redirects=True)
        self.url = url
        self.response = httpx.Response(200)
        self.page = Html("")

    async def open(self, path: str, **headers: str) -> Html:
        """Open a page of the console."""
        return self._take(await self.http.get(f"/console{path}", headers=headers))

    async def send(self, form: HtmlForm, button: tuple[str, str] | None = None, **changes: str | list[str]) -> Html:
        """Send a form, by one of its buttons; ``changes`` are what was typed and ticked."""
        pairs = [(name, value) for name, value in form.fields if name not in changes]
        pairs += [button] if button is not None else []
        for name, value in changes.items():
            pairs += [(name, one) for one in ([value] if isinstance(value, str) else value)]
        target = urljoin(str(self.response.url), form.action)
        parts = urlsplit(self.url)
        body = httpx.QueryParams(pairs)
        headers = {"origin": f"{parts.scheme}://{parts.netloc}", "content-type": "application/x-www-form-urlencoded"}
        return self._take(await self.http.post(target, content=str(body), headers=headers))

    def _take(self, response: httpx.Response) -> Html:
        self.response = response
        is_page = response.headers.get("content-type", "").startswith("text/html")
        self.page = Html(response.text if is_page else "")
        return self.page


@dataclass
class Console:
    """A console that is served, and browsers for it."""

    service: Service
    client: Client
    browsers: list[Browser] = field(default_factory=list)

    def browse(self, name: str | None = "ada") -> Browser:
        """A browser of a known caller, or with None of one who is to log in."""
        self.browsers.append(Browser(self.service.url, token=name))
        return self.browsers[-1]


@asynccontextmanager
async def console(
    client: Client, *callers: Caller, tokens: bool = False, undo_seconds: float = 0.0, **options: Any
) -> AsyncIterator[Console]:
    """Serve API and console; with ``tokens`` its visitors have API tokens, else the names of ``callers``. Decisions are
    sent at once, or can be taken back for ``undo_seconds``."""
    known = BearerTokens(client) if tokens else NamedCallers(ADA, *callers)
    app = create_app(
        client,
        authenticator=AuthenticatorChain([known]),
        options=WebOptions(dev=True, **options),
        pages=partial(console_routes, undo_seconds=undo_seconds),
    )
    async with serve(client, app=app) as service:
        opened = Console(service, client)
        try:
            yield opened
        finally:
            for browser in opened.browsers:
                await browser.http.aclose()
