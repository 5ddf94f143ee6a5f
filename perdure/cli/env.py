"""``perdure env``: point the ``temporal`` CLI at the server that perdure uses."""

from __future__ import annotations

import asyncio
import shlex

from .options import AddressOption, NamespaceOption, ProfileOption


def env(address: AddressOption = None, namespace: NamespaceOption = None, profile: ProfileOption = None) -> None:
    """Print exports for the temporal CLI: eval "$(perdure env)". Starts nothing, and prints no keys."""
    from ..embedded.address import resolve

    target = asyncio.run(resolve(address=address, namespace=namespace, profile=profile))
    variables = {"TEMPORAL_ADDRESS": target.address, "TEMPORAL_NAMESPACE": target.namespace}
    if profile:  # carries the keys and certificates
        variables["TEMPORAL_PROFILE"] = profile
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
