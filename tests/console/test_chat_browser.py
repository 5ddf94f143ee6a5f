"""The chat and the comparison in a real Chromium."""

from __future__ import annotations

import asyncio
import struct
import zlib
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from perdure import Agent, Approval, Client, Limits, ToolContext, tool
from perdure.testing import ScriptedProvider, call
from perdure.worker.engine import record_agents
from tests.console.test_browser import AXE, look_at_everything, office
from tests.console.test_run import script
from tests.support import npm
from tests.support.chromium import PICTURES, Window
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.slow


class Complaint(BaseModel):
    """What went wrong with an order."""

    order_id: str = Field(description="As on the invoice: A-1007")
    text: str
    wish: Literal["refund", "replace", "none"] = "refund"
    photos: int = 0


@tool(needs_approval=Approval(expires="45m"))
def refund(order_id: str, amount: float, reason: str, notify: bool = True) -> str:
    """Refund an order."""
    return f"Refunded ${amount:.2f} for order {order_id}."


@tool
async def ask_size(ctx: ToolContext) -> str:
    """Ask for the size."""
    return str(await ctx.ask("Which size shall the replacement have?", Literal["S", "M", "L"]))


@tool
def look_up(order_id: str) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order_id, "status": "delivered", "total": 129.5}


def build_agents(go: asyncio.Event) -> list[Agent[Any, Any]]:
    @tool
    async def count_stock() -> str:
        """Count."""
        await go.wait()
        return "counted"

    support = Agent(
        "support",
        script(
            ["I look at your order and the photo.", call("look_up", order_id="A-1007")],
            call("refund", order_id="A-1007", amount=129.5, reason="Damaged on arrival: cracked shade"),
            ["Refunded. I also send you another one.", call("ask_size")],
            "Done:\n\n1. **$129.50** go back to your card\n2. a lamp in your size is on its way\n\n"
            "| step | state |\n|---|---|\n| refund | `done` |\n| replacement | on its way |",
            "You are welcome!",
        ),
        description="Answers customers about their orders, refunds what arrived damaged, and sends replacements.",
        tools=[look_up, refund, ask_size],
        limits=Limits(tokens=20_000),
    )  # fmt: skip
    talker = Agent("talker", ScriptedProvider(_talk), description="Talks about anything.")
    return [
        support,
        talker,
        Agent("complaints", ScriptedProvider(_talk), input=Complaint, description="Takes complaints by a form."),
        Agent("counter", script(call("count_stock"), "Counted"), tools=[count_stock], description="Counts the stock."),
    ]


def _talk(request: Any) -> str:
    said = [message.text for message in request.messages if message.role == "user"]
    if "lamp" in said[-1]:
        return (
            "A brass lamp is cleaned with a soft cloth and a drop of lemon. **Unplug it first.** Let it dry for an hour"
            f" before you use it again.{' Repeat it once a year.' if 'old' in said[-1] else ' Wax keeps its shine.'}"
        )
    return f"You said: {said[-1]}"


def draw_photo() -> bytes:
    """A picture of 240 by 150 points."""
    rows = b"".join(
        b"\0" + bytes(part for x in range(240) for part in (90 + y // 2, 120 + x // 4, 200 - (x * y) % 97 // 3))
        for y in range(150)
    )

    def pack(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 240, 150, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + pack(b"IHDR", head) + pack(b"IDAT", zlib.compress(rows)) + pack(b"IEND", b"")


async def attach(page: Any, name: str) -> None:
    await page.locator("#files").set_input_files([{"name": name, "mimeType": "image/png", "buffer": draw_photo()}])


async def open_support(at: Any, **options: Any) -> Window:
    """A session with an attachment, an approval and a question, at the point where it waits for the approval."""
    window: Window = await at.open("/chat/support", **options)
    page = window.page
    await attach(page, "damage.png")
    await page.get_by_text("damage.png").wait_for()
    await page.get_by_label("Message").fill("My lamp arrived broken (order **A-1007**).\nHere is a photo.")
    if options.get("is_mobile"):
        await page.get_by_role("button", name="Start").click()
    else:
        await page.keyboard.press("Enter")
    await page.locator(".wait.approval").wait_for()
    return window


async def test_a_chat_with_an_attachment_an_approval_and_a_question(engine: Engine) -> None:
    go = asyncio.Event()
    agents = build_agents(go)
    async with office(engine, *agents, what="a chat") as (client, at):
        await record_agents(await client.store(create=True), agents)
        window = await open_support(at)
        page = window.page
        assert await page.locator(".block.message img").evaluate("image => image.complete && image.naturalWidth") == 240
        run = client.run(page.url.rpartition("/")[2])
        block = page.locator(".wait.approval")
        await block.get_by_text("Change…").click()
        await block.get_by_label("amount").fill("100")
        await page.keyboard.press("Escape")
        await block.get_by_label("amount").wait_for(state="hidden")
        await page.locator("#chat-state[data-state=waiting][data-busy]").wait_for()  # Esc has stopped nothing
        await block.get_by_text("Change…").click()
        await block.get_by_role("button", name="Review changes").click()
        assert await block.locator(".diff .new td").last.inner_text() == "100"
        await block.get_by_role("button", name="Approve with these changes").click()
        question = page.locator(".wait.question")
        await question.get_by_role("radio", name="M").check()
        await question.get_by_role("button", name="Answer", exact=True).click()
        await page.locator(".block.reply strong", has_text="$129.50").wait_for()
        assert await page.locator(".wait").count() == 0
        assert await page.evaluate("document.activeElement.id") == "text", "one may type on"
        await page.keyboard.type("Thank you")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("very much")
        await page.keyboard.press("Enter")
        await page.locator(".block.reply", has_text="You are welcome!").wait_for()
        assert await page.locator(".block.sending").count() == 0
        said = [message.text for message in await run.transcript() if message.role == "user"]
        assert said[-1] == "Thank you\nvery much"
        [decided] = [one for one in (await run.status()).decided if one.tool == "refund"]
        assert (decided.by, decided.changed) == ("ada", True)
        assert window.complaints == []
        assert window.foreign_requests(at.url) == []


async def test_others_decide_meanwhile_and_esc_leads_to_what_stops_a_turn(engine: Engine) -> None:
    agents = build_agents(asyncio.Event())
    async with office(engine, *agents, what="a chat of two") as (client, at):
        await record_agents(await client.store(create=True), agents)
        window = await open_support(at)
        page = window.page
        run = client.run(page.url.rpartition("/")[2])
        [wait] = (await client.list_waits()).waits
        colleague = await at.open(page.url.partition("/console")[2], name="bob")
        await colleague.page.get_by_role("button", name="Approve refund").click()
        await page.locator(".wait.question").wait_for()
        assert await page.locator(".wait.approval").count() == 0
        assert [one.by for one in (await run.status()).decided if one.call_id == wait.call_id] == ["bob"]
        await page.goto(f"{at.url}/console/chat/counter")
        await page.get_by_label("Message").fill("Count")
        await page.keyboard.press("Enter")
        await page.locator("#stop").wait_for()
        await page.locator("#text:focus").wait_for()  # the page's script is there
        await page.keyboard.press("Escape")
        assert await page.locator("#text:focus").count() == 1, "no key is live in a field"
        await page.evaluate("document.activeElement.blur()")
        await page.keyboard.press("Escape")
        await page.locator("#stop button:not([hidden]):focus").wait_for()
        await page.keyboard.press("Enter")
        await page.locator("#chat-state[data-state=idle]").wait_for()
        await page.locator("#stop").wait_for(state="detached")
        run = client.run(page.url.rpartition("/")[2])
        await run.close()
        await run.result()
        await page.locator("#chat-state[data-state=completed]").wait_for()
        await page.get_by_label("Message").fill("Again")
        await page.keyboard.press("Enter")
        await page.locator(".block.message[data-key]", has_text="Again").wait_for()
        assert window.complaints == []


async def open_pages(client: Client, at: Any, **options: Any) -> dict[str, Window]:
    """Each page of the chat, and of the comparison, in a window of its own."""
    chat = await open_support(at, **options)
    origin = await client.start("talker", "Hello there", mode="session", user="weber")
    await origin.turn().result()
    await (await origin.send("How do I clean my brass lamp?")).result()
    fork = await origin.fork(at=1, message="How do I clean my old brass lamp?", by="ada")
    await fork.turn().result()
    await (await fork.send("Thanks")).result()
    pages = {
        "chat-agents": await at.open("/chat", **options),
        "chat-new": await at.open("/chat/talker", **options),
        "chat-form": await at.open("/chat/complaints", **options),
        "chat": chat,
        "compare": await at.open(f"/compare?left={origin.id}&right={fork.id}", **options),
        "compare-empty": await at.open("/compare", **options),
    }
    settings = await at.open("/chat/support", **options)
    await settings.page.get_by_text("Settings", exact=True).click()
    answered = await at.open(chat.page.url.partition("/console")[2], **options)
    await answered.page.get_by_role("button", name="Approve refund").click()
    await answered.page.get_by_role("radio", name="L").check()
    await answered.page.get_by_role("button", name="Answer", exact=True).click()
    await answered.page.locator(".block.reply table").wait_for()
    waiting = await open_support(at, **options)
    await waiting.page.get_by_text("Change…").click()
    await waiting.page.get_by_label("amount").fill("100")
    await waiting.page.get_by_role("button", name="Review changes").click()
    await waiting.page.locator(".review").wait_for()
    pages["chat"] = await at.open(waiting.page.url.partition("/console")[2], **options)
    asked = await open_support(at, **options)
    await asked.page.get_by_role("button", name="Approve refund").click()
    await asked.page.locator(".wait.question").wait_for()
    denied = await open_support(at, **options)
    await denied.page.get_by_text("Deny…").click()
    await denied.page.get_by_label("Reason, which").fill("The photo does not show the lamp.")
    pages |= {"chat-question": asked, "chat-deny": denied}
    return pages | {"chat-settings": settings, "chat-answered": answered, "chat-review": waiting}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pictures_of_the_chat(engine: Engine, scheme: Literal["light", "dark"]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    agents = build_agents(asyncio.Event())
    async with office(engine, *agents, what="pictures of the chat") as (client, at):
        await record_agents(await client.store(create=True), agents)
        for size, width in (("", 1280), ("-phone", 390)):
            options = {"is_mobile": True, "has_touch": True} if size else {}
            viewport = {"width": width, "height": 860}
            for name, window in (
                await open_pages(client, at, color_scheme=scheme, viewport=viewport, **options)
            ).items():
                wide = await window.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} wide"
                picture = PICTURES / f"{name}-{scheme}{size}.png"
                await window.page.screenshot(path=picture, full_page=name.startswith("compare"))
                assert window.complaints == [], name


@pytest.mark.node
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_chat_has_no_violations_of_wcag(engine: Engine, scheme: Literal["light", "dark"]) -> None:
    source = (npm.packages(AXE, "accessibility of the chat") / "axe-core" / "axe.min.js").read_text()
    agents = build_agents(asyncio.Event())
    async with office(engine, *agents, what="accessibility of the chat") as (client, at):
        await record_agents(await client.store(create=True), agents)
        violations: dict[str, list[str]] = {}
        for name, window in (await open_pages(client, at, color_scheme=scheme)).items():
            if name not in ("chat", "chat-review"):  # there one thing at a time is unfolded
                await look_at_everything(window)
            await window.page.evaluate(source)
            options = (
                "{resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice']}"
            )
            found = await window.page.evaluate(f"axe.run({options})")
            told = [
                f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
                for one in found["violations"]
            ]
            violations |= {name: told} if told else {}
        assert violations == {}


async def test_a_chat_without_javascript(engine: Engine) -> None:
    agents = build_agents(asyncio.Event())
    async with office(engine, *agents, what="a chat without JavaScript") as (client, at):
        await record_agents(await client.store(create=True), agents)
        window = await at.open("/chat/support", java_script_enabled=False)
        page = window.page
        await attach(page, "a.png")
        await page.get_by_label("Message").fill("Broken")
        await page.get_by_role("button", name="Start").click()

        async def find(selector: str) -> None:
            async def is_shown() -> bool:
                await page.get_by_role("link", name="Load it again").click()
                return bool(await page.locator(selector).count() == 1)

            await eventually(is_shown)

        await find(".wait.approval")
        assert await page.locator(".block.message img").count() == 1
        await page.get_by_role("button", name="Approve refund").click()
        await find(".wait.question")
        await page.get_by_role("radio", name="S").check()
        await page.get_by_role("button", name="Answer", exact=True).click()
        await find(".block.reply table")
        assert window.foreign_requests(at.url) == []
