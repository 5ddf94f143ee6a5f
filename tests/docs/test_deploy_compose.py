"""The Compose file in deploy/: its variables and commands exist, no password has a default, Docker Compose's own reader
accepts it, and what it runs brings up a store, a namespace and a worker. Needs no Docker engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import yaml

from tests.docs.loopback import ROOT, Loopback, ended, said
from tests.docs.test_deploy import DEPLOY, LONGEST_DRAIN
from tests.docs.test_docs import check_perdure
from tests.support.postgres import PostgresServer, build_url, execute, find_binaries, run_server
from tests.support.validators import find_go_program, judge

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "${PERDURE_IMAGE" in service["image"]]
ONCE = ("temporal-schema", "setup", "migrate")
PASSWORDS = ("POSTGRES_PASSWORD", "TEMPORAL_DB_PASSWORD", "PERDURE_DB_PASSWORD")


def documented() -> set[str]:
    return set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", (ROOT / "docs/reference/environment.md").read_text()))


def words_of(service: str) -> list[str]:
    """The command, with the defaults of its variables."""
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in SERVICES[service]["command"]]


@pytest.mark.parametrize("service", OURS)
def test_commands_and_variables_of_the_services_exist(service: str) -> None:
    check_perdure(words_of(service), whole=True)
    assert set(SERVICES[service]["environment"]) <= documented()
    assert SERVICES[service]["read_only"]
    assert SERVICES[service]["cap_drop"] == ["ALL"]


def test_no_password_has_a_default() -> None:
    """Neither does a password stand anywhere: a variable without a value ends the command."""
    used = re.findall(r"\$\{(\w*PASSWORD\w*)([^}]*)\}", (DEPLOY / "compose.yaml").read_text())
    assert {name for name, _ in used} == set(PASSWORDS)
    assert all(rest.startswith(":?") for _, rest in used)
    for service in SERVICES.values():
        for name, value in (service.get("environment") or {}).items():
            assert not re.search(r"PASSWORD|PWD|KEY|SECRET|_URL", name) or ":?" in value, f"{name} has a value"
    example = (DEPLOY / "compose.env.example").read_text()
    assert dict.fromkeys(PASSWORDS, "").items() <= dict(re.findall(r"^(\w+)=(.*)", example, re.MULTILINE)).items()


def test_the_example_names_the_variables_of_the_file() -> None:
    named = set(re.findall(r"^(?:# )?([A-Z_]+)=", (DEPLOY / "compose.env.example").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    assert named <= used
    assert used - named == {"TEMPORAL_NAMESPACE", "REQUIREMENTS"}, "the others have defaults that are seldom changed"


def test_images_have_versions() -> None:
    for name in SERVICES.keys() - set(OURS):
        tag = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", SERVICES[name]["image"]).partition(":")[2]
        assert re.match(r"\d+(\.\d+)*(-\w+)?$", tag), f"{name} has no version"


def test_services_are_started_again_wait_for_each_other_and_are_published_on_loopback_only() -> None:
    for name, service in SERVICES.items():
        assert service["restart"] == ("on-failure:5" if name in ONCE else "unless-stopped")
        for needed, how in service.get("depends_on", {}).items():
            ends = needed in ONCE
            assert how == {"condition": "service_completed_successfully" if ends else "service_healthy"}
            assert ends or "healthcheck" in SERVICES[needed]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert SERVICES["worker"]["depends_on"].keys() == {"setup", "migrate"}


def test_a_worker_is_given_longer_than_it_drains() -> None:
    assert int(SERVICES["worker"]["stop_grace_period"].removesuffix("s")) > LONGEST_DRAIN


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of deploy/ as after the first commands of its README."""
    copy = tmp_path / "deploy"
    copy.mkdir()
    for name in ("compose.yaml", "compose.env.example", "worker.env.example"):
        shutil.copy(DEPLOY / name, copy)
    example = (copy / "compose.env.example").read_text()
    (copy / ".env").write_text(re.sub(r"(\w+PASSWORD)=$", r"\1=of-\1", example, flags=re.MULTILINE))
    shutil.copy(copy / "worker.env.example", copy / "worker.env")
    return copy


@pytest.fixture(scope="session")
def program() -> Path:
    return find_go_program("compose-config", "deploy/compose.yaml, by the reader of Docker Compose")


@pytest.mark.slow
def test_docker_composes_reader_accepts_the_file(program: Path, project: Path) -> None:
    env = {"PATH": os.environ["PATH"]}
    read = judge(program, "compose.yaml", cwd=project, env=env)
    assert read.returncode == 0, read.stderr
    services = json.loads(read.stdout)["services"]
    assert services.keys() == SERVICES.keys()
    worker = services["worker"]
    assert worker["stop_grace_period"] == "11m0s"
    assert worker["deploy"]["replicas"] == 2
    assert (
        worker["environment"].items()
        >= {
            "TEMPORAL_ADDRESS": "temporal:7233",  # worker.env has another, for systemd
            "PERDURE_STORE_URL": "postgresql://perdure:of-PERDURE_DB_PASSWORD@postgres:5432/perdure",
        }.items()
    )
    (project / "worker.env").unlink()
    assert "worker.env" in judge(program, "compose.yaml", cwd=project, env=env).stderr
    (project / ".env").unlink()
    refused = judge(program, "compose.yaml", cwd=project, env=env)
    assert refused.returncode != 0
    assert "set it in deploy/.env" in refused.stderr


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test's own: users belong to all of its databases."""
    with run_server() as server:
        yield server


async def fetch(url: str, query: str, *values: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(query, *values)
    finally:
        await connection.close()


def run_beside(server: PostgresServer, script: str, folder: Path) -> None:
    """Run a script of the container of PostgreSQL."""
    env = {
        **os.environ,
        **{name: f"it's {name}" for name in PASSWORDS},
        "PATH": f"{find_binaries()}:{os.environ['PATH']}",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.port),
    }
    ran = subprocess.run(["bash", "-ec", script], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def backup_and_restore() -> list[str]:
    """The two loops of deploy/README.md, without what brings their commands into the container."""
    text = (DEPLOY / "README.md").read_text().replace("docker compose -f deploy/compose.yaml exec -T postgres ", "")
    return re.findall(r"^for database in .*?^done$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.postgres
@pytest.mark.server
async def test_the_services_in_their_order_bring_up_a_worker(own_server: PostgresServer, loopback: Loopback) -> None:
    folder = loopback.folder
    first_start = COMPOSE["configs"]["databases"]["content"].replace("$$", "$")
    await asyncio.to_thread(run_beside, own_server, first_start, folder)
    owners = "SELECT datname FROM pg_database JOIN pg_roles r ON datdba = r.oid WHERE rolname = $1 ORDER BY 1"
    rows = [await fetch(own_server.url, owners, user) for user in ("perdure", "temporal")]
    assert [[row[0] for row in found] for found in rows] == [["perdure"], ["temporal", "temporal_visibility"]]

    loopback.namespace = f"compose-{uuid.uuid4().hex[:8]}"
    loopback.store_url = f"postgresql://perdure@127.0.0.1:{own_server.port}/perdure"
    perdure = Path(sys.executable).with_name("perdure")
    for service in ("setup", "migrate", "setup", "migrate"):  # each is safe to repeat
        done = await loopback.run(perdure, *words_of(service))
        assert (done.code, done.err) == (0, ""), f"{service}: {done}"
    doctor = await loopback.run(perdure, "doctor")
    assert doctor.code == 0, doctor
    shutil.copy(ROOT / "examples/11_worker.py", folder / "agents.py")
    worker = await loopback.spawn(perdure, *words_of("worker"), cwd=folder)
    await said(worker.stdout, "support")
    answer = await loopback.run(perdure, "run", "support", "Where is order 77?", "--id", "order-77")
    assert answer.code == 0, answer
    created = await loopback.run(perdure, "token", "create", "ana", "--role", "viewer", "--json")
    words = ["0" if word == "8000" else word for word in words_of("web")]
    web = await loopback.spawn(perdure, *words)
    port = (await said(web.stdout, "^http://")).partition("/v1")[0].rpartition(":")[2]
    headers = {"Host": f"localhost:{port}", "Authorization": f"Bearer {json.loads(created.out)['token']}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as http:
        assert (await http.get("/v1/sessions/order-77")).json()["id"] == "order-77"
        assert (await http.get("/readyz")).json()["status"] == "ok"
        assert (await http.get("/v1/sessions", headers={"Host": "elsewhere"})).status_code == 421
    for process in (web, worker):
        os.kill(process.pid, signal.SIGTERM)
        assert (await ended(process)).code == 0

    before = await loopback.run(perdure, "show", "order-77")
    backup, restore = backup_and_restore()
    await asyncio.to_thread(run_beside, own_server, backup, folder)
    await execute(build_url(own_server.url, "perdure"), "DROP SCHEMA public CASCADE")
    await asyncio.to_thread(run_beside, own_server, restore, folder)
    assert (await loopback.run(perdure, "store", "status", "--json")).code == 0
    assert (await loopback.run(perdure, "show", "order-77")).out == before.out
    rows = [await fetch(own_server.url, owners, user) for user in ("perdure", "temporal")]
    assert [len(found) for found in rows] == [1, 2], "owners are restored too"
