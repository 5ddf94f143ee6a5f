"""The console in a real Chromium: by keyboard, without JavaScript, on a phone, with hostile texts, axe, pictures."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest

from perdure import Agent, Approval, Client, File, Limits, ToolContext, tool
from perdure.client.run import Run
from perdure.console import inbox
from perdure.ports.bulk_actions import BulkRow, BulkRunRow
from perdure.ports.times import timestamp
from perdure.testing import ScriptedProvider, call
from perdure.worker.engine import record_agents
from tests.console.test_access import wait_for_waits
from tests.console.test_hostile import TEXT
from tests.console.test_run import PNG, script
from tests.support import npm
from tests.support.chromium import PICTURES, Chromium, Window, chromium
from tests.support.engine import Engine
from tests.support.pages import console
from tests.support.records import record_samples
from tests.support.wait import eventually
from tests.support.web import make_caller

pytestmark = pytest.mark.slow
AXE = Path(__file__).parent / "axe"


@tool(needs_approval=Approval(expires="45m"))
def refund(order_id: str, amount: float, reason: str, notify: bool = True) -> str:
    """Refund an order."""
    return f"Refunded ${amount:.2f} for order {order_id}."


@tool(needs_approval=Approval(separate=True))
def delete_account(email: str) -> str:
    """Delete a customer's account."""
    return "deleted"


@tool
async def ask_size(ctx: ToolContext) -> str:
    """Ask for the size."""
    return str(await ctx.ask("Which size does the customer want?", Literal["S", "M", "L"]))


@tool
def look_up(order_id: str) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order_id, "status": "delivered", "total": 129.5}


@tool
def photo(order_id: str) -> Any:
    """The customer's photo."""
    return ["The photo that the customer sent:", File(PNG, "image/png", "damage.png")]


@tool
def stock(sku: str) -> str:
    """What is in stock."""
    raise ValueError("the warehouse does not answer: connection refused")


@tool(needs_approval=True)
def send_email(to: str, subject: str, body: str) -> str:
    """Send an email."""
    return "sent"


LETTER = "Dear Ms. Weber,\n\nwe are sorry that your lamp arrived damaged.\n" + "We send you another one.\n" * 12


def build_agents() -> list[Agent[Any, Any]]:
    researcher = Agent("researcher", script("Lamps break in transit in **2.1 %** of orders."), description="Researches")
    support = Agent(
        "support",
        script(
            ["Let me look at your order.", call("look_up", order_id="A-1007")],
            [call("photo", order_id="A-1007"), call("stock", sku="LAMP-3")],
            call("call_researcher", task="How often do lamps break in transit?"),
            ["The photo shows a cracked shade. I refund the order.",
             call("refund", order_id="A-1007", amount=129.5, reason="Damaged on arrival: cracked shade")],
            "I have refunded **$129.50** for order `A-1007`.\n\n| step | result |\n|---|---|\n| refund | done |",
        ),
        tools=[look_up, photo, stock, refund],
        subagents=[researcher],
        limits=Limits(tokens=20_000, tool_calls=20),
    )  # fmt: skip
    return [
        support,
        researcher,
        Agent("privacy", script(call("delete_account", email="m.weber@example.com"), "ok"), tools=[delete_account]),
        Agent("tailor", script(call("ask_size"), "ok"), tools=[ask_size]),
        Agent(
            "mailer",
            script(call("send_email", to="weber@example.com", subject="Your order", body=LETTER), "ok"),
            tools=[send_email],
        ),
        Agent(
            "clerk",
            script(call("refund", order_id="A-1002", amount=12, reason="Late"), "I have refunded **$12.00**."),
            tools=[refund],
        ),
    ]


@asynccontextmanager
async def office(
    engine: Engine, *agents: Agent[Any, Any], what: str, undo_seconds: float = 0.0
) -> AsyncIterator[tuple[Client, Chromium]]:
    async with (
        engine.served(*agents) as client,
        console(
            client, make_caller("bob", "approver"), make_caller("eve", "viewer"), undo_seconds=undo_seconds
        ) as opened,
        chromium(opened.service.url, what) as browser,
    ):
        yield client, browser


async def start_all(client: Client) -> dict[str, Run[Any]]:
    """A run of each agent; their calls wait, but for that of one, which is approved with those to come."""
    runs = {"clerk": await client.start("clerk", "It came late", mode="session", id="clerk-1040", user="jo", by="jo")}
    await wait_for_waits(client, 1)
    [wait] = (await client.list_waits()).waits
    await runs["clerk"].approve(wait.call_id, hash=wait.hash, by="bob", always=True)
    await runs["clerk"].turn().result()
    for agent, text, user in (
        ("support", "My lamp arrived broken (order A-1007). I want my money back!", "weber"),
        ("privacy", "Please delete my data", "weber"),
        ("tailor", "A shirt, please", None),
        ("mailer", "Write to Ms. Weber", "jo"),
    ):
        runs[agent] = await client.start(
            agent, text, mode="session", tenant="acme", user=user, by=user or "web", id=f"{agent}-1041"
        )
    await wait_for_waits(client, 4)
    await record_agents(await client.store(), build_agents())  # as a worker does when it starts
    return runs


async def wait_for_decided(page: Any, count: int) -> None:
    from playwright.async_api import expect

    await expect(page.locator(".row.decided")).to_have_count(count, timeout=20_000)


async def has_title(page: Any, title: str) -> bool:
    return bool(await page.title() == title)


async def test_thirty_approvals_by_keyboard_while_another_decides(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "ROWS", 25)
    paid: list[int] = []

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    def answer(request: Any) -> Any:
        number = int(request.messages[-1].text or 0)
        return "done" if request.messages[-1].role == "tool" else call("pay", amount=number)

    async with office(engine, Agent("payer", ScriptedProvider(answer), tools=[pay]), what="the keyboard") as (
        client,
        at,
    ):
        runs = [await client.start("payer", str(number), mode="session") for number in range(30)]
        await wait_for_waits(client, 30)
        window = await at.open("/inbox")
        page = window.page
        assert await page.title() == "(30) Inbox · perdure"
        order = await page.eval_on_selector_all(
            ".row .meta a[href*='/runs/']", "links => links.map(link => link.textContent)"
        )
        for taken in (order[5], order[12]):  # by another reviewer, before this one comes to them
            await client.run(taken).deny(by="bob", comment="mine")
        await wait_for_decided(page, 2)
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        for done in range(3, 25):
            await page.keyboard.press("a")
            await page.keyboard.press("Control+Enter")
            await wait_for_decided(page, done)
        await page.keyboard.press("d")
        await page.keyboard.type("not this one")
        await page.keyboard.press("Control+Enter")
        await wait_for_decided(page, 25)
        texts = await page.locator(".row .outcome strong").all_inner_texts()
        assert sorted(texts) == sorted(["Denied by bob"] * 2 + ["Approved by you"] * 22 + ["Denied by you"])
        assert len(await page.locator(".row").all()) == 25, "rows that others decide stay"
        await page.reload()
        assert await page.title() == "(5) Inbox · perdure"
        for _ in range(2):
            await page.keyboard.press("j")
            await page.keyboard.press("x")
        await page.get_by_role("button", name="Approve ticked").click()
        await page.get_by_role("button", name="these 2: sure?").click()
        await wait_for_decided(page, 2)
        for done in range(3, 6):
            await page.keyboard.press("j")
            await page.locator(".row:not(.decided)").first.focus()
            await page.keyboard.press("a")
            await page.keyboard.press("Control+Enter")
            await wait_for_decided(page, done)
        await eventually(lambda: has_title(page, "Inbox · perdure"))
        assert window.complaints == []
        await eventually(lambda: len(paid) == 27)
        states = [(await run.status()).decided[0] for run in runs]
        assert sorted({(state.by, state.state) for state in states}) == [
            *[("ada", "approved"), ("ada", "denied"), ("bob", "denied")]
        ]
        assert len(set(paid)) == 27, "each once"


async def test_arguments_are_changed_and_a_question_is_answered(engine: Engine) -> None:
    async with office(engine, *build_agents(), what="changed arguments") as (client, at):
        runs = await start_all(client)
        window = await at.open("/inbox")
        page = window.page
        await page.locator(".row:has-text('refund')").focus()
        await page.keyboard.press("e")
        await page.get_by_label("amount").fill("100")
        side = page.locator(".call-side")
        assert await side.get_by_role("button", name="Approve refund").count() == 0, "one action at a time"
        await page.get_by_text("Change the arguments…").click()
        await page.get_by_label("amount").wait_for(state="hidden")
        assert await side.get_by_role("button", name="Approve refund").count() == 0, "edits are not sent"
        await page.get_by_text("Change the arguments…").click()
        await page.get_by_role("button", name="Review changes").first.click()
        assert await page.locator(".diff .new td").last.inner_text() == "100"
        await page.get_by_role("button", name="Approve with these changes").click()
        await page.get_by_text("Approved by you with changed arguments").wait_for()
        await runs["support"].turn().result()
        await page.goto(f"{at.url}/console/runs/{quote(runs['support'].id, safe='')}")
        await page.get_by_text("Refunded $100.00 for order A-1007.").wait_for(state="attached")
        await page.goto(f"{at.url}/console/inbox?kind=question")
        await page.get_by_text("Answer…", exact=True).click()
        await page.get_by_role("radio", name="M").check()
        await page.get_by_role("button", name="Answer", exact=True).click()
        await page.get_by_role("strong").get_by_text("Answered by you").wait_for()
        assert window.complaints == []


async def test_no_stray_key_decides(engine: Engine) -> None:
    async with office(engine, *build_agents(), what="stray keys") as (client, at):
        runs = await start_all(client)
        window = await at.open("/inbox")
        page = window.page
        for key in "adxe":
            await page.keyboard.press(key)
        assert await page.locator(".row.current, .row.decided, details.pop[open]").count() == 0, "no row is chosen"
        account = page.locator(".row:has-text('delete_account')")
        await account.focus()
        await page.keyboard.press("a")
        await page.keyboard.press("Enter")
        focused = "document.activeElement.closest('.row')?.querySelector('h2').textContent.trim()"
        assert await page.evaluate(focused) == "delete account: email m.weber@example.com"
        assert await page.locator(".row.decided").count() == 0
        assert [one.tool for one in (await runs["privacy"].status()).approvals] == ["delete_account"]
        await page.keyboard.press("Control+Enter")
        await wait_for_decided(page, 1)
        outcome = await account.locator(".outcome").inner_text()
        assert outcome.split() == ["Approved", "by", "you", "just", "now"]
        assert await page.locator(".menu-pages [data-count]").inner_text() == "3", "what was decided waits no longer"
        assert await account.locator(".when").is_hidden(), "its clock has stopped"
        assert window.complaints == []


async def test_without_javascript(engine: Engine) -> None:
    async with office(engine, *build_agents(), what="pages without JavaScript") as (client, at):
        runs = await start_all(client)
        window = await at.open("/inbox", java_script_enabled=False)
        page = window.page
        row = page.locator(".row:has-text('refund')")
        await row.get_by_text("Deny…").click()
        await row.get_by_label("Reason").fill("keep the money")
        assert await row.get_by_role("button", name="Approve refund").count() == 0
        await row.get_by_role("button", name="Deny refund").click()
        await page.get_by_text("Denied by you").wait_for()
        await page.goto(f"{at.url}/console/runs/{quote(runs['support'].id, safe='')}")
        await page.get_by_label("Message to the agent").fill("Thanks anyway")
        await page.get_by_role("button", name="Send").click()
        await runs["support"].turn().result()
        await page.reload()
        await page.get_by_text("Thanks anyway").wait_for()
        await page.get_by_text("Cancel…").click()
        await page.get_by_role("button", name="Cancel the run").click()

        async def is_over() -> bool:
            return (await runs["support"].status()).state == "cancelled"

        await eventually(is_over)
        assert window.foreign_requests(at.url) == []


async def test_a_run_is_followed_as_it_is_written(engine: Engine) -> None:
    go = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await go.wait()
        return "waited"

    agent = Agent("worker", script([call("wait")], "The **end** of it"), tools=[wait])
    async with office(engine, agent, what="a live run") as (client, at):
        run = await client.start("worker", "Go", mode="session")
        window = await at.open(f"/runs/{run.id}")
        page = window.page
        await page.locator(".block.call.running").wait_for()
        go.set()
        await page.locator(".block.reply strong", has_text="end").wait_for()
        await page.locator("#facts .state.idle").wait_for()
        assert await page.locator(".block.call").count() == 1
        await page.get_by_label("Message to the agent").fill("More")
        await page.keyboard.press("Control+Enter")
        await page.locator(".block.message", has_text="More").wait_for()
        assert window.complaints == []


async def test_what_waits_stays_in_sight_and_forms_in_use_stay(engine: Engine) -> None:
    async with office(engine, *build_agents(), what="what waits in a run") as (client, at):
        runs = await start_all(client)
        for width, height in ((1280, 500), (390, 700)):
            window = await at.open(
                f"/runs/{quote(runs['support'].id, safe='')}", viewport={"width": width, "height": height}
            )
            page = window.page
            button = page.locator("#pinned").get_by_role("link", name="Decide refund")
            await button.wait_for()
            for place in ("0", "document.documentElement.scrollHeight / 2", "document.documentElement.scrollHeight"):
                await page.evaluate(f"scrollTo(0, {place}); document.getElementById('panel').scrollTop = 10_000")
                assert await button.is_visible()
                box = await button.bounding_box()
                assert box is not None
                assert 48 <= box["y"] <= height - box["height"], f"{width} wide, at {place}"
                hit = f"document.elementFromPoint({box['x'] + 10}, {box['y'] + 10}).closest('#pinned') !== null"
                assert await page.evaluate(hit), "nothing covers it"
        await page.evaluate("document.querySelector('#actions').scrollIntoView()")
        await page.get_by_text("Pause…").click()
        reason = page.get_by_label("Reason")
        await reason.fill("half")
        await client.run(runs["support"].id).approve(by="bob")  # the panel changes around the form
        await page.locator("#pinned").wait_for(state="detached")
        await page.keyboard.type(" written")
        assert await reason.input_value() == "half written"
        assert window.complaints == []


async def test_a_standing_approval_is_revoked_on_the_page(engine: Engine) -> None:
    async with office(engine, *build_agents(), what="standing approvals") as (client, at):
        runs = await start_all(client)
        window = await at.open(f"/runs/{quote(runs['clerk'].id, safe='')}")
        page = window.page
        standing = page.locator("#standing")
        await standing.get_by_text("Revoke…").click()
        await standing.get_by_role("button", name="Revoke").click()
        await standing.wait_for(state="detached")
        assert (await runs["clerk"].status()).standing == ()
        assert window.complaints == []


async def test_hostile_texts_do_nothing_in_a_browser(engine: Engine) -> None:
    @tool(needs_approval=True)
    def pay(note: str) -> str:
        """Pay."""
        return TEXT

    agent = Agent(
        "agent", script([TEXT, call("pay", note=TEXT)], TEXT), tools=[pay], description=TEXT, instructions=TEXT
    )
    async with office(engine, agent, what="hostile texts in a browser") as (client, at):
        run = await client.start("agent", TEXT, by="<b>eve</b>", user='"><i>user', mode="session")
        await wait_for_waits(client)
        [wait] = (await client.list_waits()).waits
        for path in (
            "/inbox",
            f"/inbox/{quote(run.id, safe='')}/{wait.call_id}",
            f"/runs/{run.id}",
            "/agents",
            "/agents/agent",
        ):
            window = await at.open(path)
            await window.page.wait_for_load_state("networkidle") if "/runs/" not in path else None
            await window.page.get_by_text("alert(1)").first.wait_for(state="attached")
            assert window.complaints == [], path
            assert window.foreign_requests(at.url) == [], path
            assert await window.page.locator("iframe, object, embed, style").count() == 0
            assert await window.page.locator("form:not([action^='/console/']):not([action=''])[action]").count() == 0
        assert [pending.tool for pending in (await run.status()).approvals] == ["pay"]


async def list_pages(client: Client, runs: dict[str, Run[Any]]) -> dict[str, str]:
    [wait] = [wait for wait in (await client.list_waits()).waits if wait.tool == "refund"]
    return {
        "inbox": "/inbox",
        "inbox-empty": "/inbox?agent=nobody",
        "call": f"/inbox/{quote(wait.run_id, safe='')}/{wait.call_id}",
        "run": f"/runs/{quote(runs['support'].id, safe='')}",
        "run-standing": f"/runs/{quote(runs['clerk'].id, safe='')}",
        "runs": "/runs",
        "overview": "/overview",
        "attempts": f"/runs/{quote(runs['support'].id, safe='')}/attempts",
        "bulk-new": "/bulk/new?verb=cancel&agent=support",
        "bulk": await record_bulk(client, [run.id for run in runs.values()]),
        "bulks": "/bulk",
        "agents": "/agents",
        "agent": "/agents/support",
        "schedules-empty": "/schedules",
        "workers": "/workers",
        "login": "/login",
        "error": "/nothing",
        **await record_samples(client),
    }


async def record_bulk(client: Client, ids: list[str]) -> str:
    """Record a bulk action that is in progress, and return the path of its page."""
    store = await client.store()
    outcomes = (("acted", None), ("failed", "ToolError: no"), ("refused", "resume needs the permission to operate it"))
    rows = [
        BulkRunRow(name, number, "", "support", outcome=outcome, detail=detail, done_at=timestamp(datetime.now(UTC)))
        for number, (name, (outcome, detail)) in enumerate(zip([*ids, "other-1", "other-2"], outcomes, strict=False))
    ]
    more = [BulkRunRow(f"later-{number}", 10 + number, "", "support") for number in range(6)]
    labels = ('{"error": "AuthenticationError", "agent": "support"}', None, None, "ana", "token:ana", "10.0.0.1")
    await store.create_bulk(BulkRow("b" * 32, "resume", *labels, len(rows) + 6, 5.0, 10), [*rows, *more])
    return f"/bulk/{'b' * 32}"


async def test_pages_fit_a_phone(engine: Engine) -> None:
    async with office(engine, *build_agents(), what="the width of a phone") as (client, at):
        runs = await start_all(client)
        for name, path in (await list_pages(client, runs)).items():
            for width in (320, 390):
                window = await at.open(path, viewport={"width": width, "height": 800}, is_mobile=True, has_touch=True)
                wide = await window.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} wide on a phone of {width}"
                small = await window.page.evaluate(
                    """() => [...document.querySelectorAll('button, .button, input, select')]
                    .filter(one => one.offsetParent && one.type !== 'hidden' && one.getBoundingClientRect().height < 24)
                    .map(one => one.outerHTML.slice(0, 80))"""
                )
                assert small == [], name


@pytest.mark.node
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_have_no_violations_of_wcag(engine: Engine, scheme: Literal["light", "dark"]) -> None:
    async with office(engine, *build_agents(), what="accessibility of the console") as (client, at):
        runs, violations = await start_all(client), {}
        for name, path in (await list_pages(client, runs)).items():
            told = await find_violations(await at.open(path, color_scheme=scheme))
            violations |= {name: told} if told else {}
        assert violations == {}


async def find_violations(window: Window) -> list[str]:
    """What axe finds wrong with a page. Needs npm."""
    source = (npm.packages(AXE, "accessibility of the console") / "axe-core" / "axe.min.js").read_text()
    await look_at_everything(window)
    await window.page.evaluate(source)
    options = "{resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice']}"
    found = await window.page.evaluate(f"axe.run({options})")
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
        for one in found["violations"]
    ]


async def look_at_everything(window: Window) -> None:
    """Unfold what is folded, and wait until nothing moves."""
    await window.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    await window.page.evaluate("scrollTo(0, 0)")  # what the bar covers by half would count as small
    await window.page.emulate_media(reduced_motion="reduce")
    await window.page.wait_for_timeout(100)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pictures_of_every_page(engine: Engine, scheme: Literal["light", "dark"]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    async with office(engine, *build_agents(), what="pictures of the console") as (client, at):
        runs = await start_all(client)
        for name, path in (await list_pages(client, runs)).items():
            for size, width in (("", 1280), ("-phone", 390)):
                window = await at.open(path, color_scheme=scheme, viewport={"width": width, "height": 860})
                if name == "run":
                    await window.page.locator("#facts .state.waiting").wait_for()
                    await window.page.evaluate("scrollTo(0, 0)")
                picture = PICTURES / f"{name}-{scheme}{size}.png"
                await window.page.screenshot(path=picture)
                assert picture.stat().st_size > 5_000
                if name == "runs":
                    for box in (await window.page.locator("input[name=item]").all())[1:3]:
                        await box.check()
                    await window.page.get_by_role("button", name="Compare").wait_for()
                    await window.page.get_by_text("With 2 ticked runs").wait_for(state="attached")
                    await window.page.screenshot(path=PICTURES / f"runs-ticked-{scheme}{size}.png")
                expected = ["Failed to load resource: the server responded with a status of 404 (Not Found)"]
                assert window.complaints == (expected if name == "error" else [])


# ---
# A web process and a worker that are killed.


@asynccontextmanager
async def serving(engine: Engine, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """``perdure console`` in a process of its own, killed at the end."""
    arguments = [
        "console",
        "--dev",
        "--port",
        str(port),
        "--address",
        engine.address,
        "--store-url",
        str(engine.store_url),
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "perdure", *arguments, env=dict(os.environ), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert (await process.stdout.readline()).decode().strip() == f"http://127.0.0.1:{port}/console"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.server
async def test_a_run_streams_while_the_web_process_and_the_worker_are_killed(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    worker = await engine.process("streaming", TEST_GO=str(go))
    client = await engine.client()
    run = await client.start("slow", "Go", mode="session")
    async with chromium(f"http://127.0.0.1:{port}", "a run whose web process is killed") as at:
        async with serving(engine, port):
            window = await at.open(f"/runs/{run.id}", name="")
            page = window.page
            await page.locator("[data-field=text]", has_text="Half").wait_for()
        await page.get_by_text("Connecting again").wait_for()
        await worker.kill()
        go.touch()
        await engine.process("streaming", TEST_GO=str(go))
        async with serving(engine, port):
            await page.locator(".block.reply.done", has_text="Half whole.").wait_for(timeout=60_000)
            assert await page.locator(".block.reply.done").count() == 1
            text = await page.locator("#transcript").inner_text()
            assert text.count("whole.") == 1
            await page.reload()
            assert (await page.locator("#transcript").inner_text()).count("whole.") == 1


async def test_the_page_of_a_link_to_a_decision_takes_its_own_form(engine: Engine) -> None:
    """Browsers send ``Origin: null`` with the forms of pages that have no referrer."""
    async with office(engine, *build_agents(), what="the page of a link to a decision") as (client, at):
        await start_all(client)
        [wait] = [wait for wait in (await client.list_waits()).waits if wait.tool == "refund"]
        window = await at.open("/login")
        await window.page.goto(f"{at.url}/decide/{quote(wait.run_id, safe='')}/{wait.call_id}?hash={wait.hash}")
        await window.page.get_by_role("button", name="Approve").click()
        await window.page.get_by_text("approved by ada").wait_for()
