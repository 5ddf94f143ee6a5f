"""A model of your own: any server that speaks OpenAI's chat completions (Ollama, vLLM, llama.cpp, LM Studio, …)."""

import os

from perdure import Agent, register_provider
from perdure.providers import OpenAIChat

# The key is read from the variable with each call, so it is in no file; a server that needs none takes any text.
url = os.environ.get("LOCAL_MODEL_URL", "http://localhost:11434/v1")
register_provider("local", OpenAIChat(base_url=url, api_key_env="LOCAL_MODEL_KEY"))

poet = Agent("poet", "local:llama3.2", instructions="You write one line.", settings={"temperature": 0.7})

if __name__ == "__main__":
    print(poet.call_sync("About rain.").content)
