"""The loop's decisions: pure functions over plain data. No I/O, no clock, no Temporal.

:func:`.decide.decide` returns the next step of a state; the ``apply`` functions change the state after a step's
outcome. The driver of the loop (the workflow, or a test in process) carries out the steps and passes their outcomes
back. ``refused_content``, ``transcript`` and the view in ``compaction`` work on messages, for the activities: the
workflow has none.
"""

RULES = 1
"""The version of the rules by which ``decide`` and the ``apply`` functions change a state. A released change of what
they do counts it up, and keeps the earlier rules for executions that began by them (``RunState.rules``), whose
histories are replayed. ``scripts/lint_rules.py`` notices the change."""
