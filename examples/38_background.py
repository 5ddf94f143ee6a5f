"""Two agents work in background while the one that started them goes on, and one of them is told more meanwhile."""

from perdure import Agent, background, tool


@tool
def calendar(month: str) -> str:
    """What is planned in a month."""
    return {"May": "the fair, 12 to 16 May", "June": "nothing"}[month]


prices = Agent("prices", "openai:gpt-5-mini", description="Finds out what a journey costs.")
weather = Agent("weather", "openai:gpt-5-mini", description="Knows the climate of places.")
planner = Agent(
    "planner",
    "openai:gpt-5",
    instructions="Start the agents that can help at once, then look at the calendar. Tell them what you learn from it, "
    "and collect their answers when you need them.",
    tools=[calendar, *background([prices, weather])],
)

if __name__ == "__main__":
    response = planner.call_sync("Should we go to Oslo in May or in June?")
    for message in response.messages:
        for result in message.tool_results:
            print(f"{result.name}: {result.content}")
    print(response.content)
