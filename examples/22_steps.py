"""A step policy: a small model does the reading, long results are cut, and a certain answer needs no model at all."""

from perdure import Agent, Step, hook, tool


@tool
def search(query: str) -> str:
    """Search the archive: page numbers."""
    return "Pages: " + ", ".join(map(str, range(1, 500)))


@tool
def read(page: int) -> str:
    """Read a page of the archive."""
    return f"Page {page}: the charter was signed in 1848."


@hook("on_iteration")
def economise(step: Step) -> None:
    for index, result in enumerate(step.results):
        if len(result.content) > 100:
            step.results[index] = result.content[:100] + " …"
        if "signed in" in result.content:  # no model has to be paid for saying it again
            step.finish(result.content.partition(": ")[2])
    step.model = "openai:gpt-5-mini"
    step.remove_tool("search")
    step.keep()


archivist = Agent(
    "archivist",
    "openai:gpt-5",
    instructions="Answer from the archive: search once, then read.",
    tools=[search, read],
    hooks=[economise],
)

if __name__ == "__main__":
    response = archivist.call_sync("When was the charter signed?")
    print(response.content)
    print([message.model for message in response.messages if message.role == "assistant"])
