"""What texts on a page may cost: whoever writes to a run chooses them, and others open the page.

The texts are those of an attack that stopped a replica for half a minute: tables whose rows the parser fills up.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from perdure import Agent
from perdure.console.texts import (
    MARKDOWN_CHARS,
    MARKDOWN_GROWTH,
    MARKDOWN_SECONDS,
    PAGE_CHARS,
    PageBudget,
    render_markdown,
)
from perdure.testing import ScriptedProvider
from tests.support.engine import Engine
from tests.support.pages import console


def build_table(columns: int, rows: int, mark: str = "a") -> str:
    return "|" + "a|" * columns + "\n|" + "-|" * columns + "\n" + f"{mark}\n" * rows


def fill(piece: str) -> str:
    return (piece * (MARKDOWN_CHARS // len(piece) + 1))[:MARKDOWN_CHARS]


COSTLY = [
    build_table(300, 4900),
    build_table(100, 8000),
    (build_table(20, 90) + "\n\n") * 10,
    "\n".join("> " * (line % 20) + "| a " * 50 for line in range(200)),
    *map(
        fill, ("*_", "*a **a ", "a*b_", "[", "![", "[a](", "`", "<", "> ", ">" * 20 + "\n", "- a\n", "# a\n", "a\n=\n")
    ),
    *map(
        fill,
        ("|a|\n|-|\n|a|\n\n", "~~a", "[a]: b\n", "[a](b 'c\n", "[\u200b", "<a@b.c>", "  - ", "> > - - ", "***a** b* "),
    ),
]


@pytest.mark.parametrize("text", COSTLY, ids=lambda text: ascii(text[:12]))
def test_a_text_costs_a_bounded_time_and_size(text: str) -> None:
    begin = time.thread_time()
    html = render_markdown(text)
    spent = time.thread_time() - begin
    assert len(html) <= MARKDOWN_GROWTH * len(text) + 2_000
    assert spent < 5 * MARKDOWN_SECONDS  # between two looks at the clock lies one token


def test_small_tables_are_tables_and_a_large_one_is_text() -> None:
    assert render_markdown(build_table(5, 20)).count("<td>") == 100
    large = render_markdown(build_table(300, 4900))
    assert "<td>" not in large
    assert large.count("a") >= 4900, "none of it is left out"


@pytest.mark.fault("Borders", "A text has 30,000 letters, or tables of thousands of cells.")
async def test_a_page_of_costly_texts_leaves_the_loop_to_others(engine: Engine) -> None:
    agent = Agent("agent", ScriptedProvider(lambda _: "ok"))
    async with engine.served(agent) as client, console(client) as opened:
        run = await client.start("agent", build_table(300, 4900, "0"), mode="session")
        for number in range(1, 30):
            await run.turn().result()
            await run.send(build_table(300, 4900, chr(ord("A") + number)))
        await run.turn().result()
        turns, longest = 0, 0.0

        async def count_turns() -> None:
            nonlocal turns, longest
            while True:
                begin = time.thread_time()
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - begin)
                turns += 1

        counting = asyncio.create_task(count_turns())
        browser = opened.browse()
        await browser.open(f"/runs/{run.id}")
        counting.cancel()
        assert browser.response.status_code == 200
        assert len(browser.response.content) < PAGE_CHARS
        assert browser.response.text.count("Z") >= 4900, "none of a text is left out"
        assert longest < 0.3, "CPU time of the loop between two of its turns"
        assert turns > 10


def test_what_a_page_may_spend_is_for_all_of_its_texts() -> None:
    budget = PageBudget(markdown_texts=2, markdown_chars=50)
    assert [budget.may_render(20) for _ in range(3)] == [True, True, False]
    assert not PageBudget(seconds=0).may_render(1)
    assert not PageBudget(markdown_chars=9).may_render(10)
