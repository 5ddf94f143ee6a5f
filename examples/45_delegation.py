"""Agents as tools: one that is always the same (`call_translator`), and one of several by its name (`call_agent`)."""

from perdure import Agent, delegate

MODEL = "openai:gpt-5-mini"
translator = Agent("translator", MODEL, description="Translates into English.", instructions="You translate.")
plumber = Agent("plumber", MODEL, description="Knows pipes.", instructions="You answer questions about pipes.")
lawyer = Agent("lawyer", MODEL, description="Knows contracts.", instructions="You answer questions about contracts.")

desk = Agent(
    "desk",
    MODEL,
    instructions="Have what is not English translated. Then ask the one who knows, and pass on the answer.",
    subagents=[translator],  # each call is a run of its own, with a fresh history: it is told all that it needs
    tools=[delegate([plumber, lawyer])],
)

if __name__ == "__main__":
    print(desk.call_sync("Wer zahlt, wenn das Rohr bricht?").content)
