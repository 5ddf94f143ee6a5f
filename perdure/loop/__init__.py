"""The loop's decisions: pure functions over plain data. No I/O, no clock, no Temporal.

:func:`.decide.decide` returns the next step of a state; the ``apply`` functions change the state after a step's
outcome. The driver of the loop (the workflow, or a test in process) carries out the steps and passes their outcomes
back. ``refused_content``, ``transcript`` and the view in ``compaction`` work on messages, for the activities: the
workflow has none.
"""
