"""Finds the Temporal server that a program uses, and connects to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError, TLSConfig

from ..errors import RuntimeSetupError, ServerUnreachableError
from .home import Home, current_home
from .record import ServerInfo, find_running_server, read_record

CONNECT_SECONDS = 5.0
"""Seconds after which a server without an answer counts as unreachable."""

_DEFAULT_ADDRESS = "localhost:7233"


@dataclass(frozen=True)
class ServerTarget:
    """A server, and the origin of its address."""

    config: ClientConnectConfig
    """Arguments for ``Client.connect(**config)``; ``target_host`` and ``namespace`` are always set."""
    origin: str
    """The origin for people: "TEMPORAL_ADDRESS", "the profile 'prod'", "the embedded server"."""
    embedded: ServerInfo | None = None
    """Set when it is this machine's embedded server."""

    @property
    def address(self) -> str:
        """host:port."""
        return self.config["target_host"]

    @property
    def namespace(self) -> str:
        """The Temporal namespace."""
        return self.config["namespace"]


async def resolve_target(
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    api_key: str | None = None,
    tls: bool | TLSConfig | None = None,
    start: bool = False,
    home: Home | None = None,
) -> ServerTarget:
    """Find the server: from the arguments, then from TEMPORAL_* or a profile, then the running embedded server.

    Args:
        start: start the embedded server if no server is configured and none runs.

    Raises:
        ServerUnreachableError: no server is configured, no embedded server runs, and ``start`` is false.
        RuntimeSetupError: the profile cannot be read, or the embedded server cannot be started.
    """
    config = _load_temporal_config(profile)
    arguments: dict[str, Any] = {"target_host": address, "namespace": namespace, "api_key": api_key, "tls": tls}
    if api_key and tls is None and "tls" not in config:
        arguments["tls"] = True  # as in envconfig: a key in clear text would be a leak
    config.update({name: value for name, value in arguments.items() if value is not None})  # type: ignore[typeddict-item]  # names of the TypedDict, from a dict
    config.setdefault("namespace", "default")
    named_profile = profile or os.environ.get("TEMPORAL_PROFILE")
    if "target_host" not in config and named_profile:
        config["target_host"] = _DEFAULT_ADDRESS
    if "target_host" in config:
        return ServerTarget(
            config,
            _describe_origin(address, named_profile),
            embedded=_find_embedded_server(config["target_host"], home),
        )
    if start:
        from .server import ensure_server

        server: ServerInfo | None = await ensure_server(home)
    else:
        server = await find_running_server(home)
    if server is None:
        raise ServerUnreachableError(
            "no Temporal server is configured and no embedded server runs",
            hint="Start one with `perdure server start`, or set TEMPORAL_ADDRESS.",
        )
    return ServerTarget(
        {"target_host": server.address, "namespace": config["namespace"]}, "the embedded server", embedded=server
    )


def _find_embedded_server(address: str, home: Home | None) -> ServerInfo | None:
    """Return the embedded server if it is at ``address`` (as with `perdure env`): the store of its runs is on this
    machine."""
    record = read_record(home or current_home())
    return record if record is not None and record.address == address else None


async def connect(target: ServerTarget, *, seconds: float = CONNECT_SECONDS, **arguments: Any) -> Client:
    """Connect a Temporal client to ``target``; ``arguments`` are further ones of ``Client.connect``, like plugins.

    Raises:
        ServerUnreachableError: no Temporal server answers within ``seconds``.
    """
    connecting: Mapping[str, Any] = {**target.config, **arguments}
    try:
        async with asyncio.timeout(seconds):
            return await Client.connect(**connecting)
    except TimeoutError as error:
        raise _build_unreachable_error(target, f"no answer within {seconds:g} s", away=True) from error
    except (RuntimeError, RPCError) as error:
        # The bridge raises RuntimeError for every failure before the first answer.
        if isinstance(error, RuntimeError) and not str(error).startswith("Failed client connect"):
            raise
        reason = _explain_connect_error(str(error))
        raise _build_unreachable_error(target, reason, away=reason in _AWAY_REASONS) from error


def _load_temporal_config(profile: str | None) -> ClientConnectConfig:
    try:
        return ClientConfig.load_client_connect_config(profile)
    except RuntimeError as error:
        raise RuntimeSetupError(
            f"Temporal's configuration cannot be used: {error}",
            hint="Check the profile's name, TEMPORAL_PROFILE and TEMPORAL_CONFIG_FILE.",
        ) from error


def _describe_origin(address: str | None, profile: str | None) -> str:
    if address:
        return "the given address"
    if os.environ.get("TEMPORAL_ADDRESS"):
        return "TEMPORAL_ADDRESS"
    return f"the profile {profile!r}" if profile else "the profile 'default' of Temporal's configuration file"


def _explain_connect_error(text: str) -> str:
    """Return the cause of the bridge's error."""
    lower_text = text.lower()
    for sign, meaning in (
        ("connection refused", "connection refused"),
        ("dns error", "the host name is not known"),
        ("invalidcertificate", "its TLS certificate is not trusted"),
        ("tls", "the TLS handshake failed"),
        ("unauthenticated", "the API key or certificate is refused"),
        ("permissiondenied", "access is denied"),
        ("call error after connection", "the program at this address is not a Temporal server"),
    ):
        if sign in lower_text:
            return meaning
    return text.removeprefix("Failed client connect: ")[:300]


_AWAY_REASONS = ("connection refused", "the host name is not known")
"""Also of a server that is restarted: a container's name is unknown while it does not run."""


def _build_unreachable_error(target: ServerTarget, reason: str, *, away: bool) -> ServerUnreachableError:
    if target.embedded is not None:
        hint = "See `perdure server status`, or start it again with `perdure server start`."
    else:
        hint = "Check the address and that the server runs, or unset it to use this machine's embedded server."
    error = ServerUnreachableError(
        f"no Temporal server at {target.address} (from {target.origin}): {reason}", hint=hint
    )
    error.away = away
    return error
