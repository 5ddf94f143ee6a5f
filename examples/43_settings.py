"""Settings have one spelling; each provider gets them under its own names. One that it lacks is refused at once."""

from perdure import Agent
from perdure.errors import SettingsError

settings = {"max_tokens": 300, "stop": ["END"], "temperature": 0.2}
writer = Agent(
    "writer",
    "openai:gpt-5-mini",
    instructions="You write one line.",
    settings=settings,  # for anthropic: and google: stop is called stop_sequences, and they get it so
    provider_options={"service_tier": "flex"},  # what only this provider has, sent as it is
)

if __name__ == "__main__":
    print(writer.call_sync("About harbours.").content)
    print(writer.call_sync("About storms.", override={"settings": {"temperature": 1, "stop": None}}).content)
    try:
        Agent("painter", "openai:gpt-5-mini", settings={"top_k": 40})
    except SettingsError as error:
        print(f"refused: {error.message}")
