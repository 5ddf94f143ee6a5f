"""``perdure env``: point the ``temporal`` CLI at the server that perdure uses."""

from __future__ import annotations

import asyncio
import shlex

from ..printing import print_line
from .options import Output, OutputOptions, ServerOptions, print_json


def env(server: ServerOptions, output: OutputOptions) -> None:
    """Print exports for the temporal CLI: eval "$(perdure env)". Starts nothing, and prints no keys."""
    from ..embedded.address import resolve

    target = asyncio.run(resolve(address=server.address, namespace=server.namespace, profile=server.profile))
    variables = {"TEMPORAL_ADDRESS": target.address, "TEMPORAL_NAMESPACE": target.namespace}
    if server.profile:  # carries the keys and certificates
        variables["TEMPORAL_PROFILE"] = server.profile
    if output is not Output.TEXT:
        print_json(variables, output=output)
        return
    for name, value in variables.items():
        print_line(f"export {name}={shlex.quote(value)}")
