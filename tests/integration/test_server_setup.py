"""`perdure server setup` and what the embedded server, and `perdure doctor`, know of search attributes."""

from __future__ import annotations

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.client import Client

from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from perdure.temporal.attributes import find_search_attributes
from perdure.types.interface import (
    AGENT_ATTRIBUTE,
    PENDING_ATTRIBUTE,
    SEARCH_ATTRIBUTES,
    STATUS_ATTRIBUTE,
    TENANT_ATTRIBUTE,
    USER_ATTRIBUTE,
)
from tests.integration.test_embedded_server import home  # noqa: F401 - a fixture
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.namespaces import a_namespace, indexed_namespace

pytestmark = pytest.mark.server


async def test_the_embedded_server_has_them_also_with_an_older_database(home: Home) -> None:  # noqa: F811 - the fixture
    client = await Client.connect((await ensure_server()).address)
    assert (await find_search_attributes(client.service_client, "default")).names == tuple(SEARCH_ATTRIBUTES)
    request = RemoveSearchAttributesRequest(
        namespace="default", search_attributes=[STATUS_ATTRIBUTE, PENDING_ATTRIBUTE]
    )
    await client.operator_service.remove_search_attributes(request)
    assert (await find_search_attributes(client.service_client, "default")).missing == (
        STATUS_ATTRIBUTE,
        PENDING_ATTRIBUTE,
    )
    await stop_server(home)
    client = await Client.connect((await ensure_server()).address)
    assert (await find_search_attributes(client.service_client, "default")).names == tuple(SEARCH_ATTRIBUTES)
    await indexed_namespace((await ensure_server()).address, "mine")
    assert (await find_search_attributes(client.service_client, "mine")).names == tuple(SEARCH_ATTRIBUTES)


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(engine, monkeypatch)


async def test_setup_says_what_it_did_and_may_be_repeated(engine: Engine, cli: Commands) -> None:
    name = (await a_namespace(engine.address)).namespace
    doctor = await cli("doctor", "-n", name)
    assert doctor.code == 0
    assert f"warn  search attrs   missing: {AGENT_ATTRIBUTE}, {STATUS_ATTRIBUTE}, {PENDING_ATTRIBUTE}" in doctor.out
    assert "`perdure server setup` registers them" in doctor.out

    first = await cli("server", "setup", "-n", name, "--address", engine.address)
    assert (first.code, first.err) == (0, "")
    assert first.out.splitlines() == [
        f"namespace {name} at {engine.address}",
        f"added  {AGENT_ATTRIBUTE} (Keyword)",
        f"added  {STATUS_ATTRIBUTE} (Keyword)",
        f"added  {PENDING_ATTRIBUTE} (Int)",
        f"added  {TENANT_ATTRIBUTE} (Keyword)",
        f"added  {USER_ATTRIBUTE} (Keyword)",
    ]
    again = (await cli("server", "setup", "-n", name, "--json")).json
    assert again == {"address": engine.address, "namespace": name, "added": [], "there": list(SEARCH_ATTRIBUTES)}
    assert (
        f"ok    search attrs   {AGENT_ATTRIBUTE}, {STATUS_ATTRIBUTE}, {PENDING_ATTRIBUTE}"
        in (await cli("doctor", "-n", name)).out
    )


async def test_setup_says_what_is_in_its_way(engine: Engine, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = await cli("server", "setup", "-n", "nowhere")
    assert missing.code == 4
    assert "error: there is no namespace 'nowhere'" in missing.err

    client = await a_namespace(engine.address)
    other = {STATUS_ATTRIBUTE: IndexedValueType.INDEXED_VALUE_TYPE_INT}
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=other)
    await client.operator_service.add_search_attributes(request)
    taken = await cli("server", "setup", "-n", client.namespace)
    assert taken.code == 4
    assert f"{STATUS_ATTRIBUTE} is of type Int and must be Keyword" in taken.err
    assert (await find_search_attributes(client.service_client, client.namespace)).names == (), "nothing was changed"
    assert f"{STATUS_ATTRIBUTE} is of type Int and must be Keyword" in (await cli("doctor", "-n", client.namespace)).out

    monkeypatch.delenv("TEMPORAL_ADDRESS")
    nothing = await cli("server", "setup")
    assert nothing.code == 4
    assert "no Temporal server is configured" in nothing.err
