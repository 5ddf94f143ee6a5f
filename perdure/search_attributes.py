"""The search attributes of a namespace: which of perdure's it has, and how it gets them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from weakref import WeakKeyDictionary

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client as TemporalClient
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode, ServiceClient

from .errors import RuntimeSetupError
from .types.indexing import AGENT, ATTRIBUTES

AGAIN = 60.0
"""Seconds after which a namespace is asked again what it has: so long does ``perdure server setup`` take to be seen."""
_PATIENCE = timedelta(seconds=2)
"""A start, or a model call's reply, does not wait longer for a server that is slow to say what it has."""
_NO_RIGHT = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED)
"""What a server says whose operator service is not for everybody: Temporal Cloud's, for instance."""
_ALIASED = re.compile(r"(?:Custom)?([A-Za-z]+?)(?:\d+|Field)")
"""The column behind an attribute of a namespace, which says its type: ``Keyword01``, ``Int03``."""
_CLOUD = "On Temporal Cloud: tcld namespace search-attributes add, or the namespace's page."


@dataclass(frozen=True, slots=True)
class Found:
    """What a namespace has of :data:`ATTRIBUTES`."""

    names: tuple[str, ...]
    """Those that are there with their types."""
    wrong: Mapping[str, str]
    """Those of another type, and which."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Those that are not there, in any type."""
        return tuple(name for name in ATTRIBUTES if name not in self.names and name not in self.wrong)

    def __str__(self) -> str:
        """What is wrong, in a line; "" where all are there."""
        said = [f"missing: {', '.join(self.missing)}"] if self.missing else []
        said += [f"{name} is of type {kind} and must be {ATTRIBUTES[name]}" for name, kind in self.wrong.items()]
        return "; ".join(said)


async def find(service: ServiceClient, namespace: str) -> Found:
    """What ``namespace`` has. Raises ``RPCError``."""
    try:
        asked = ListSearchAttributesRequest(namespace=namespace)
        listed = await service.operator_service.list_search_attributes(asked, timeout=_PATIENCE)
    except RPCError as error:
        if error.status not in _NO_RIGHT:
            raise
        types = await _aliases(service, namespace)
    else:
        types = {name: _type_name(kind) for name, kind in listed.custom_attributes.items()}
    here = {name: types[name] for name in ATTRIBUTES if name in types}
    return Found(
        tuple(name for name, kind in here.items() if kind == ATTRIBUTES[name]),
        {name: kind for name, kind in here.items() if kind != ATTRIBUTES[name]},
    )


async def _aliases(service: ServiceClient, namespace: str) -> dict[str, str]:
    """The same from the namespace's description, which every client may read."""
    request = DescribeNamespaceRequest(namespace=namespace)
    described = await service.workflow_service.describe_namespace(request, timeout=_PATIENCE)
    columns = described.config.custom_search_attribute_aliases
    return {name: match[1] for column, name in columns.items() if (match := _ALIASED.fullmatch(column))}


async def register(service: ServiceClient, namespace: str) -> tuple[str, ...]:
    """Give ``namespace`` the attributes that it lacks, and say which. Raises ``RuntimeSetupError``."""
    try:
        found = await find(service, namespace)
        if found.wrong:
            raise RuntimeSetupError(
                f"namespace {namespace!r} has another search attribute of that name: {found}",
                hint="Remove or rename it. Until then runs are served without; the inbox asks every open run.",
            )
        if found.missing:
            wanted = {name: type_of(ATTRIBUTES[name]) for name in found.missing}
            request = AddSearchAttributesRequest(namespace=namespace, search_attributes=wanted)
            await service.operator_service.add_search_attributes(request)
    except RPCError as error:
        raise _refused(namespace, error) from error
    return found.missing


def _refused(namespace: str, error: RPCError) -> RuntimeSetupError:
    if error.status in _NO_RIGHT:
        wanted = " ".join(f'--search-attribute "{name}={kind}"' for name, kind in ATTRIBUTES.items())
        return RuntimeSetupError(
            f"you may not register search attributes in namespace {namespace!r}: {error.message}",
            hint=f"Have an administrator do it. {_CLOUD} They are: {wanted}",
        )
    if error.status is RPCStatusCode.NOT_FOUND:
        way_out = "Name another one (--namespace), or create it: temporal operator namespace create."
        return RuntimeSetupError(f"there is no namespace {namespace!r}: {error.message}", hint=way_out)
    return RuntimeSetupError(f"namespace {namespace!r} does not take the search attributes: {error.message}")


@dataclass(slots=True)
class _Known:
    found: Found | None = None
    until: float = 0.0
    """When it is to be asked for again: ``time.monotonic()``."""
    asking: bool = False


_known: WeakKeyDictionary[TemporalClient, _Known] = WeakKeyDictionary()


async def known(temporal: TemporalClient) -> Found | None:
    """What the client's namespace has, as it was seen last; asked for now and then. None where it cannot be told.

    Never raises: nothing depends on it but how quickly runs are found.
    """
    entry = _known.setdefault(temporal, _Known())
    if time.monotonic() < entry.until or (entry.asking and entry.found is not None):
        return entry.found
    entry.asking = True
    try:
        entry.found = await find(temporal.service_client, temporal.namespace)
    except RPCError:  # it stays as it was: a server that is away has lost nothing
        pass
    finally:
        entry.asking, entry.until = False, time.monotonic() + AGAIN
    return entry.found


def forget(temporal: TemporalClient) -> None:
    """What was known is wrong: the next one asks."""
    _known.pop(temporal, None)


async def of_start(temporal: TemporalClient, agent: str) -> TypedSearchAttributes:
    """What a run of ``agent`` is started with: its name, where the namespace has an attribute for it."""
    found = await known(temporal)
    if found is None or AGENT not in found.names:
        return TypedSearchAttributes.empty
    return typed({AGENT: agent})


def typed(values: Mapping[str, object]) -> TypedSearchAttributes:
    """Texts are keywords, numbers are whole."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_int(name), value)
            if isinstance(value, int)
            else SearchAttributePair(SearchAttributeKey.for_keyword(name), str(value))
            for name, value in values.items()
        ]
    )


def refuses(error: RPCError) -> bool:
    """Whether the server refuses a start, or a query, for want of a search attribute."""
    return error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message


def type_of(name: str) -> IndexedValueType.ValueType:
    """``"Keyword"`` as Temporal's interface has it."""
    return IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{name.upper()}")


def _type_name(kind: IndexedValueType.ValueType) -> str:
    words = IndexedValueType.Name(kind).removeprefix("INDEXED_VALUE_TYPE_").split("_")
    return "".join(word.capitalize() for word in words)
