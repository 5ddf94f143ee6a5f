"""Other agent frameworks on Temporal, in the same conversation: ``make bench PEERS=1``.

Each is written as its documentation writes an agent with a tool: model calls and the tool are activities, the workflow
runs in Temporal's sandbox with what the framework's plugin passes through it, the retries of the openai SDK are off,
and timeouts and heartbeats are the framework's defaults. Neither streams, and neither keeps anything beside Temporal's
history. They run in an environment of their own (requirements/peers.txt), which has no perdure: the modules of this
package import nothing of it.
"""
