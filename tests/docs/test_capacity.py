"""docs/capacity.md: what its program prints is what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/capacity.md"


def test_the_page_shows_what_its_program_prints(tmp_path: Path) -> None:
    [(program, shown)] = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        (tmp_path / "program.py").write_text(program)
        runpy.run_path(str(tmp_path / "program.py"))
    assert printed.getvalue().strip() == shown.strip()
