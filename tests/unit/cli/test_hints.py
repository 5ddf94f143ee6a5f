"""Hints of errors that commands show name options, and not the arguments of Python functions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import perdure
from perdure.cli import app
from perdure.cli.output import get_exit_code, print_unexpected_error, translate_hint
from perdure.embedded import diagnosis
from perdure.errors import StoreLocationError
from perdure.store import open_store

PACKAGE = Path(perdure.__file__).parent
SHOWN = ("client", "store", "loop", "temporal_service.py", "embedded")
"""Where errors are raised that a command shows as they are. Those of agents' definitions are about Python code."""
PYTHON_ONLY = {
    "Or send an auth_ref": "no command sends an auth_context",
    "Worker(resolve_auth=…)": "no command sends an auth_context",
    'id="user-7"': "an argument of `send`",
    "datetime(": "no command backfills",
    "client.run(id)": "`diff` makes runs itself",
    'on_approval="': "no command calls an agent",
    "File.": "a file that a program makes",
    "Message.": "a history that a program gives",
    "json.dumps": "--result takes text",
}
ARGUMENT = re.compile(r"\b[a-z_]+=(…|[\"'\d])|await |: by\\.")


def list_hints() -> list[str]:
    """Texts of the parameter ``hint``, and of constants and variables whose name ends so."""
    hints = []
    for place in SHOWN:
        for file in [PACKAGE / place] if place.endswith(".py") else sorted((PACKAGE / place).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.keyword(arg="hint", value=value):
                        hints.append(join_text(value))
                    case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.lower().endswith("hint"):
                        hints.append(join_text(value))
    return hints


def join_text(node: ast.AST) -> str:
    return "".join(
        part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def test_hints_name_options() -> None:
    hints = list_hints()
    assert len(hints) > 50
    translated = map(translate_hint, hints)
    assert [hint for hint in translated if ARGUMENT.search(hint) and not any(map(hint.__contains__, PYTHON_ONLY))] == []


def test_an_option_replaces_an_argument() -> None:
    assert translate_hint('replace that one with if_exists="replace".') == "replace that one with --replace."
    assert translate_hint("Look there.") == "Look there."


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "sqlite:nothing", "postgresql://u:secret@h", "text"])
def test_a_url_that_names_no_store_is_an_error_of_the_store(url: str) -> None:
    with pytest.raises(StoreLocationError) as caught:
        open_store(url)
    assert get_exit_code(caught.value) == 1
    assert caught.value.hint
    assert "secret" not in str(caught.value)


def test_an_unexpected_error_is_one_line_and_its_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert print_unexpected_error(LookupError("lost")) == 1
    said = capsys.readouterr().err
    (file,) = tmp_path.iterdir()
    assert said.splitlines()[0] == "error: unexpected LookupError: lost"
    assert str(file) in said
    assert "Traceback" not in said
    assert "LookupError: lost" in file.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_a_full_disk_is_not_a_fault_of_perdure() -> None:
    with Path("/dev/full").open("w") as full:
        program = [sys.executable, "-m", "perdure", "--version"]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: cannot write the output: No space left on device\n")


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"perdure {metadata.version('perdure')}\n")
    program = [sys.executable, "-m", "perdure", "--version"]
    assert subprocess.run(program, capture_output=True, text=True).stdout == result.output


def test_doctor_recommends_what_can_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = set(metadata.metadata("perdure").get_all("Provides-Extra") or ())
    assert set(diagnosis._EXTRA_PACKAGES) <= offered
    monkeypatch.setattr(diagnosis, "_read_package_version", lambda package: "1" if package == "openai" else None)
    (extras,) = [finding for finding in diagnosis._check_packages() if finding.check == "extras"]
    assert extras.hint is not None
    assert extras.hint.startswith("pip install 'perdure[anthropic,")

    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(diagnosis.metadata, "metadata", missing)
    assert diagnosis._build_install_hint(["encryption", "yaml"]) == "pip install cryptography pyyaml"
