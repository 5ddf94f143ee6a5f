"""``perdure resume --all``, ``perdure cancel --all``, ``perdure bulk`` and ``perdure list --error``."""

from __future__ import annotations

import json

import pytest

from tests.integration.test_bulk_actions import Door, failed_runs, name_of, payer
from tests.support.commands import Commands
from tests.support.engine import Engine

pytestmark = pytest.mark.server


async def test_all_that_match_from_a_count_to_the_results(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Commands(engine, monkeypatch)
    door = Door()
    async with failed_runs(engine, door, "inv-1", "inv-2") as client:
        door.is_open = True
        chosen = ("--all", "--agent", payer(engine), "--status", "failed", "--error", "AuthenticationError")
        listed = await cli("list", "--agent", payer(engine), "--error", "AuthenticationError")
        assert "Pay inv-2 · AuthenticationError: 401: the key is wrong" in listed.out
        found = await cli("list", "-q", "--search", f"pay {name_of(engine, 'inv-1')}")
        assert found.out.split() == [name_of(engine, "inv-1")]
        counted = await cli("resume", *chosen, "--dry-run")
        assert (counted.code, "resume: 2 to do" in counted.out) == (0, True)
        unsure = await cli("resume", *chosen)
        assert unsure.code != 0
        assert "nothing was done: 2 runs would be resumed" in unsure.err
        assert "Add --yes." in unsure.err
        assert (await client.run(name_of(engine, "inv-1")).status()).state == "failed"
        done = await cli("resume", *chosen, "--yes", "--per-second", "50", "--json", "--by", "ana")
        assert done.code == 0, done.err
        action = json.loads(done.out)
        assert (action["counts"], action["by"], action["runs"]) == ({"acted": 2}, "ana", [])
        for name in ("inv-1", "inv-2"):
            assert (await client.run(name_of(engine, name)).result()).content == "done"
        again = await cli("resume", *chosen, "--yes")
        assert again.code != 0
        assert "no run to resume" in again.err
        assert action["id"] in (await cli("bulk", "list")).out
        assert "2 done" in (await cli("bulk", "show", action["id"])).out
        assert (await cli("bulk", "stop", action["id"])).code == 0
        assert (await cli("bulk", "show", "unknown")).code != 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("resume",), "name a run"),
        (("cancel",), "name a run"),
        (("cancel", "x", "--all"), "names one"),
        (("cancel", "x", "--dry-run"), "--dry-run belongs to --all"),
        (("resume", "x", "--error", "E"), "--error belongs to --all"),
        (("cancel", "--all"), "names nothing"),
        (("resume", "--all", "--agent", "x", "--children"), "for one run"),
        (("resume", "--all", "--started", "soon"), "--started"),
        (("list", "--search", "x", "--query", "y"), "--query"),
    ],
)
async def test_what_does_not_go_together_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], text: str
) -> None:
    cli = Commands(engine, monkeypatch)
    async with failed_runs(engine, Door()):
        refused = await cli(*words)
    assert refused.code != 0
    assert text in refused.err
