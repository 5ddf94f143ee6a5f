"""MkDocs hook: what pages link to outside ``docs/`` becomes a page too, so links hold on the site as in a checkout.

A Markdown file becomes a page as it is, a program a page that shows it, a folder a list of its files. Comments that
speak to the tests, and to scripts/reference.py, are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FOLDER = "files"
"""Where the pages of such files stand on the site."""

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
_COMMENT = re.compile(r"^ *<!-- (?:test: .*?|api .*?|/api) -->\n", re.MULTILINE)
_CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
_UNLISTED = re.compile(r"[._]|node_modules$|.*\block\b")


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add a page for each file outside that is linked to, and for what those link to in turn."""
    todo = [*sorted(DOCS.rglob("*.md")), ROOT / "CHANGELOG.md"]
    seen = set[str]()
    while todo:
        target = todo.pop()
        uri = uri_of(target)
        if uri in seen:
            continue
        seen.add(uri)
        if not target.is_relative_to(DOCS):
            files.append(File.generated(config, uri, content=content(target)))
        if target.is_dir() or target.suffix == ".md":
            todo += links(target)
    return files


def on_page_markdown(markdown: str, /, *, page: Page, **_: object) -> str:
    """Let links to files outside lead to their pages."""
    uri = page.file.src_uri
    origin = ROOT / uri.removeprefix(f"{FOLDER}/") if uri.startswith(f"{FOLDER}/") else DOCS / uri

    def there(link: re.Match[str]) -> str:
        target = resolved(origin, link[1])
        return link[1] if target is None else os.path.relpath(uri_of(target), Path(uri).parent)

    return _LINK.sub(there, _COMMENT.sub("", markdown)) if origin.suffix == ".md" else markdown


def on_page_content(html: str, /, **_: object) -> str:
    """Show bars in code within tables as Git hosts do: there they are escaped, and MkDocs keeps the escape."""
    return _CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), html)


def links(target: Path) -> Iterator[Path]:
    """The files and folders of the checkout that a page links to."""
    for link in _LINK.findall(content(target)):
        if (found := resolved(target / "README.md" if target.is_dir() else target, link)) is not None:
            yield found


def resolved(page: Path, link: str) -> Path | None:
    """Where a relative link leads to, if that is there. Of a folder, its README where it has one."""
    target = (page.parent / link).resolve()
    if (target / "README.md").exists():
        target /= "README.md"
    return target if target.exists() and target.is_relative_to(ROOT) else None


def uri_of(target: Path) -> str:
    """The page of a file or folder. A picture stays what it is."""
    if target.is_relative_to(DOCS):
        name = target.relative_to(DOCS).as_posix()
    else:
        name = f"{FOLDER}/{target.relative_to(ROOT).as_posix()}"
    if target.is_dir():
        return f"{name}/README.md"
    return name if target.suffix in (".md", ".svg", ".png") else f"{name}.md"


def content(target: Path) -> str:
    """Its text."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        listed = sorted(each for each in target.iterdir() if not _UNLISTED.match(each.name))
        return f"# {name}\n\n" + "\n".join(f"- [{each.name}]({each.name})" for each in listed)
    text = target.read_text()
    if target.suffix == ".md":
        return text
    language = {".py": "python", ".go": "go", ".ts": "typescript", ".json": "json"}.get(target.suffix, "text")
    return f"# {name}\n\n``````{language}\n{text}``````\n"
