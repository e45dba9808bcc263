"""Who answers `ctx.model`: an OpenAI-compatible endpoint if one is configured, or a provider that an app registers.

The framework behind it may change; its record (request, response with text, output and usage) may not.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    """`complete(request, timeout)` returns {"text": …, "usage": {…}}; it does not retry by itself."""

    name: str
    complete: Callable[..., dict[str, Any]]


_PROVIDERS: dict[str, Provider] = {}


def register(name: str, complete: Callable[..., dict[str, Any]]) -> None:
    """Make `ctx.model(model=name)` answered by `complete`."""
    _PROVIDERS[name] = Provider(name, complete)


def configured() -> bool:
    """Whether an OpenAI-compatible endpoint is set up."""
    return bool(settings.AGENTOPS_MODEL_BASE_URL and settings.AGENTOPS_MODEL_NAME)


def resolve(name: str) -> Provider:
    """The provider of a model name; '' is the configured one. Raises ModelNotConfigured."""
    if name in _PROVIDERS:
        return _PROVIDERS[name]
    if not configured():
        raise ModelNotConfigured(ModelNotConfigured.__doc__ or "")
    return Provider(name or settings.AGENTOPS_MODEL_NAME, _openai)


def _openai(request: dict[str, Any], timeout: float) -> dict[str, Any]:
    """One chat completion, no retries. Format: https://platform.openai.com/docs/api-reference/chat/create."""
    body: dict[str, Any] = {"model": request["model"], "messages": request["messages"]}
    if request["tools"]:
        body["tools"] = [
            {"type": "function", "function": {"name": t["name"], "parameters": t["schema"]}}
            for t in request["tools"]
        ]
    if request["output"] is not None:
        schema = {"name": "output", "schema": request["output"]}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    response = httpx.post(
        f"{settings.AGENTOPS_MODEL_BASE_URL.rstrip('/')}/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {settings.AGENTOPS_MODEL_API_KEY}"},
        timeout=timeout,
    )
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
