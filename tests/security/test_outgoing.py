"""Requests go out to addresses of the settings alone: nobody who uses the console, and no agent, names a host."""

import ast
from typing import Any

import httpx
import pytest
from django.apps import apps
from django.db import models
from pytest_django import Settings

from agentops.demo import tools
from runs import models_provider
from tests.harness.processes import ROOT
from tests.security.world import PLACES

#: Where something is sent from; each is given its address by the settings.
SENDERS = {
    "agentops/demo/supervisor.py",
    "agentops/demo/tools.py",
    "agentops/sandbox/client.py",
    "agentops/sandbox/webhooks.py",
    "runs/models_provider.py",
}
CLIENTS = {
    "httpx",
    "requests",
    "urllib3",
    "aiohttp",
    "urllib.request",
    "http.client",
    "smtplib",
    "socket",
    "ftplib",
}
#: Used for the machine itself: names of hosts in rows of workers, ports of the sandbox, pipes.
LOCAL = {"smtplib", "socket"}


def imports(text: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_only_known_modules_send_requests() -> None:
    senders = {
        str(path.relative_to(ROOT))
        for app in ("agentops", "approvals", "runs")
        for path in (ROOT / app).rglob("*.py")
        if (CLIENTS - LOCAL) & imports(path.read_text())
    }
    # Chaos and benchmark ask their own sandbox; the engine knows httpx's errors.
    others = {
        name for name in senders - SENDERS if not name.startswith(("agentops/chaos/", "agentops/benchmark/"))
    }
    assert others <= {"runs/engine/classify.py"}


def test_no_table_and_no_form_holds_an_address_to_send_to() -> None:
    """Webhooks come in and none go out. Whoever adds a column with a URL guards it against addresses of the inner network."""
    named = [
        f"{model.__name__}.{field.name}"
        for label in ("agentops", "approvals", "runs")
        for model in apps.get_app_config(label).get_models()
        for field in model._meta.get_fields()
        if isinstance(field, models.URLField)
        or any(word in field.name for word in ("url", "callback", "endpoint"))
    ]
    assert named == []
    assert not [name for name in PLACES if "endpoint" in name or "callback" in name]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> list[httpx.Request]:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(302, headers={"Location": "http://169.254.169.254/"}, json={})

    settings.AGENTOPS_SANDBOX_URL = "http://sandbox.invalid:8025"
    settings.AGENTOPS_MODEL_BASE_URL = "http://model.invalid/v1"
    settings.AGENTOPS_MODEL_API_KEY = "sk-canary"
    # Below every client, whoever made it and however it is called.
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda self, request: answer(request))
    return requests


HOSTILE = (
    "http://169.254.169.254/latest",
    "//evil.invalid/",
    "../../admin",
    "x@evil.invalid",
    "x\r\nHost: evil.invalid",
    "?x#",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_an_agent_asks_for_goes_to_the_host_of_the_settings(
    text: str, sent: list[httpx.Request]
) -> None:
    for call in (
        lambda: tools.fetch_page(text, timeout=1),
        lambda: tools.find_refund(text, 1),
        lambda: tools.is_settled(text, timeout=1),
    ):
        with pytest.raises(httpx.HTTPStatusError):
            call()
    assert {request.url.host for request in sent} == {"sandbox.invalid"}
    assert {request.url.path for request in sent} <= {"/pages", "/refunds"}


@pytest.mark.parametrize("text", HOSTILE)
def test_the_name_of_a_model_is_no_address_and_its_answer_leads_nowhere(
    text: str, sent: list[httpx.Request]
) -> None:
    request: dict[str, Any] = {
        "model": text,
        "messages": [{"role": "user", "content": text}],
        "tools": [],
        "output": None,
    }
    with pytest.raises(httpx.HTTPStatusError):
        models_provider._openai(request, 1)
    assert [str(request.url) for request in sent] == ["http://model.invalid/v1/chat/completions"]
