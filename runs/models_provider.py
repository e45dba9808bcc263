"""Who answers `ctx.model`: an OpenAI-compatible endpoint if one is configured, or a provider that an app registers.

The framework behind it may change; its record (request, response with text, output and usage) may not.
"""

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import httpx
from django.conf import settings
from pydantic import TypeAdapter, ValidationError

from runs.errors import NotRetryable, ToolFailed


class ModelNotConfigured(NotRetryable):
    """No model is configured: set AGENTOPS_MODEL_BASE_URL, AGENTOPS_MODEL_API_KEY and AGENTOPS_MODEL_NAME."""


@dataclass(frozen=True)
class Reply:
    """A model's recorded answer. `output` is the typed output, the text itself where none was asked for."""

    text: str
    output: Any
    model: str
    usage: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Provider:
    """`complete(request, timeout)` returns {"text": …, "usage": {…}}; it does not retry by itself.

    `complete_async` is the same, awaited: `async def` steps take it where there is one, and need no thread for the call.
    """

    name: str
    complete: Callable[..., dict[str, Any]]
    complete_async: Callable[..., Awaitable[dict[str, Any]]] | None = None

    def function(self, *, awaited: bool) -> Callable[..., Any]:
        """What answers a step that can await (`awaited`), or one that cannot."""
        return self.complete_async if awaited and self.complete_async is not None else self.complete


_PROVIDERS: dict[str, Provider] = {}


def register(
    name: str,
    complete: Callable[..., dict[str, Any]],
    complete_async: Callable[..., Awaitable[dict[str, Any]]] | None = None,
) -> None:
    """Make `ctx.model(model=name)` answered by `complete`, in `async def` steps by `complete_async` if it is given."""
    _PROVIDERS[name] = Provider(name, complete, complete_async)


def configured() -> bool:
    """Whether an OpenAI-compatible endpoint is set up."""
    return bool(settings.AGENTOPS_MODEL_BASE_URL and settings.AGENTOPS_MODEL_NAME)


def resolve(name: str) -> Provider:
    """The provider of a model name; '' is the configured one. Raises ModelNotConfigured."""
    if name in _PROVIDERS:
        return _PROVIDERS[name]
    if not configured():
        raise ModelNotConfigured(ModelNotConfigured.__doc__ or "")
    return Provider(name or settings.AGENTOPS_MODEL_NAME, _openai, _openai_async)


# A client for each request would read all certificates of the system each time (about 15 ms of a core). No limit of
# connections: the slots of the worker are the limit, and a request that waits for a connection would eat its own time-out.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)


@cache
def _made(process: int) -> httpx.Client:
    return httpx.Client(limits=_LIMITS)


_MAKING = threading.Lock()


def _client() -> httpx.Client:
    """The client of this process; a forked child makes its own, as it must not share the parent's connections.

    Made once: hundreds of steps that ask a model at the same moment would each make one.
    """
    with _MAKING:
        return _made(os.getpid())


#: Connections of an event loop live and end with it.
_ASYNC_CLIENTS: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()


def _openai(request: dict[str, Any], timeout: float) -> dict[str, Any]:
    """One chat completion, no retries. Format: https://platform.openai.com/docs/api-reference/chat/create."""
    return _answer(_client().post(**_post(request, timeout)))


async def _openai_async(request: dict[str, Any], timeout: float) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    client = _ASYNC_CLIENTS.get(loop)
    if client is None:
        client = _ASYNC_CLIENTS[loop] = httpx.AsyncClient(limits=_LIMITS)
    return _answer(await client.post(**_post(request, timeout)))


def _post(request: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Arguments of the request to the configured endpoint."""
    body: dict[str, Any] = {"model": request["model"], "messages": request["messages"]}
    if request["tools"]:
        body["tools"] = [
            {"type": "function", "function": {"name": t["name"], "parameters": t["schema"]}}
            for t in request["tools"]
        ]
    if request["output"] is not None:
        schema = {"name": "output", "schema": request["output"]}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return {
        "url": f"{settings.AGENTOPS_MODEL_BASE_URL.rstrip('/')}/chat/completions",
        "json": body,
        "headers": {"Authorization": f"Bearer {settings.AGENTOPS_MODEL_API_KEY}"},
        "timeout": timeout,
    }


def _answer(response: httpx.Response) -> dict[str, Any]:
    """What the endpoint said, as it is recorded. Raises httpx.HTTPStatusError."""
    response.raise_for_status()
    answer = response.json()
    choice = answer["choices"][0]["message"]
    usage = {k: v for k, v in (answer.get("usage") or {}).items() if isinstance(v, int)}
    return {
        "text": choice.get("content") or "",
        "tool_calls": choice.get("tool_calls") or [],
        "usage": usage,
        "request_id": response.headers.get("x-request-id", ""),
    }


def reply(model: str, answer: dict[str, Any], output_type: Any) -> Reply:
    """A recorded answer as the author asked for it. Raises ToolFailed when the output is not of that type."""
    text = str(answer.get("text", ""))
    output: Any = text
    if output_type is not str:
        try:
            output = TypeAdapter(output_type).validate_python(json.loads(text))
        except (ValidationError, json.JSONDecodeError) as error:
            raise ToolFailed(
                model, "InvalidAnswer", f"the model's output is not what was asked for: {error}"
            ) from error
    return Reply(text, output, model, dict(answer.get("usage") or {}))
