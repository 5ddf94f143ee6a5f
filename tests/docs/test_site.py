"""The documentation's site: built without a network, without a warning, and complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.loopback import ROOT

CLOSED = "http://127.0.0.1:9"
"""The discard port: a request through this proxy fails."""


def build_site(folder: Path) -> None:
    """What `make docs` builds."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "http_proxy": CLOSED, "https_proxy": CLOSED}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=240)
    said = built.stdout + built.stderr
    assert built.returncode == 0, said
    assert not re.search("WARNING|ERROR", said), said


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    """One test: the site is built once, and not by each process of the suite."""
    build_site(tmp_path)
    check_that_nothing_is_fetched_from_elsewhere(tmp_path)
    check_links(tmp_path)
    check_comments(tmp_path)
    check_lists_and_tables(tmp_path)


def check_that_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]+)"', text)
        loaded += re.findall(
            r'<link\b(?=[^>]*\brel="(?:stylesheet|preconnect|icon|preload)")[^>]*\bhref="([^"]+)"', text
        )
        assert loaded
        assert not [url for url in loaded if re.match(r"(?:https?:)?//", url)], page


def check_links(site: Path) -> None:
    """Every link within the site leads somewhere."""
    ids = {page: set(re.findall(r'\bid="([^"]+)"', page.read_text())) for page in site.rglob("*.html")}
    for page in ids:
        for link in re.findall(r'<a\b[^>]*\bhref="(?![a-z]+:)([^"]*)"', page.read_text()):
            path, _, anchor = link.partition("#")
            target = (page.parent / unquote(path)).resolve() if path else page
            if page.name == "404.html" or target == site:
                continue
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor.startswith("__") or anchor in ids[target], f"{page.name}: {link}"


def check_comments(site: Path) -> None:
    """Comments for the tests, and for the writer of the reference, are not on the site."""
    for page in site.rglob("*.html"):
        assert not re.search("<!-- (?:test:|/?api)", page.read_text()), page


def test_the_list_of_decisions_is_complete() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"\]\((\d{3}-[\w-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


def check_lists_and_tables(site: Path) -> None:
    """Git hosts read a list right behind a paragraph; the site's Markdown wants an empty line before it."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        paragraphs = re.findall(r"<p>(.*?)</p>", text, re.DOTALL)
        wrong = [each[:80] for each in paragraphs if re.search(r"(?:^|\n)(?:- |\d+\. |\|)", each)]
        assert not wrong, f"{page.name}: {wrong}"
        assert "```" not in re.sub(r"<code>.*?</code>", "", text, flags=re.DOTALL), page.name
        assert not re.search(r"<td\b[^>]*>[^\n]*\\\|", text), f"{page.name}: an escaped bar in a table"
