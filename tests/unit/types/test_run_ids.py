"""Names that may be chosen, and what is made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidInputError, RunIdError
from perdure.types.run_ids import (
    RESERVED_PREFIXES,
    build_run_id,
    check_run_name,
    format_child_run_id,
    get_root_id,
    get_tenant_prefix,
    read_tenant,
    split_run_id,
)

TENANTS = st.text(min_size=1, max_size=30)
NAMES = st.text(max_size=60)


def try_name(name: str, tenant: str | None) -> str | None:
    try:
        return check_run_name(name, tenant)
    except RunIdError:
        return None


@given(NAMES, TENANTS)
def test_a_name_that_is_taken_names_its_tenant_and_nothing_else(name: str, tenant: str) -> None:
    run_id = try_name(name, tenant)
    if run_id is None:
        return
    assert split_run_id(run_id) == (tenant, name.removeprefix(get_tenant_prefix(tenant)))
    assert get_root_id(run_id) == run_id
    assert read_tenant(run_id, None) == read_tenant(run_id, tenant) == tenant
    child = format_child_run_id(run_id, "scope", 3)
    assert get_root_id(child) == run_id
    assert split_run_id(child)[0] == tenant
    assert try_name(child, tenant) is None


@given(NAMES, TENANTS, TENANTS)
def test_no_name_reaches_another_tenants_runs(name: str, tenant: str, other: str) -> None:
    prefix = get_tenant_prefix(other)
    for given_name in (name, prefix + name):
        for own in (None, tenant):
            run_id = try_name(given_name, own)
            assert run_id is None or own == other or not run_id.startswith(prefix)


@given(TENANTS, TENANTS)
def test_each_tenant_has_one_prefix(tenant: str, other: str) -> None:
    assert (get_tenant_prefix(tenant) == get_tenant_prefix(other)) == (tenant == other)
    assert get_tenant_prefix(tenant).count("/") == 1


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/", "x\ny", "a\u202eb", "a\x00", "\ud800", "x" * 901, "é" * 451]
    + [f"{prefix}x" for prefix in RESERVED_PREFIXES]
    + [prefix.upper() + "x" for prefix in RESERVED_PREFIXES],
)
def test_names_that_nobody_may_choose(name: str) -> None:
    for tenant in (None, "acme"):
        with pytest.raises(RunIdError, match="this id cannot be used"):
            check_run_name(name, tenant)


@pytest.mark.parametrize("name", ["order-7", "ana@example.com", "…", "a b", "x" * 900, "C:\\temp", "%2F", "日本"])
def test_names_that_anybody_may_choose(name: str) -> None:
    assert check_run_name(name) == name == build_run_id(name, None)


@pytest.mark.parametrize("name", [7, None, b"x", ["x"]])
def test_what_is_no_text_is_no_name(name: object) -> None:
    with pytest.raises(InvalidInputError, match="must be text"):
        check_run_name(name)


@pytest.mark.parametrize(
    ("id", "tenant"),
    [
        ("order-7", "acme"),
        ("@beta/order-7", "acme"),
        ("@x", None),
        ("@/x", "acme"),
        ("@ac%6De/x", None),
        ("@a b/x", None),
    ],
)
def test_an_id_and_an_input_that_disagree(id: str, tenant: str | None) -> None:
    with pytest.raises(InvalidInputError, match="begins with"):
        read_tenant(id, tenant)


def test_the_ids_of_two_children_say_nothing_of_each_other() -> None:
    first, second = (format_child_run_id("order-7", "scope", op) for op in (2, 3))
    assert first.rpartition("-")[0] != second.rpartition("-")[0]
    assert first == format_child_run_id("order-7", "scope", 2)
    assert first != format_child_run_id("order-7", "another execution", 2)
