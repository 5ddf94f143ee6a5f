"""A web endpoint that starts a run and awaits it. Asked again with the same id, also after a restart: the same run."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from perdure import Agent, local


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    support = Agent("support", "openai:gpt-5-mini", instructions="You help customers.")
    async with local(agents=[support]) as app.state.client:  # or Client.connect(), and workers elsewhere
        yield


async def ask(request: Request) -> JSONResponse:  # {"id": "order-77", "message": "Where is it?"}
    run = await request.app.state.client.start("support", **await request.json(), if_exists="attach")
    return JSONResponse({"id": run.id, "answer": (await run.result()).content})


app = Starlette(routes=[Route("/ask", ask, methods=["POST"])], lifespan=lifespan)
