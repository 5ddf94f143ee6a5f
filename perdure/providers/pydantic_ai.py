"""Any model of pydantic-ai as a provider: Bedrock, Mistral, Groq, Cohere, xAI, …, each through its vendor's SDK.

pydantic-ai has one shape for every model's messages, settings and errors, which is converted to ours and back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import DefinitionError, TruncatedStreamError
from ..ports.model import ModelRequest, StreamEvent, ToolSpec
from ..types.redaction import Redaction, find_address_secrets, find_option_secrets
from .encoding import encode_json
from .endpoint import build_missing_sdk_error
from .settings import check_all_settings
from .tool_schemas import WireTools, get_rules, translate_tools

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings


_PYDANTIC_AI = "pydantic-ai"
_MODEL_SETTING_NAMES = {"stop": "stop_sequences", "reasoning_effort": "thinking"}
"""Canonical settings that have other names in pydantic-ai."""
_RESERVED_MODEL_SETTINGS = dict.fromkeys(("max_retries", "tool_choice"), "perdure")
_MAX_CREDENTIAL_DEPTH = 5
"""Objects between a model and its credentials: wrapper, fallback, model, provider, client."""


class PydanticAIModel:
    """A pydantic-ai model, or a function that creates one from a name.

        Agent("support", PydanticAIModel(MistralModel("mistral-large-latest")))

        register_provider("bedrock", PydanticAIModel(BedrockConverseModel))
        Agent("support", "bedrock:anthropic.claude-sonnet-4-5-20250929-v1:0")

    A function is called once for each name, in a thread, when that model is first used. ``provider_options`` of the
    agent are pydantic-ai's ``ModelSettings``, also those of one vendor (``bedrock_guardrail_config``). The retries of
    the vendor's SDK are switched off if the model can: Temporal owns retries. The reply of a model that cannot stream
    comes whole.

    Opaque data (signatures, encrypted thinking) is sent back only to a pydantic-ai model of the same system and host.
    """

    def __init__(self, model: Model | Callable[[str], Model]) -> None:
        """Raises ``DefinitionError`` for anything else."""
        is_model = not isinstance(model, type) and hasattr(model, "request_stream")
        if not is_model and not callable(model):
            raise DefinitionError(
                f"PydanticAIModel takes a pydantic-ai model, or a function of a model's name, not {model!r:.100}",
                hint="For instance PydanticAIModel(BedrockConverseModel), or with an instance of it.",
            )
        self._models: dict[str, Model] = {}
        self._fixed_model: Any = model if is_model else None
        self._create_model: Any = None if is_model else model
        self._create_lock = asyncio.Lock()

    @staticmethod
    def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """Check the settings and options (pydantic-ai's ``ModelSettings``) of an agent. Raises ``SettingsError``.

        Which of them the model takes is up to pydantic-ai.
        """
        wire_names = {key: (name,) for key, name in _MODEL_SETTING_NAMES.items()}
        check_all_settings(_PYDANTIC_AI, settings, provider_options, wire_names, _RESERVED_MODEL_SETTINGS)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``RuntimeSetupError`` if pydantic-ai is not installed."""
        reply_started, endpoint, model = False, request.model, None
        await asyncio.to_thread(_import_pydantic_ai)
        from pydantic_ai.messages import ModelResponse

        from .pydantic_ai_conversion import StreamEventConverter, build_completed, is_cut_short, translate_error

        try:
            model = await self._get_model(request.model)
            host = urlsplit(model.base_url or "").hostname
            endpoint = host or f"{model.system} ({model.model_name})"
            origin = f"{_PYDANTIC_AI}-{model.system}" + (f"@{host}" if host else "")
            events = StreamEventConverter()
            async with AsyncExitStack() as stack:
                answer = await _request_model_reply(stack, model, request, origin)
                reply_started = True
                if isinstance(answer, ModelResponse):
                    response = answer
                else:
                    async for their_event in answer:
                        for event in events.feed(their_event):
                            yield event
                    response = answer.get()
            if response.state == "incomplete" or is_cut_short(answer, response, model.profile):
                raise TruncatedStreamError(f"the stream of {endpoint} ended before its reply was complete")
            completed = build_completed(response, origin, endpoint)
            yield self.translate_tools(request.model, request.tools).restore(completed)
        except Exception as error:
            secrets = (*find_option_secrets(request.provider_options), *_list_model_secrets(model))
            provider_error = translate_error(error, reply_started=reply_started, endpoint=endpoint)
            raise Redaction(secrets).redact_error(provider_error) from None

    def translate_tools(self, model: str, tools: Iterable[ToolSpec]) -> WireTools:
        """The tools of a request as the models of all vendors take them, and those that none can take."""
        return translate_tools(get_rules(_PYDANTIC_AI, model), tools)

    async def aclose(self) -> None:
        """Close the connections that the models have opened themselves; the next call opens new ones."""
        for model in filter(None, (*self._models.values(), self._fixed_model)):
            async with model:  # its end closes what pydantic-ai created for it, and nothing that it was given
                pass

    async def _get_model(self, name: str) -> Model:
        if self._fixed_model is not None:
            model: Model = self._fixed_model
            return model
        async with self._create_lock:
            if name not in self._models:
                self._models[name] = await asyncio.to_thread(self._create_model, name)
        return self._models[name]


def _list_model_secrets(part: object, depth: int = 0) -> Iterator[str]:
    """Credentials and header values that are attributes of a model, its provider or their clients.

    Credentials that a vendor's SDK keeps elsewhere (AWS profiles, Google's service accounts) are not found.
    """
    attributes = getattr(part, "__dict__", {})
    yield from find_option_secrets(attributes)  # api_key, auth_token, _custom_headers, settings
    for name in ("base_url", "_base_url"):
        yield from find_address_secrets(str(attributes.get(name, "")))
    for name in ("wrapped", "models", "provider", "_provider", "client", "_client"):
        value = attributes.get(name)
        for inner in value if isinstance(value, list | tuple) else (value,):
            if inner is not None and depth < _MAX_CREDENTIAL_DEPTH:
                yield from _list_model_secrets(inner, depth + 1)


def _import_pydantic_ai() -> None:
    """Import it: it takes seconds the first time, so in a thread."""
    try:
        from pydantic_ai import direct  # noqa: F401  # the package, and the module that is used
    except ModuleNotFoundError as error:
        package = "pydantic-ai-slim" if error.name == "pydantic_ai" else error.name
        raise build_missing_sdk_error(_PYDANTIC_AI, package) from None


async def _request_model_reply(
    stack: AsyncExitStack, model: Model, request: ModelRequest, origin: str
) -> StreamedResponse | ModelResponse:
    """The open stream, closed with ``stack``; the whole ``ModelResponse`` of a model that cannot stream."""
    from pydantic_ai import direct

    from .pydantic_ai_conversion import encode_messages

    arguments: dict[str, Any] = {
        "model_settings": _build_model_settings(model, request),
        "model_request_parameters": _build_request_parameters(request),
        "instrument": False,
    }
    messages = encode_messages(request, origin, model.profile)
    try:
        return await stack.enter_async_context(direct.model_request_stream(model, messages, **arguments))
    except NotImplementedError:
        return await direct.model_request(model, messages, **arguments)


def _build_request_parameters(request: ModelRequest) -> ModelRequestParameters:
    from pydantic_ai import ToolDefinition
    from pydantic_ai.models import ModelRequestParameters

    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=json.loads(encode_json(tool.parameters)),
                strict=False,  # else some models get another schema than ours
            )
            for tool in translate_tools(get_rules(_PYDANTIC_AI, request.model), request.tools).offered
        ]
    )


def _build_model_settings(model: Model, request: ModelRequest) -> ModelSettings:
    settings: dict[str, Any] = {
        _MODEL_SETTING_NAMES.get(key, key): value for key, value in request.settings.items() if value is not None
    }
    if isinstance(stop := settings.get("stop_sequences"), str):
        settings["stop_sequences"] = [stop]
    if settings.get("thinking") == "none":
        settings["thinking"] = False
    if "max_retries" not in model.unsupported_settings:
        settings["max_retries"] = 0
    if request.tool_choice is not None:
        settings["tool_choice"] = [request.tool_choice]
    model_settings: ModelSettings = {**settings, **request.provider_options}  # type: ignore[typeddict-item]  # any vendor's keys
    return model_settings
