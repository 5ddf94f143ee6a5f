"""Evals with pydantic-evals: each case is a run that is kept, so two versions of an agent are compared run by run."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic_evals import Case, Dataset, increment_eval_metric, set_eval_attribute
from pydantic_evals.evaluators import EqualsExpected

from perdure import Agent, Client, local

Desk = Literal["billing", "shipping"]
triage = Agent[None, Desk](
    "triage", "openai:gpt-5-mini", output=Desk, instructions="Name the desk that a message is for."
)
VERSIONS = {"v1": {}, "v2": {"instructions": "Name the desk that a message is for. Anything about money is billing."}}
CASES = {"twice": ("I was charged twice.", "billing"), "fee": ("Why is there a fee for shipping?", "billing")}

dataset = Dataset(
    name="triage",
    cases=[Case(name=name, inputs=(name, text), expected_output=desk) for name, (text, desk) in CASES.items()],
    evaluators=[EqualsExpected()],
)


def task(client: Client, version: str) -> Callable[[tuple[str, str]], Awaitable[Desk]]:
    async def classify(inputs: tuple[str, str]) -> Desk:
        name, text = inputs  # with an id, an eval that was killed pays for no case twice
        run_id = f"eval-{version}-{name}"
        response = await triage.call(text, id=run_id, client=client, override=VERSIONS[version])
        increment_eval_metric("cost_usd", response.cost_usd or 0.0)
        increment_eval_metric("tokens", response.usage.total_tokens)
        set_eval_attribute("run", run_id)
        return response.output

    return classify


async def main() -> None:
    async with local([triage]) as client:
        old = await dataset.evaluate(task(client, "v1"), name="v1", progress=False)
        new = await dataset.evaluate(task(client, "v2"), name="v2", progress=False)
        new.print(baseline=old, include_output=True, include_durations=False)

        before = {case.name: case for case in old.cases}
        for case in new.cases:
            if case.output != before[case.name].output:
                ids = before[case.name].attributes["run"], case.attributes["run"]
                parted = await client.run(ids[0]).diff(client.run(ids[1]))
                print(f"{case.name}: other replies after iteration {parted.iteration}: perdure diff {ids[0]} {ids[1]}")


if __name__ == "__main__":
    asyncio.run(main())
