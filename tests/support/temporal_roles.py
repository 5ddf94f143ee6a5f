"""A production Temporal server: frontend, history, matching and worker as four processes, which keep everything in
PostgreSQL, as do the searches for workflows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    ListWorkflowExecutionsRequest,
    RegisterNamespaceRequest,
)
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError, RPCStatusCode

from perdure.temporal.attributes import register_search_attributes
from tests.support.go_programs import VISIBILITY_SCHEMA
from tests.support.ports import find_free_ports
from tests.support.postgres import PostgresServer
from tests.support.process_guard import ProcessGuard
from tests.support.wait import eventually

ROLES = ("history", "matching", "frontend", "worker")
NAMESPACE = "default"
_SHARDS = 4


class TemporalRoles:
    """The server. Each role can be killed, and starts again on its ports."""

    def __init__(self, programs: Path, folder: Path, postgres: PostgresServer, guard: ProcessGuard) -> None:
        ports = find_free_ports(2 * len(ROLES))
        self._rpc = dict(zip(ROLES, ports, strict=False))
        self._membership = dict(zip(ROLES, ports[len(ROLES) :], strict=True))
        self._programs = programs
        self._folder = folder
        self._postgres = postgres
        self._guard = guard
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """The frontend's."""
        return self._rpc["frontend"]

    async def start(self) -> None:
        """Make the databases, start all roles, and wait until a workflow could be started."""
        (self._folder / "config").mkdir(parents=True)
        (self._folder / "config" / "cluster.yaml").write_text(json.dumps(self._configure()))  # JSON is YAML
        (self._folder / "dynamic.yaml").write_text("")
        await asyncio.to_thread(self._create_databases)
        for role in ROLES:
            self.start_role(role)
            # On empty databases all roles write the cluster's metadata, and the losers of that race end.
            await self.wait_for_role(role)
        await self._register_namespace()

    def start_role(self, role: str) -> None:
        """Start one role, also again."""
        command = [self._programs / "temporal-server", "--root", self._folder, "--config", "config", "--env", "cluster"]
        with (self._folder / f"{role}.log").open("ab") as log:
            process = subprocess.Popen(
                [*map(str, command), "--allow-no-auth", "start", "--service", role],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[role] = process
        self._guard.add(process.pid)

    async def wait_for_role(self, role: str) -> None:
        """Until it takes connections. Starts it again where it has ended, as a supervisor does."""
        port = self._membership[role] if role == "worker" else self._rpc[role]  # which it does not listen on

        async def listens() -> bool:
            if self._processes[role].poll() is not None:
                self._guard.remove(self._processes[role].pid)
                self.start_role(role)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        await eventually(listens, deadline=120, every=0.1, what=f"Temporal's {role} role")

    async def kill_role(self, role: str) -> None:
        """SIGKILL, and wait until it is gone."""
        process = self._processes[role]
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        self._guard.remove(process.pid)

    def wait_for_end(self) -> None:
        """Until all roles have ended, which the guard has killed."""
        for process in self._processes.values():
            process.wait(60)

    def read_logs(self) -> str:
        """The last lines of each role."""
        logs = [self._folder / f"{role}.log" for role in ROLES]
        return "\n".join(f"{log.name}: {line[:500]}" for log in logs if log.exists() for line in _tail(log))

    def _create_databases(self) -> None:
        where = urlsplit(self._postgres.url)
        server = [f"--ep={where.hostname}", f"--port={where.port}", f"--user={where.username}", "--password=none"]
        tool = [str(self._programs / "temporal-sql-tool"), "--plugin=postgres12", *server]
        schemas = {
            "temporal": "--schema-name=postgresql/v12/temporal",
            "temporal_visibility": f"--schema-dir={self._programs / VISIBILITY_SCHEMA}",
        }
        for database, schema in schemas.items():
            for command in (
                ["create-database"],
                ["setup-schema", "--version=0.0"],
                ["update-schema", schema],
            ):
                done = subprocess.run([*tool, f"--database={database}", *command], capture_output=True, text=True)
                assert done.returncode == 0, done.stdout + done.stderr

    def _configure(self) -> dict[str, Any]:
        def store(database: str, connections: int) -> dict[str, Any]:
            where = urlsplit(self._postgres.url)
            return {
                "sql": {
                    "pluginName": "postgres12",
                    "databaseName": database,
                    "connectAddr": f"{where.hostname}:{where.port}",
                    "connectProtocol": "tcp",
                    "user": where.username,
                    "password": "none",
                    "maxConns": connections,
                    "maxIdleConns": connections,
                    "maxConnLifetime": "1h",
                }
            }

        own = {"enabled": True, "initialFailoverVersion": 1, "rpcName": "frontend", "rpcAddress": self.address}
        return {
            "log": {"stdout": True, "level": os.environ.get("TEST_TEMPORAL_LOG", "warn")},
            "persistence": {
                "defaultStore": "default",
                "visibilityStore": "visibility",
                "numHistoryShards": _SHARDS,
                "datastores": {"default": store("temporal", 20), "visibility": store("temporal_visibility", 5)},
            },
            "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"}},
            "services": {
                role: {
                    "rpc": {
                        "grpcPort": self._rpc[role],
                        "membershipPort": self._membership[role],
                        "bindOnLocalHost": True,
                    }
                }
                for role in ROLES
            },
            "clusterMetadata": {
                "enableGlobalNamespace": False,
                "failoverVersionIncrement": 10,
                "masterClusterName": "active",
                "currentClusterName": "active",
                "clusterInformation": {"active": own},
            },
            "dcRedirectionPolicy": {"policy": "noop"},
            "publicClient": {"hostPort": self.address},
            "dynamicConfigClient": {"filepath": str(self._folder / "dynamic.yaml"), "pollInterval": "10s"},
        }

    async def _register_namespace(self) -> None:
        """Make the namespace with perdure's search attributes, and wait until every role knows it."""
        client = await eventually(self._connect, deadline=120, every=0.2, what="Temporal's frontend")
        service = client.workflow_service

        async def registered() -> bool:
            request = RegisterNamespaceRequest(
                namespace=NAMESPACE, workflow_execution_retention_period=Duration(seconds=24 * 60 * 60)
            )
            try:
                await service.register_namespace(request)
            except RPCError as error:
                return error.status == RPCStatusCode.ALREADY_EXISTS
            return True

        async def known() -> bool:
            queue = DescribeTaskQueueRequest(namespace=NAMESPACE)
            queue.task_queue.name = "known"
            try:
                await service.list_workflow_executions(ListWorkflowExecutionsRequest(namespace=NAMESPACE))
                await service.describe_task_queue(queue)
            except RPCError:
                return False
            return True

        await eventually(registered, deadline=120, every=0.2, what="a namespace")
        await eventually(known, deadline=120, every=0.2, what="a namespace that all roles know")
        await register_search_attributes(client.service_client, NAMESPACE)

    async def _connect(self) -> TemporalClient | None:
        try:
            return await TemporalClient.connect(self.address)
        except RuntimeError:
            return None


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-5:]
