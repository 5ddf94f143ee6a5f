"""What a worker's file has beside its agents: toolsets for agent files, and who resolves references."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli.agent_loader import load_agent_module
from perdure.errors import DefinitionError

BESIDE = """
from perdure import Toolset

class Docs(Toolset):
    name = "docs"

toolsets = [Docs()]

def resolve_auth(ref, run):
    return {"user": ref}
"""


def test_toolsets_and_resolve_auth_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside1.py").write_text(BESIDE)
    found = load_agent_module(str(tmp_path / "beside1.py"), require_agents=False)
    assert found.agents == ()
    assert [one.name for one in found.toolsets] == ["docs"]
    assert found.resolve_auth is not None
    assert found.resolve_auth("ana", None) == {"user": "ana"}  # type: ignore[arg-type]


def test_what_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "beside2.py").write_text("toolsets = ['docs']\nresolve_auth = 'later'\n")
    found = load_agent_module(str(tmp_path / "beside2.py"), require_agents=False)
    assert (found.toolsets, found.resolve_auth) == ((), None)


def test_alone_a_file_has_agents(tmp_path: Path) -> None:
    (tmp_path / "beside3.py").write_text(BESIDE)
    with pytest.raises(DefinitionError, match="has no agents at its top level"):
        load_agent_module(str(tmp_path / "beside3.py"))
