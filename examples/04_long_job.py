"""A long job that survives `kill -9` of this script: start it again, and it goes on where it was."""

import time

from perdure import Agent, tool


@tool(idempotent=True)  # so an audit that was cut off is made again; one that was finished never is
def audit(quarter: str) -> str:
    """Audit the books of a quarter."""
    print(f"auditing {quarter} …", flush=True)
    time.sleep(2)
    return f"{quarter}: 3 invoices are missing"


INSTRUCTIONS = "Audit the quarters of a year one after another, then sum up."
auditor = Agent("auditor", "openai:gpt-5-mini", instructions=INSTRUCTIONS, tools=[audit])

if __name__ == "__main__":
    response = auditor.call_sync("Audit 2025.", id="audit-2025")  # the id says which run: a new one, or the one begun
    print(response.content)
    print(f"{response.calls} model calls, {response.usage.total_tokens} tokens")
