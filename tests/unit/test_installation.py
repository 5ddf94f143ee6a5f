"""Each missing extra is named with a command that installs it for this copy of perdure, however that was installed."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from perdure._installation import build_install_command, build_missing_extra_error, list_extras, read_installation
from perdure.embedded import diagnosis

METADATA = """\
Metadata-Version: 2.4
Name: perdure
Version: 9.1
Requires-Dist: pydantic>=2
Provides-Extra: anew
Requires-Dist: anew-driver>=2; extra == 'anew'
Requires-Dist: pydantic>=2; extra == 'anew'
Provides-Extra: done
Requires-Dist: pydantic[email]>=2; (sys_platform != 'win32') and extra == 'done'
Provides-Extra: all
Requires-Dist: anew-driver>=2; extra == 'all'
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes this process one of an environment in which perdure is installed so."""

    def install(
        record: Mapping[str, Any] | None = None, *, installer: str = "pip", pip: bool = True, receipt: str | None = None
    ) -> Path:
        environment = tmp_path / "env"
        info = environment / "site/perdure-9.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(METADATA)
        (info / "INSTALLER").write_text(f"{installer}\n")
        if record is not None:
            (info / "direct_url.json").write_text(json.dumps(record))
        (environment / "bin").mkdir()
        for name in ("python", *(["pip"] if pip else [])):
            (environment / "bin" / name).write_text("#!/bin/sh\n")
            (environment / "bin" / name).chmod(0o755)
        if receipt is not None:
            (environment / receipt).write_text("")
        monkeypatch.syspath_prepend(info.parent)
        monkeypatch.setattr(sys, "prefix", str(environment))
        monkeypatch.setattr(sys, "executable", str(environment / "bin/python"))
        monkeypatch.chdir(tmp_path)
        return environment

    return install


def test_a_checkout(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert build_install_command(["server"]) == "./env/bin/pip install -e '.[server]'"
    (tmp_path / "else where").mkdir()
    monkeypatch.chdir(tmp_path / "else where")
    assert build_install_command(["server"]) == f"{tmp_path}/env/bin/pip install -e '{tmp_path}[server]'"
    monkeypatch.setenv("PATH", f"{tmp_path}/env/bin")
    assert build_install_command(["server", "mcp"]) == f"pip install -e '{tmp_path}[server,mcp]'"


def test_a_folder_is_not_made_editable(install: Install, tmp_path: Path) -> None:
    install({"url": tmp_path.as_uri(), "dir_info": {}})
    assert build_install_command(["server"]) == "./env/bin/pip install '.[server]'"
    assert read_installation().get_dependency(["server"]) == f"perdure[server] @ {tmp_path.as_uri()}"


def test_a_wheel(install: Install, tmp_path: Path) -> None:
    wheel = tmp_path / "my wheels" / "perdure-9.1-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    install({"url": wheel.as_uri(), "archive_info": {}})
    assert build_install_command(["server"]) == f"./env/bin/pip install './my wheels/{wheel.name}[server]'"
    assert Requirement(read_installation().get_dependency(["server"])).url == wheel.as_uri()
    wheel.unlink()
    assert "it is gone: name the place where it is now" in build_install_command(["server"])


@pytest.mark.parametrize(
    ("record", "requirement"),
    [
        (None, "perdure[server]"),
        ({"url": "https://x.test/perdure-9.1-py3-none-any.whl", "archive_info": {}},
         "perdure[server] @ https://x.test/perdure-9.1-py3-none-any.whl"),
        ({"url": "https://x.test/perdure.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
         "perdure[server] @ git+https://x.test/perdure.git@c0ffee"),
    ],
    ids=["index", "url", "repository"],
)  # fmt: skip
def test_an_index_and_addresses(record: Any, requirement: str, install: Install) -> None:
    install(record)
    assert build_install_command(["server"]) == f"./env/bin/pip install '{requirement}'"
    if record is None:
        assert read_installation().get_dependency(["server"]) == "perdure[server]>=9.1"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 7}', "null"])
def test_a_damaged_record_is_no_second_error(text: str, install: Install) -> None:
    environment = install()
    (environment / "site/perdure-9.1.dist-info/direct_url.json").write_text(text)
    assert "'" in build_install_command(["server"])


def test_uv_and_environments_without_pip(install: Install) -> None:
    install(installer="uv", pip=False)
    assert build_install_command(["anew"]) == "uv pip install --python ./env/bin/python 'perdure[anew]'"


def test_an_environment_without_pip(install: Install) -> None:
    install(pip=False)
    assert build_install_command(["anew"]) == "./env/bin/python -m pip install 'perdure[anew]'"


@pytest.mark.parametrize(
    ("receipt", "command"),
    [("uv-receipt.toml", "uv tool install --force"), ("pipx_metadata.json", "pipx install --force")],
)
def test_a_tool_is_installed_again_with_the_extras_that_it_has(receipt: str, command: str, install: Install) -> None:
    install(receipt=receipt)
    assert build_install_command(["anew"]) == f"{command} 'perdure[done,anew]'"


def test_a_copy_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    root = Path(diagnosis.__file__).parents[2]
    assert (read_installation().source, read_installation().location) == ("checkout", str(root))
    (extras,) = [finding for finding in diagnosis._check_packages() if finding.check == "extras"]
    assert (extras.status, extras.hint and extras.hint.endswith("[all]'")) == ("warn", True)


def test_an_error_names_every_package_that_is_missing(install: Install) -> None:
    install()
    error = build_missing_extra_error("`perdure fly`", "anew")
    assert (
        error.message
        == "`perdure fly` needs the extra 'anew' of perdure, which is not installed (missing: anew-driver)"
    )
    assert error.hint == "Install it: ./env/bin/pip install 'perdure[anew]'"
    both = build_missing_extra_error("`perdure fly`", "anew", "done", module="wings.left")
    assert "the extras 'anew' and 'done' of perdure, which are not installed" in both.message
    assert "(missing: wings)" in build_missing_extra_error("x", "done", module="wings.left").message


def test_doctor_lists_every_extra_of_the_metadata(install: Install) -> None:
    install()
    assert [extra.name for extra in list_extras()] == ["anew", "done"]
    (extras,) = [finding for finding in diagnosis._check_packages() if finding.check == "extras"]
    assert extras.detail.startswith("done 2.")
    assert extras.detail.endswith("; not installed: anew")
    assert extras.hint == "./env/bin/pip install 'perdure[anew]'"


def test_the_real_metadata_has_an_extra_server(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = {extra.name: set(extra.packages) for extra in list_extras()}
    assert {"starlette", "uvicorn", "sse-starlette", "jinja2", "ag-ui-protocol"} <= packages["server"]
    assert not {"web", "console", "agui", "all", "dev"} & set(packages)
    assert shutil.which("perdure") is None or build_install_command(["server"]).endswith("[server]'")


def test_the_page_says_what_each_extra_is_for() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/install.md").read_text().partition("| extra | for |")[2]
    rows = [row.partition("|")[2].partition("|")[0] for row in page.partition("\n\n")[0].splitlines()[2:]]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted([*(extra.name for extra in list_extras()), "all"])


def test_a_command_that_installs_perdure_stands_in_one_place() -> None:
    """Elsewhere code builds it by `build_missing_extra_error`, and pages name the extra: no hint is true for all."""
    root = Path(__file__).parents[2]
    allowed = {"README.md", "docs/how-to/install.md", "docs/decisions/077-one-extra-for-http.md"}
    pages = [*root.glob("*.md"), *(root / "examples").rglob("*.md"), *(root / "deploy").rglob("*")]
    files = [*(root / "perdure").rglob("*.py"), *(root / "docs").rglob("*.md"), *pages]
    found = {
        str(file.relative_to(root))
        for file in files
        if file.is_file() and re.search(r"install [^\n`]*perdure(-[\d.]+[^\n ]*)?\[|perdure\[\w", file.read_text())
    }
    assert found <= allowed
