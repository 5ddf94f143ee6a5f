"""Search attributes of a namespace: which of them exist, and what a run is started with."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client as TemporalClient
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode, ServiceClient

from ..errors import RuntimeSetupError
from ..types.interface import AGENT_ATTRIBUTE, SEARCH_ATTRIBUTES, TENANT_ATTRIBUTE, USER_ATTRIBUTE
from .errors import DENIED_STATUSES, build_namespace_error

RECHECK_SECONDS = 60.0
"""Seconds after which a namespace's attributes are queried again: the delay until ``perdure server setup`` takes
effect."""
RPC_TIMEOUT = timedelta(seconds=2)
"""A start, or a model call's reply, does not wait longer for a slow server."""
_ALIAS_COLUMN = re.compile(r"(?:Custom)?([A-Za-z]+?)(?:\d+|Field)")
"""The column of a namespace's attribute, which gives its type: ``Keyword01``, ``Int03``."""
_CLOUD_HINT = "On Temporal Cloud: tcld namespace search-attributes add, or the namespace's page."


@dataclass(frozen=True, slots=True)
class NamespaceAttributes:
    """The attributes of :data:`SEARCH_ATTRIBUTES` in a namespace."""

    names: tuple[str, ...]
    """Attributes with the right type."""
    mistyped: Mapping[str, str]
    """Attributes of another type, with that type."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Attributes that are missing in any type."""
        return tuple(name for name in SEARCH_ATTRIBUTES if name not in self.names and name not in self.mistyped)

    def __str__(self) -> str:
        """The problems, in a line; "" if all attributes exist."""
        problems = [f"missing: {', '.join(self.missing)}"] if self.missing else []
        for name, kind in self.mistyped.items():
            problems.append(f"{name} is of type {kind} and must be {SEARCH_ATTRIBUTES[name]}")
        return "; ".join(problems)


async def find_search_attributes(service: ServiceClient, namespace: str) -> NamespaceAttributes:
    """Query the search attributes of ``namespace``. Raises ``RPCError``."""
    try:
        request = ListSearchAttributesRequest(namespace=namespace)
        response = await service.operator_service.list_search_attributes(request, timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status not in DENIED_STATUSES:
            raise
        types = await _read_aliases(service, namespace)
    else:
        types = {name: _format_attribute_type(kind) for name, kind in response.custom_attributes.items()}
    present_types = {name: types[name] for name in SEARCH_ATTRIBUTES if name in types}
    return NamespaceAttributes(
        tuple(name for name, kind in present_types.items() if kind == SEARCH_ATTRIBUTES[name]),
        {name: kind for name, kind in present_types.items() if kind != SEARCH_ATTRIBUTES[name]},
    )


async def _read_aliases(service: ServiceClient, namespace: str) -> dict[str, str]:
    """Read the same from the namespace's description, which every client may read."""
    request = DescribeNamespaceRequest(namespace=namespace)
    described = await service.workflow_service.describe_namespace(request, timeout=RPC_TIMEOUT)
    columns = described.config.custom_search_attribute_aliases
    return {name: match[1] for column, name in columns.items() if (match := _ALIAS_COLUMN.fullmatch(column))}


async def register_search_attributes(service: ServiceClient, namespace: str) -> tuple[str, ...]:
    """Register the missing attributes in ``namespace``, and return their names. Raises ``RuntimeSetupError``."""
    try:
        attributes = await find_search_attributes(service, namespace)
        if attributes.mistyped:
            raise RuntimeSetupError(
                f"namespace {namespace!r} has another search attribute of that name: {attributes}",
                hint="Remove or rename it. Until then runs have no such attributes; the inbox queries every open run.",
            )
        if attributes.missing:
            types = {name: parse_attribute_type(SEARCH_ATTRIBUTES[name]) for name in attributes.missing}
            request = AddSearchAttributesRequest(namespace=namespace, search_attributes=types)
            await service.operator_service.add_search_attributes(request)
    except RPCError as error:
        raise _build_registration_error(namespace, error) from error
    return attributes.missing


def _build_registration_error(namespace: str, error: RPCError) -> RuntimeSetupError:
    if error.status in DENIED_STATUSES:
        options = " ".join(f'--search-attribute "{name}={kind}"' for name, kind in SEARCH_ATTRIBUTES.items())
        return RuntimeSetupError(
            f"no permission to register search attributes in namespace {namespace!r}: {error.message}",
            hint=f"Have an administrator do it. {_CLOUD_HINT} They are: {options}",
        )
    if error.status is RPCStatusCode.NOT_FOUND:
        return build_namespace_error(namespace)
    return RuntimeSetupError(f"namespace {namespace!r} refuses the search attributes: {error.message}")


@dataclass(slots=True)
class _AttributesEntry:
    attributes: NamespaceAttributes | None = None
    expires_at: float = 0.0
    """Time of the next query, of ``time.monotonic()``."""
    is_refreshing: bool = False


_attributes_cache: WeakKeyDictionary[TemporalClient, _AttributesEntry] = WeakKeyDictionary()


async def get_search_attributes(temporal: TemporalClient) -> NamespaceAttributes | None:
    """Return the attributes of the client's namespace, cached for ``RECHECK_SECONDS``. None if they are unknown.

    Never raises: they only make finding runs quicker.
    """
    entry = _attributes_cache.setdefault(temporal, _AttributesEntry())
    if time.monotonic() < entry.expires_at or (entry.is_refreshing and entry.attributes is not None):
        return entry.attributes
    entry.is_refreshing = True
    try:
        entry.attributes = await find_search_attributes(temporal.service_client, temporal.namespace)
    except RPCError:  # the cached value stays: an unreachable server has lost nothing
        pass
    finally:
        entry.is_refreshing, entry.expires_at = False, time.monotonic() + RECHECK_SECONDS
    return entry.attributes


def forget_search_attributes(temporal: TemporalClient) -> None:
    """Drop the cached attributes: the next call queries them."""
    _attributes_cache.pop(temporal, None)


async def build_start_attributes(temporal: TemporalClient, start: Mapping[str, Any]) -> TypedSearchAttributes:
    """Return the attributes of a new run with the input ``start``: its agent, tenant and user, if the namespace has
    attributes for them."""
    attributes = await get_search_attributes(temporal)
    known = () if attributes is None else attributes.names
    fields = {AGENT_ATTRIBUTE: "agent", TENANT_ATTRIBUTE: "tenant", USER_ATTRIBUTE: "user"}
    wanted = {name: start[field] for name, field in fields.items() if start.get(field) is not None and name in known}
    return build_search_attributes(wanted) if wanted else TypedSearchAttributes.empty


def build_search_attributes(values: Mapping[str, object]) -> TypedSearchAttributes:
    """Build attributes from values: texts are keywords, numbers are integers."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_int(name), value)
            if isinstance(value, int)
            else SearchAttributePair(SearchAttributeKey.for_keyword(name), str(value))
            for name, value in values.items()
        ]
    )


def parse_attribute_type(name: str) -> IndexedValueType.ValueType:
    """Convert ``"Keyword"`` into Temporal's value."""
    return IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{name.upper()}")


def _format_attribute_type(kind: IndexedValueType.ValueType) -> str:
    words = IndexedValueType.Name(kind).removeprefix("INDEXED_VALUE_TYPE_").split("_")
    return "".join(word.capitalize() for word in words)
