"""The calls of a worker's activities, and the stages around them: :mod:`.pipeline` has their order.

:mod:`.call` has the calls and replies that pass through them; one stage is one module of its name. The bare calls
are in :mod:`.model`, :mod:`.tool` and :mod:`.iteration_hooks`; :mod:`.interceptor` attaches all of it to Temporal.
"""
