"""``perdure env``: point the ``temporal`` CLI at the server that perdure uses."""

from __future__ import annotations

import asyncio
import shlex

from .options import (
    AddressOption,
    JsonOption,
    NamespaceOption,
    Output,
    OutputOption,
    ProfileOption,
    chosen,
    print_json,
)


def env(
    address: AddressOption = None,
    namespace: NamespaceOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Print exports for the temporal CLI: eval "$(perdure env)". Starts nothing, and prints no keys."""
    from ..embedded.address import resolve

    target = asyncio.run(resolve(address=address, namespace=namespace, profile=profile))
    variables = {"TEMPORAL_ADDRESS": target.address, "TEMPORAL_NAMESPACE": target.namespace}
    if profile:  # carries the keys and certificates
        variables["TEMPORAL_PROFILE"] = profile
    output = chosen(output, as_json)
    if output is not Output.TEXT:
        print_json(variables, output=output)
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
