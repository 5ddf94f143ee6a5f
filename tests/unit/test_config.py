"""Settings from the environment that have a form of their own."""

from __future__ import annotations

import pytest

from perdure._config import get_outbox
from perdure.errors import RuntimeSetupError
from perdure.store import open_store


def test_the_outbox_is_chosen_by_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_OUTBOX", raising=False)
    assert get_outbox() == {}
    monkeypatch.setenv("PERDURE_OUTBOX", " webhooks = approval.*, run ; mail=*; ")
    assert get_outbox() == {"webhooks": ["approval.*", "run"], "mail": ["*"]}
    store = open_store("sqlite:///unused.db", outbox=get_outbox())
    assert store.write_options.outbox == get_outbox()


@pytest.mark.parametrize(
    ("value", "flaw"),
    [
        ("approval.*", "target=types"),
        ("=run", "target=types"),
        ("w=", "target=types"),
        ("w=run;w=turn", "each target once"),
        ("w=approvals.*", "no event that is kept has the type 'approvals"),
        ("w=model.delta", "no event that is kept"),
        ("x" * 20_000_000, "target=types"),
    ],
    ids=lambda value: value[:12],
)
def test_a_wrong_outbox_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch, value: str, flaw: str) -> None:
    monkeypatch.setattr("os.environ", {"PERDURE_OUTBOX": value})
    with pytest.raises(RuntimeSetupError, match=flaw) as refused:
        get_outbox()
    assert len(str(refused.value)) < 1000
