"""What deploy/ says fits the program: commands run, timeouts cover the drain, locks agree. Needs no Docker engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perdure import config
from perdure.tools.tool import DEFAULT_TIMEOUT
from perdure.worker.plugin import DRAIN_MARGIN
from tests.docs.loopback import ROOT, Loopback

DEPLOY = ROOT / "deploy"
LONGEST_DRAIN = DEFAULT_TIMEOUT + DRAIN_MARGIN.total_seconds()


def unit() -> dict[str, list[str]]:
    """The unit's settings; one may stand there several times."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "perdure-worker@.service").read_text().splitlines():
        if match := re.match(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def dockerfile() -> dict[str, list[str]]:
    """The last stage's instructions."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text[text.rindex("\nFROM ") :].splitlines():
        if match := re.match(r"([A-Z]+) (.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def pins(path: Path) -> dict[str, str]:
    """Package to version."""
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[\w+\])?==([^ ;\\]+)", path.read_text(), re.MULTILINE))


def unit_command() -> list[str]:
    return shlex.split(unit()["ExecStart"][0])


def image_command() -> list[str]:
    return [*json.loads(dockerfile()["ENTRYPOINT"][0]), *json.loads(dockerfile()["CMD"][0])]


@pytest.mark.server
@pytest.mark.parametrize("command", [unit_command(), image_command()], ids=["unit", "image"])
async def test_the_command_serves_and_ends_on_sigterm(command: list[str], loopback: Loopback) -> None:
    assert Path(command[0]).name == "perdure"
    shutil.copy(ROOT / "examples/11_worker.py", loopback.folder / "agents.py")
    worker = await loopback.spawn(Path(sys.executable).with_name("perdure"), *command[1:], cwd=loopback.folder)
    assert worker.stdout is not None
    async with asyncio.timeout(60):
        line = (await worker.stdout.readline()).decode()
    assert "support" in line
    assert loopback.task_queue in line
    os.kill(worker.pid, signal.SIGTERM)
    await worker.communicate()
    assert worker.returncode == 0, "the process itself gets the signal, and drains"


def test_the_unit_waits_longer_than_a_worker_drains() -> None:
    assert int(unit()["TimeoutStopSec"][0]) > LONGEST_DRAIN
    assert unit()["KillSignal"] == ["SIGTERM"]
    assert unit()["KillMode"] == ["mixed"], "what tools have started is not cut off before the worker has drained"
    assert unit()["Restart"] == ["always"]


def test_the_readme_says_the_same() -> None:
    text = (DEPLOY / "README.md").read_text()
    said = re.findall(r"(?:TimeoutStopSec=|--stop-timeout |terminationGracePeriodSeconds: )(\d+)", text)
    assert set(said) == set(unit()["TimeoutStopSec"])
    assert f"({DEFAULT_TIMEOUT:g} s for a" in text
    assert f"and {DRAIN_MARGIN.total_seconds():g} s" in text


def test_the_image_is_not_run_by_root_and_passes_the_signal_on() -> None:
    image = dockerfile()
    assert image["USER"] == ["10001"]
    assert image["STOPSIGNAL"] == ["SIGTERM"]
    assert all(image[name][0].startswith("[") for name in ("ENTRYPOINT", "CMD")), "a shell would keep the signal"


def test_unit_and_image_keep_state_in_one_place() -> None:
    settings = dict(line.split("=", 1) for line in unit()["Environment"])
    image = dict(re.findall(r"(\w+)=(\S+)", " ".join(dockerfile()["ENV"])))
    for name in ("PERDURE_HOME", "PERDURE_STORE_URL"):
        assert settings[name] == image[name]
    assert dockerfile()["VOLUME"] == [settings["PERDURE_HOME"]]
    assert settings["PERDURE_HOME"] == f"/var/lib/{unit()['StateDirectory'][0]}"
    assert settings["PERDURE_STORE_URL"].startswith(f"sqlite:///{settings['PERDURE_HOME']}/")


def test_the_environment_file_names_variables_that_exist() -> None:
    named = re.findall(r"\b([A-Z]+_[A-Z_]+)=", (DEPLOY / "worker.env.example").read_text())
    documented = re.findall(r"`([A-Z_]+)`", (ROOT / "docs/reference/environment.md").read_text())
    assert set(named) <= set(documented)
    example = (DEPLOY / "worker.env.example").read_text()
    assert f"PERDURE_TASK_QUEUE={config.DEFAULT_TASK_QUEUE}\n" in example


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "perdure-worker@.service").read_text()
    copy = tmp_path / "perdure-worker@.service"
    copy.write_text(text.replace(unit_command()[0], str(Path(sys.executable).with_name("perdure"))))
    checked = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    complaints = [line for line in checked.stderr.splitlines() if "perdure-worker" in line]
    assert (checked.returncode, complaints) == (0, [])


def test_the_locks_are_parts_of_the_development_lock() -> None:
    whole = pins(ROOT / "requirements/dev.txt")
    for name in ("requirements.txt", "build-requirements.txt"):
        part = pins(DEPLOY / name)
        assert part
        differing = {package: (pin, whole.get(package)) for package, pin in part.items() if whole.get(package) != pin}
        assert not differing, (
            f"deploy/{name} is out of date: see 'Updating the locked requirements' in deploy/README.md"
        )
        text = (DEPLOY / name).read_text()
        assert text.count("==") <= text.count("--hash=sha256:")


def test_the_lock_has_what_a_worker_needs_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["openai"]]
    names = {re.split(r"[\[>=<~ ]", each)[0] for each in needed}
    locked = pins(DEPLOY / "requirements.txt")
    assert names <= set(locked)
    assert not {"pytest", "ruff", "mypy"} & set(locked)


def test_no_file_names_a_package_index() -> None:
    for path in DEPLOY.iterdir():
        assert not re.search(r"--(extra-)?index-url[ =]|https?://[^ ]*/simple", path.read_text())
