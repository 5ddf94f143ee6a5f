"""A run at certain times: on workdays at seven in Lisbon, and once right away."""

import asyncio

from perdure import Agent, local, tool


@tool
def disk(host: str) -> str:
    """How full the disk of a host is."""
    return {"web-1": "41 %", "db-1": "93 %"}[host]


watcher = Agent("watcher", "openai:gpt-5-mini", instructions="You look after web-1 and db-1.", tools=[disk])


async def main() -> None:
    async with local(agents=[watcher]) as client:
        schedule = await client.schedule(
            "watcher",
            "Is any disk nearly full?",
            id="disks",
            cron="0 7 * * 1-5",
            timezone="Europe/Lisbon",
            if_exists="replace",  # running this again leaves one schedule, and raises no error
        )
        status = await schedule.describe()
        print(f"{status.id}: {', '.join(status.when)}, next on a {status.next[0]:%A}")

        await schedule.trigger()  # the server begins the run, as it does at seven
        while not (status := await schedule.describe()).recent:
            await asyncio.sleep(0.1)
        run = client.run(status.recent[-1].id)  # a run like any other
        print((await run.result()).content)
        await schedule.delete()  # leave this out, and it goes on for as long as the server and a worker run


if __name__ == "__main__":
    asyncio.run(main())
