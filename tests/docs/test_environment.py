"""The reference of environment variables says what is read, all of it and no more."""

from __future__ import annotations

import re
from pathlib import Path

from temporalio.envconfig import ClientConfig

from tests.docs.loopback import ROOT

PAGE = (ROOT / "docs/reference/environment.md").read_text()


def documented(prefix: str) -> set[str]:
    """The variables of the page that begin with ``prefix``."""
    return set(re.findall(rf"`({prefix}[A-Z_]+)`", PAGE))


def test_the_variables_of_perdure_are_those_that_the_code_reads() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "perdure").rglob("*.py"))
    read = set(re.findall(r"(?:environ(?:\.get\(|\[)|_VARIABLE = )\"(PERDURE_[A-Z_]+)\"", sources))
    assert documented("PERDURE_") == read


def test_the_variables_of_temporal_are_read_by_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("pem")
    env = {"TEMPORAL_CONFIG_FILE": str(tmp_path / "temporal.toml"), "TEMPORAL_PROFILE": "prod"}
    (tmp_path / "temporal.toml").write_text('[profile.prod]\naddress = "from-file:7233"\n')
    assert ClientConfig.load_client_connect_config(override_env_vars=env) == {"target_host": "from-file:7233"}
    for name in documented("TEMPORAL_") - env.keys():
        value = str(file) if name.endswith("_PATH") else "true"
        changed = ClientConfig.load_client_connect_config(override_env_vars={**env, name: value})
        assert changed != {"target_host": "from-file:7233"}, f"{name} changes nothing"
