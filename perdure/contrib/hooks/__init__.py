"""Hooks that many want: ``Agent(hooks=[TokenCollector(), redact()])``, or ``Worker(hooks=[audit_log("audit.jsonl")])``.

Each is a ``HookSet``, and opt-in. What they count is kept in ``ctx.memory``, committed with the outcomes that it is
about: it survives workers, is the same on every worker, and counts what was paid once.
"""

from .audit import AuditLog, audit_log, check_audit_log
from .notices import notify_every, warn_on_tokens
from .redaction import SECRETS, redact
from .summaries import auto_summarise
from .usage import TokenCollector, ToolUsage

__all__ = [
    "SECRETS",
    "AuditLog",
    "TokenCollector",
    "ToolUsage",
    "audit_log",
    "auto_summarise",
    "check_audit_log",
    "notify_every",
    "redact",
    "warn_on_tokens",
]
