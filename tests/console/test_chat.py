"""The chat by httpx, as a browser without JavaScript uses it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urljoin

import httpx
import pytest
from pydantic import BaseModel, Field

from perdure import Agent, Approval, Client, ToolContext, tool
from perdure.testing import ScriptedProvider, call
from perdure.web.auth import Caller
from perdure.worker.engine import record_agents
from tests.console.test_hostile import TEXT, check_page
from tests.console.test_run import PNG, script
from tests.support.engine import Engine
from tests.support.pages import Browser, Console, Html, HtmlForm, console
from tests.support.wait import eventually
from tests.support.web import make_caller

VIEWER, STRANGER = make_caller("eve", "viewer"), make_caller("other", "operator", tenants=("other",))
SENDER, APPROVER = make_caller("sam", "sender"), make_caller("bob", "approver")


class Order(BaseModel):
    """An order."""

    sku: str = Field(description="What is ordered")
    count: int = 1
    size: Literal["S", "M"] = "S"
    gift: bool = False


@dataclass
class Room:
    """A service with a few agents, and what their models were asked."""

    console: Console
    client: Client
    paid: list[Any] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, browser: Browser, agent: str = "talker", text: str = "Hello", **fields: Any) -> str:
        """Start a session by the form; return its path in the console."""
        page = await browser.open(f"/chat/{agent}")
        await browser.send(page.find_form(f"/chat/{agent}"), ("action", "message"), text=text, **fields)
        assert browser.response.status_code == 200, browser.page.text
        path = browser.response.url.raw_path.decode().removeprefix("/console")
        assert re.fullmatch(rf"/chat/{agent}/(%40acme%2F)?[\w-]+", path), path
        return path

    async def shows(self, browser: Browser, path: str, *texts: str) -> Html:
        """Load the page until it has the texts."""

        async def has_texts() -> bool:
            page = await browser.open(path)
            return all(text in page.text for text in texts)

        await eventually(has_texts)
        return browser.page


@asynccontextmanager
async def room(engine: Engine, *callers: Caller) -> AsyncIterator[Room]:
    paid: list[Any] = []
    requests: list[Any] = []
    go = asyncio.Event()

    @tool(needs_approval=Approval(expires="1h"))
    def pay(amount: float, note: str = "") -> str:
        """Pay."""
        paid.append((amount, note))
        return f"paid {amount}"

    @tool(needs_approval=Approval(separate=True))
    def drop(table: str) -> str:
        """Drop a table."""
        paid.append(table)
        return "dropped"

    @tool
    async def consult(ctx: ToolContext) -> str:
        """Ask."""
        return f"you said {await ctx.ask('How many?', int)}"

    @tool
    async def wait() -> str:
        """Wait."""
        await go.wait()
        return "waited"

    def talk(request: Any) -> str:
        requests.append(request)
        return f"You said **{request.messages[-1].text or 'a file'}**"

    agents: list[Agent[Any, Any]] = [
        Agent("talker", ScriptedProvider(talk), description="Talks", tools=[wait], settings={"top_p": 0.5}),
        Agent("payer", script(call("pay", amount=3, note="tea"), "All **paid**"), tools=[pay]),
        Agent("dropper", script(call("drop", table="users"), "Done"), tools=[drop]),
        Agent("asker", script(call("consult"), "Thanks"), tools=[consult]),
        Agent("waiter", script(call("wait"), "Ready"), tools=[wait]),
        Agent("orders", ScriptedProvider(talk), input=Order, context=Order),
    ]
    async with (
        engine.served(*agents) as client,
        console(client, VIEWER, STRANGER, SENDER, APPROVER, *callers) as opened,
    ):
        await record_agents(await client.store(create=True), agents)  # as a worker does when it starts
        yield Room(opened, client, paid, requests, go)


async def post_files(
    browser: Browser, form: HtmlForm, files: list[tuple[str, bytes, str]], **fields: str
) -> httpx.Response:
    """Send a form with files, as a browser does."""
    data: dict[str, Any] = dict(form.fields) | {"action": "message"} | fields
    data.pop("files")
    data |= {name: [value for key, value in form.fields if key == name] for name in ("tool", "listed_tool")}
    parts = [("files", file) for file in files] or [("files", ("", b"", "application/octet-stream"))]
    target = urljoin(str(browser.response.url), form.action)
    return await browser.http.post(target, data=data, files=parts, headers={"origin": browser.url})


async def test_a_session_begins_and_goes_on(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        page = await browser.open("/chat")
        assert [given["href"] for tag, given in page.tags if tag == "a" and "/chat/" in given.get("href", "")] == [
            f"/console/chat/{name}" for name in ("asker", "dropper", "orders", "payer", "talker", "waiter")
        ]
        found = await browser.open("/chat?text=PAY")
        assert [given["href"] for tag, given in found.tags if tag == "a" and "/chat/" in given.get("href", "")] == [
            "/console/chat/payer"
        ]
        assert "No agent fits" in (await browser.open("/chat?text=nothing")).text
        path = await at.start(browser, text="Hello **there**")
        page = await at.shows(browser, path, "You said", "for your message")
        assert "<strong>there</strong>" in browser.response.text
        form = page.find_form(path)
        await browser.send(form, ("action", "message"), text="Again")
        await browser.send(form, ("action", "message"), text="Again")
        await at.shows(browser, path, "You said Again")
        run = at.client.run(path.rpartition("/")[2])
        messages = [(message.text, message.by) for message in await run.transcript() if message.role == "user"]
        assert messages == [("Hello **there**", "ada"), ("Again", "ada")], "a form that is sent twice counts once"
        page = await browser.open("/chat/talker")
        assert "Hello **there**" in page.text, "the session is listed with its first message"
        assert f"/console{path}" in [given.get("href") for _, given in page.tags]
        await run.close()
        await run.result()
        page = await at.shows(browser, path, "completed")
        await browser.send(page.find_form(path), ("action", "message"), text="Once more")
        await at.shows(browser, path, "You said Once more")


async def test_a_start_that_is_sent_twice_is_one_session(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        form = (await browser.open("/chat/talker")).find_form("/chat/talker")
        paths = set()
        for _ in range(2):
            await browser.send(form, ("action", "message"), text="Hi")
            paths.add(browser.response.url.path)
        assert len(paths) == 1


async def test_files_are_uploaded_and_shown_safely(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        form = (await browser.open("/chat/talker")).find_form("/chat/talker")
        evil = b"<script>alert(1)</script>"
        files = [("cat.png", PNG, "image/png"), ("../\u202eevil.html", evil, "text/html")]
        answer = await post_files(browser, form, files, text="Look")
        assert answer.status_code == 200, answer.text
        path = answer.url.path.removeprefix("/console")
        page = await at.shows(browser, path, "You said", "cat.png")
        links = [given["href"] for _, given in page.tags if "/files/" in given.get("href", "")]
        images = [given["src"] for tag, given in page.tags if tag == "img"]
        assert len(set(links)) == 2
        assert len(images) == 1, "only what is a picture by its bytes"
        for link in set(links):
            sent = await browser.http.get(link)
            assert sent.content in (PNG, evil)
            assert sent.headers["content-type"] in ("image/png", "text/plain; charset=utf-8")
            assert sent.headers["content-disposition"].startswith("attachment")
            assert "sandbox" in sent.headers["content-security-policy"]
        check_page(page, browser.response.text)
        [message] = [message for message in at.requests[-1].messages if message.role == "user"]
        assert [part.type for part in message.parts] == ["text", "file", "file"]


@pytest.mark.parametrize(
    ("files", "text", "status", "shown"),
    [
        ([("x.txt", b"x", "text/plain")] * 11, "Hi", 413, "10 files"),
        ([("x.txt", b"", "text/plain")], "Hi", 400, "empty"),
        ([], " ", 400, "the message is empty"),
    ],
    ids=["many", "empty", "nothing"],
)
async def test_what_a_message_may_not_have(
    engine: Engine, files: list[tuple[str, bytes, str]], text: str, status: int, shown: str
) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        form = (await browser.open("/chat/talker")).find_form("/chat/talker")
        answer = await post_files(browser, form, files, text=text, temperature="0.3")
        assert (answer.status_code, shown in answer.text) == (status, True), answer.text
        if status == 400:
            kept = dict(Html(answer.text).find_form("/chat/talker").fields)
            assert (kept["text"], kept["temperature"]) == (text, "0.3"), "what was typed is kept"
        assert (await browser.http.get("/v1/sessions")).json()["data"] == []


async def test_a_form_that_is_too_large_is_refused_with_a_page(engine: Engine) -> None:
    """A browser reads the answer only when it has sent all of the form, and so does this."""
    async with room(engine) as at:
        browser = at.console.browse()
        form = (await browser.open("/chat/talker")).find_form("/chat/talker")
        answer = await post_files(
            browser, form, [("big.bin", b"x" * (40 << 20), "application/octet-stream")], text="Hi"
        )
        assert answer.status_code == 413
        assert answer.headers["content-type"].startswith("text/html")
        page = Html(answer.text)
        for text in ("Too large", "the files of a message together may have 32 MB", "Go back"):
            assert text in page.text
        path = await at.start(browser)
        form = (await browser.open(f"/runs/{path.rpartition('/')[2]}")).find_form(action="message")
        page = await browser.send(form, text="x" * 2_000_000)
        assert (browser.response.status_code, "Nothing was sent" in page.text) == (413, True)
        login = await browser.http.post("/console/login", data={"token": "x" * 2_000_000})
        assert login.status_code == 413, "to anyone the service listens no longer"
        assert len(at.requests) == 1


async def test_a_form_with_files_that_is_broken_or_forged(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        form = (await browser.open("/chat/talker")).find_form("/chat/talker")
        target, headers = "/console/chat/talker", {"origin": browser.url}
        for kind, body in (
            ("multipart/form-data", b"x"),
            ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--\r\n"),
            ("multipart/form-data; boundary=x", b"nothing of it"),
        ):
            answer = await browser.http.post(target, content=body, headers=headers | {"content-type": kind})
            assert answer.status_code in (400, 403), answer.text
        answer = await post_files(browser, form, [("a.txt", b"a", "text/plain")], form_token="0" * 64)
        assert answer.status_code == 403
        elsewhere = await browser.http.post(
            target, data=dict(form.fields), files=[("files", b"x")], headers={"origin": "https://evil.example"}
        )
        assert elsewhere.status_code == 403
        assert at.requests == []


async def test_typed_input_and_context_are_forms(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        page = await browser.open("/chat/orders")
        assert "What is ordered" in page.text
        form = page.find_form("/chat/orders")
        fields = {"arg.context.sku": "ctx", "arg.input.count": "2", "arg.input.gift": "true"}
        page = await browser.send(form, ("action", "input"), **fields)
        assert browser.response.status_code == 400
        assert "input.sku: it is missing" in page.text
        form = page.find_form("/chat/orders")
        assert dict(form.fields)["arg.input.count"] == "2"
        await browser.send(form, ("action", "input"), **fields, **{"arg.input.sku": "A-1"})
        assert browser.response.status_code == 200, browser.page.text
        path = browser.response.url.path.removeprefix("/console")
        await at.shows(browser, path, "You said")
        assert "A-1" in at.requests[-1].messages[-1].text
        await browser.send(browser.page.find_form(path), ("action", "message"), text="And as text")
        await at.shows(browser, path, "You said And as text")


async def test_model_and_settings_are_changed_for_a_session_and_for_a_turn(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        more = json.dumps({"settings": {"stop": ["x"]}, "max_iterations": 3})
        path = await at.start(browser, temperature="0.25", instructions="Be brief", more=more, tool=[])
        await at.shows(browser, path, "You said")
        request = at.requests[-1]
        assert dict(request.settings) == {"top_p": 0.5, "stop": ["x"], "temperature": 0.25}
        assert "Be brief" in str(request)
        assert list(request.tools) == []
        page = browser.page
        await browser.send(page.find_form(path), ("action", "message"), text="Hot", temperature="1", tool=["wait"])
        await at.shows(browser, path, "You said Hot")
        assert at.requests[-1].settings["temperature"] == 1
        page = await browser.open(path)
        for changes, problem in (
            ({"temperature": "warm"}, "temperature: it is not a number"),
            ({"more": "[1]"}, "more changes"),
            ({"more": '{"hooks": 1}'}, "hooks"),
            ({"more": '{"max_iterations": 0}'}, "max_iterations"),
        ):
            await browser.send(page.find_form(path), ("action", "message"), text="Keep me", **changes)
            assert browser.response.status_code == 400
            assert problem in browser.page.text
            assert dict(browser.page.find_form(path).fields)["text"] == "Keep me"


async def test_an_approval_is_decided_where_it_happens(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        path = await at.start(browser, "payer")
        page = await at.shows(browser, path, "Approve pay?", "tea", "denied in 59 min")
        [form] = [form for form in page.forms if ("decision", "approve") in form.buttons]
        assert "/calls/" in form.action
        [wait] = (await at.client.list_waits()).waits
        assert dict(form.fields)["hash"] == wait.hash
        assert "Approves this call, the others of pay that wait in this conversation, and every later one" in page.text
        assert "a message is read after it, Stop denies the call" in page.text
        await browser.send(form, ("decision", "approve"))
        assert browser.response.url.path == f"/console{path}", "it leads back"
        page = await at.shows(browser, path, "All paid")
        assert at.paid == [(3, "tea")]
        assert "approved by ada" in page.text


async def test_changed_arguments_are_shown_before_they_are_approved(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        path = await at.start(browser, "payer")
        page = await at.shows(browser, path, "Approve pay?")
        review = page.find_form(decision="review")
        page = await browser.send(review, **{"arg.amount": "2.5"})
        assert browser.response.status_code == 200
        assert ("−\n" in page.text or "−" in page.text, "3" in page.text, "2.5" in page.text) == (True, True, True)
        assert at.paid == []
        part = await browser.http.post(
            review.action, data=dict(review.fields) | {"arg.amount": "2.5"},
            headers={"origin": browser.url, "x-perdure-fragment": "1"},
        )  # fmt: skip
        assert 'class="review"' in part.text
        assert "<html" not in part.text
        await browser.send(page.find_form(decision="change"), ("decision", "change"))
        await at.shows(browser, path, "All paid")
        assert at.paid == [(2.5, "tea")]


async def test_a_denial_shows_at_once_and_a_stale_form_decides_nothing(engine: Engine) -> None:
    async with room(engine) as at:
        ada, bob = at.console.browse(), at.console.browse("bob")
        path = await at.start(ada, "payer")
        page = await at.shows(ada, path, "Approve pay?")
        [form] = [form for form in page.forms if ("decision", "approve") in form.buttons]
        [theirs] = [form for form in (await bob.open(path)).forms if ("decision", "approve") in form.buttons]
        answer = await bob.http.post(
            theirs.action, data=dict(theirs.fields) | {"decision": "deny", "comment": "too much"},
            headers={"origin": bob.url, "x-perdure-fragment": "1"},
        )  # fmt: skip
        assert 'class="outcome"' in answer.text
        assert "Denied by you" in answer.text
        await ada.send(form, ("decision", "approve"))
        assert ada.response.status_code in (200, 409)
        await at.shows(ada, path, "All paid", "too much")
        assert at.paid == []
        gone = await ada.http.get(f"{form.action}/outcome?hash={dict(form.fields)['hash']}")
        assert "Denied by bob" in gone.text
        forged = [(name, "0" * 64 if name == "hash" else value) for name, value in form.fields]
        form.fields = forged
        await ada.send(form, ("decision", "approve"))
        assert at.paid == []


async def test_who_asked_may_not_approve_what_needs_a_second_person(engine: Engine) -> None:
    async with room(engine) as at:
        ada, bob = at.console.browse(), at.console.browse("bob")
        path = await at.start(ada, "dropper")
        page = await at.shows(
            ada, path, "Approve drop?", "the requester may not approve", "You started this conversation"
        )
        await ada.send(
            next(form for form in page.forms if ("decision", "approve") in form.buttons), ("decision", "approve")
        )
        assert at.paid == []
        page = await bob.open(path)
        assert "not send to it" in page.text
        assert "You started this conversation" not in page.text
        await bob.send(
            next(form for form in page.forms if ("decision", "approve") in form.buttons), ("decision", "approve")
        )
        await at.shows(bob, path, "Done")
        assert at.paid == ["users"]


async def test_a_question_is_answered_where_it_is_asked(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse("sam")
        path = await at.start(browser, "asker")
        page = await at.shows(browser, path, "How many?")
        page = await browser.send(page.find_form(decision="answer"), ("decision", "answer"), **{"arg.answer": "many"})
        assert browser.response.status_code == 400
        assert "not a number" in page.text
        page = await browser.open(path)
        await browser.send(page.find_form(decision="answer"), ("decision", "answer"), **{"arg.answer": "7"})
        await at.shows(browser, path, "Thanks", "you said 7")


async def test_a_turn_is_stopped(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        path = await at.start(browser, "waiter")
        page = await at.shows(browser, path, "tools run")
        await browser.send(page.find_form(action="stop"), ("action", "stop"))
        page = await at.shows(browser, path, "for your message")
        assert not [form for form in page.forms if form.id == "stop"]


async def test_a_reader_who_was_cut_off_goes_on(engine: Engine) -> None:
    async with room(engine) as at:
        browser = at.console.browse()
        path = await at.start(browser, "payer")
        page = await at.shows(browser, path, "Approve pay?")
        [live] = [given["data-live"] for _, given in page.tags if given.get("data-live")]
        assert live.startswith(f"/console{path}/live?after=")
        blocks: list[str] = []
        async with browser.http.stream("GET", live.partition("?")[0]) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            last = 0
            async for line in response.aiter_lines():
                last = int(line[4:]) if line.startswith("id: ") else last
                if line.startswith("data: "):
                    blocks += [block["html"] for block in json.loads(line[6:]).get("blocks", ())]
                if "Approve" in "".join(blocks):
                    break
        html = "".join(blocks)
        check_page(Html(html), html)
        [form] = [form for form in Html(blocks[-1]).forms if ("decision", "approve") in form.buttons]
        await browser.send(form, ("decision", "approve"))
        seen = ""
        async with browser.http.stream("GET", live, headers={"last-event-id": str(last)}) as response:
            async for line in response.aiter_lines():
                seen += line
                if "All <strong>paid" in seen:
                    break


async def test_who_may_not(engine: Engine) -> None:
    async with room(engine) as at:
        ada, eve, other = at.console.browse(), at.console.browse("eve"), at.console.browse("other")
        path = await at.start(ada, "payer", tenant="acme")
        form = (await at.shows(ada, path, "Approve pay?")).find_form(
            path, nonce=dict(ada.page.find_form(path, listed_tool="pay").fields)["nonce"]
        )
        page = await eve.open("/chat")
        assert "No agent to talk to" in page.text
        page = await eve.open("/chat/payer")
        assert "not send to it" in page.text
        page = await eve.open(path)
        assert [item for item in page.forms if item.method == "post"] == []
        await eve.open("/inbox")
        token = next((value for name, value in eve.page.forms[0].fields if name == "form_token"), "")
        for _ in range(2):
            await eve.send(form, ("action", "message"), text="No")
            assert eve.response.status_code == 403
        assert token == "" or token != dict(form.fields)["form_token"]
        for path_of in (
            path,
            f"{path}/state",
            f"{path}/earlier",
            f"{path}/live",
            f"{path}/calls/x",
            f"{path}/calls/x/outcome",
        ):
            await other.open(path_of)
            assert other.response.status_code == 404, path_of
        await ada.open(path.replace("payer/", "talker/"))
        assert ada.response.status_code == 404, "another agent's session"
        await ada.open("/chat/nobody")
        assert ada.response.status_code == 404
        page = await other.open("/chat/talker")
        await other.send(page.find_form("/chat/talker"), ("action", "message"), text="Hi", tenant="acme")
        assert other.response.status_code == 403
        page = await other.open("/chat/talker")
        await other.send(page.find_form("/chat/talker"), ("action", "message"), text="Hi", tenant="other")
        assert other.response.status_code == 200
        assert at.paid == []


async def test_hostile_texts_in_a_chat(engine: Engine) -> None:
    @tool(needs_approval=True)
    def pay(note: str, more: dict[str, str]) -> str:
        """Pay."""
        return TEXT

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.ask(TEXT))

    agent = Agent(
        "agent",
        script([TEXT, call("pay", note=TEXT, more={TEXT: TEXT}), call("ask")], TEXT),
        tools=[pay, ask],
        description=TEXT,
    )
    async with engine.served(agent) as client, console(client) as opened:
        await record_agents(await client.store(create=True), [agent])
        browser = opened.browse()
        for path in ("/chat", "/chat/agent"):
            page = await browser.open(path)
            check_page(page, browser.response.text)
        form = page.find_form("/chat/agent")
        await browser.send(form, ("action", "message"), text=TEXT, user='"><i>user')
        path = browser.response.url.path.removeprefix("/console")

        async def waits() -> bool:
            return (await browser.open(path)).text.count("Approve") >= 1 and "Answer ask?" in browser.page.text

        await eventually(waits)
        check_page(browser.page, browser.response.text)
        assert "alert(1)" in browser.page.text, "it is shown"
        forms = [form for form in browser.page.forms if form.method == "post"]
        assert all(form.action.startswith("/console/chat/agent/") for form in forms)
        page = await browser.open("/chat/agent")
        check_page(page, browser.response.text)
