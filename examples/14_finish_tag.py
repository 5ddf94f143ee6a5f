"""An agent that thinks aloud and marks its answer with <finish>; and what happens when it does not come to an end."""

from perdure import Agent, tool
from perdure.errors import MaxIterationsError


@tool(inline=True)
def guess(number: int) -> str:
    """Guess the number, between 1 and 100."""
    return "too low" if number < 42 else "too high" if number > 42 else "that is it"


INSTRUCTIONS = "Find the number. Think aloud before each guess."
MODEL = "openai:gpt-5-mini"

# Only what stands in <finish>…</finish> is the answer; a reply without it and without a call gets a reminder.
patient = Agent("patient", MODEL, instructions=INSTRUCTIONS, tools=[guess], finish="tag", max_iterations=20)
# After two model calls: ask for the answer as things stand (the default), or raise.
hasty = Agent("hasty", MODEL, instructions=INSTRUCTIONS, tools=[guess], finish="tag", max_iterations=2)
strict = Agent("strict", MODEL, instructions=INSTRUCTIONS, tools=[guess], max_iterations=2, on_limit="error")

if __name__ == "__main__":
    for agent in (patient, hasty):
        response = agent.call_sync("Which number is it?")
        print(f"{agent.name}: {response.content} ({response.finish_reason}, {response.iterations} model calls)")
    try:
        strict.call_sync("Which number is it?")
    except MaxIterationsError as error:
        print(f"strict: {error}")
