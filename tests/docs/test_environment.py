"""The reference of environment variables says what is read, all of it and no more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from temporalio.envconfig import ClientConfig

from perdure import _config as config
from perdure.errors import RuntimeSetupError
from tests.docs.loopback import ROOT

PAGE = (ROOT / "docs/reference/environment.md").read_text()


def documented(prefix: str) -> set[str]:
    """The variables of the page that begin with ``prefix``."""
    return {name for name in re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", PAGE) if name.startswith(prefix)}


NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
SET_OF_NAMES = re.compile(r".*_(?:VARIABLE|envs?)")
"""Constants and attributes of classes that hold names of variables: `KEYS_VARIABLE`, `key_envs`."""


def is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "os.environ.get", "os.getenv")


def names_in(node: ast.AST | None) -> Iterator[str]:
    for each in ast.walk(node) if node else ():
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and NAME.fullmatch(each.value):
            yield each.value


def variables_read(source: str) -> Iterator[str]:
    """The variables that a module reads, by name or through a constant."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=function, args=[first, *_]) if is_environment(function):
                yield from names_in(first)
            case ast.Subscript(value=value, slice=index) if is_environment(value):
                yield from names_in(index)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                if SET_OF_NAMES.fullmatch(name):
                    yield from names_in(value)


def test_the_page_has_the_variables_that_the_code_reads_and_no_others() -> None:
    read = {name for path in (ROOT / "perdure").rglob("*.py") for name in variables_read(path.read_text())}
    temporal, proxies, of_sdks = documented("TEMPORAL_"), set(re.findall(r"`(\w+_PROXY)`", PAGE)), set(READ_BY_SDKS)
    assert {"PERDURE_HOME", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "NO_COLOR"} <= read, "the search finds them"
    assert documented("") == read | temporal | proxies | of_sdks


READ_BY_SDKS = {
    "OPENAI_ORG_ID": openai.AsyncOpenAI,
    "OPENAI_PROJECT_ID": openai.AsyncOpenAI,
    "OPENAI_CUSTOM_HEADERS": openai.AsyncOpenAI,
    "ANTHROPIC_AUTH_TOKEN": anthropic.AsyncAnthropic,
    "ANTHROPIC_CUSTOM_HEADERS": anthropic.AsyncAnthropic,
}


@pytest.mark.parametrize("name", READ_BY_SDKS)
def test_the_variables_of_the_sdks_are_read_by_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in READ_BY_SDKS:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv(name, "X-Docs: value-of-docs")
    client: Any = READ_BY_SDKS[name]()
    assert "value-of-docs" in str(client.default_headers)
    line = next(line for line in PAGE.splitlines() if f"`{name}`" in line)
    assert f"| the `{client.__module__.partition('.')[0]}` SDK |" in line


OF_A_DEPLOYMENT = {"TEMPORAL_DEPLOYMENT_NAME", "TEMPORAL_WORKER_DEPLOYMENT_NAME", "TEMPORAL_WORKER_BUILD_ID"}
"""What Temporal's Worker Controller sets, and workers read."""


@pytest.mark.parametrize("name", sorted(OF_A_DEPLOYMENT))
def test_the_variables_of_a_deployment_are_read_by_perdure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in OF_A_DEPLOYMENT:
        monkeypatch.delenv(variable, raising=False)
    assert config.resolve_deployment() is None
    assert name in documented("TEMPORAL_")
    monkeypatch.setenv(name, "value-of-docs")
    with pytest.raises(RuntimeSetupError, match="value-of-docs"):
        config.resolve_deployment()


def test_the_variables_of_temporal_are_read_by_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("pem")
    env = {"TEMPORAL_CONFIG_FILE": str(tmp_path / "temporal.toml"), "TEMPORAL_PROFILE": "prod"}
    (tmp_path / "temporal.toml").write_text('[profile.prod]\naddress = "from-file:7233"\n')
    assert ClientConfig.load_client_connect_config(override_env_vars=env) == {"target_host": "from-file:7233"}
    for name in documented("TEMPORAL_") - env.keys() - OF_A_DEPLOYMENT:
        value = str(file) if name.endswith("_PATH") else "true"
        changed = ClientConfig.load_client_connect_config(override_env_vars={**env, name: value})
        assert changed != {"target_host": "from-file:7233"}, f"{name} changes nothing"
