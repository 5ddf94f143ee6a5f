"""The smallest durable agent: a name, a model, a question. It starts what it needs on this machine."""

from perdure import Agent

poet = Agent("poet", "openai:gpt-5-mini", instructions="You answer in one line of verse.")

if __name__ == "__main__":
    print(poet.call_sync("What outlives a crash?").content)
