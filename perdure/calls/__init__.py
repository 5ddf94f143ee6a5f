"""The stages around the bare call of a model or a tool. ``worker.engine`` builds them; the order of a model call:

tracing → inline tools → owner → failures → prepare → journal → events → transcript → iteration → compaction → hooks →
reply cache → budget → the call.

A tool call passes tracing, failures, prepare, journal, events, the approval rules (the iteration stage) and hooks.
:mod:`.stage` has the calls, the replies and the protocols; :mod:`.interceptor` attaches the stages to Temporal. The
iteration stage is in :mod:`perdure.activities`, because it needs the agents.
"""
