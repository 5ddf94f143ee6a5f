"""What is around the bare call of a model or a tool: stages, in five pipelines, one for each kind of activity.

:mod:`.pipeline` has the pipelines, from the outside in; :mod:`.call` the calls and replies that pass them;
:mod:`.interceptor` attaches them to Temporal.
"""
