"""`perdure server setup` and what the embedded server, and `perdure doctor`, know of search attributes."""

from __future__ import annotations

import json

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.client import Client

from perdure.embedded.address import resolve
from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from perdure.search_attributes import find
from perdure.types.indexing import AGENT, ATTRIBUTES, PENDING, STATUS
from tests.integration.test_embedded_server import home, perdure  # noqa: F401 - a fixture
from tests.support.namespaces import a_namespace

pytestmark = pytest.mark.server


async def test_the_embedded_server_has_them_also_with_an_older_database(home: Home) -> None:  # noqa: F811 - the fixture
    client = await Client.connect((await ensure_server()).address)
    assert (await find(client.service_client, "default")).names == tuple(ATTRIBUTES)
    request = RemoveSearchAttributesRequest(namespace="default", search_attributes=[STATUS, PENDING])
    await client.operator_service.remove_search_attributes(request)
    assert (await find(client.service_client, "default")).missing == (STATUS, PENDING)
    await stop_server(home)
    client = await Client.connect((await ensure_server()).address)
    assert (await find(client.service_client, "default")).names == tuple(ATTRIBUTES)
    await resolve(namespace="mine", start=True)
    assert (await find(client.service_client, "mine")).names == tuple(ATTRIBUTES)


async def test_setup_says_what_it_did_and_may_be_repeated(home: Home) -> None:  # noqa: F811 - the fixture
    info = await ensure_server()
    name = (await a_namespace(info.address)).namespace
    doctor = perdure("doctor", "-n", name)
    assert doctor.returncode == 0
    assert f"warn  search attrs   missing: {AGENT}, {STATUS}, {PENDING}" in doctor.stdout
    assert "`perdure server setup` registers them" in doctor.stdout

    first = perdure("server", "setup", "-n", name, "--address", info.address)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines() == [
        f"namespace {name} at {info.address}",
        f"added  {AGENT} (Keyword)",
        f"added  {STATUS} (Keyword)",
        f"added  {PENDING} (Int)",
    ]
    again = json.loads(perdure("server", "setup", "-n", name, "--json").stdout)
    assert again == {"address": info.address, "namespace": name, "added": [], "there": list(ATTRIBUTES)}
    assert f"ok    search attrs   {AGENT}, {STATUS}, {PENDING}" in perdure("doctor", "-n", name).stdout


async def test_setup_says_what_is_in_its_way(home: Home) -> None:  # noqa: F811 - the fixture
    info = await ensure_server()
    client = await Client.connect(info.address)
    missing = perdure("server", "setup", "-n", "nowhere")
    assert missing.returncode == 4
    assert "error: there is no namespace 'nowhere'" in missing.stderr

    name = (await a_namespace(info.address)).namespace
    other = {STATUS: IndexedValueType.INDEXED_VALUE_TYPE_INT}
    request = AddSearchAttributesRequest(namespace=name, search_attributes=other)
    await client.operator_service.add_search_attributes(request)
    taken = perdure("server", "setup", "-n", name)
    assert taken.returncode == 4
    assert f"{STATUS} is of type Int and must be Keyword" in taken.stderr
    assert (await find(client.service_client, name)).names == (), "nothing was changed"
    assert f"{STATUS} is of type Int and must be Keyword" in perdure("doctor", "-n", name).stdout


async def test_setup_without_a_server(home: Home) -> None:  # noqa: F811 - the fixture
    nothing = perdure("server", "setup")
    assert nothing.returncode == 4
    assert "no Temporal server is named" in nothing.stderr
