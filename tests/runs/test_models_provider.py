"""The configured model endpoint, asked for real over HTTP."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from django.test import override_settings

from runs import models_provider
from runs.errors import ToolFailed


class Endpoint:
    """Answers with what it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.status, self.answer = 200, completion("yes")
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.clients: set[tuple[str, int]] = set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                endpoint.clients.add(self.client_address)
                endpoint.keys.append(self.headers["Authorization"])
                endpoint.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                body = json.dumps(endpoint.answer).encode()
                self.send_response(endpoint.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("x-request-id", "req-1")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True


def completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message}], "usage": {"prompt_tokens": 3, "details": {"cached": 1}}}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    with override_settings(
        AGENTOPS_MODEL_BASE_URL=f"http://127.0.0.1:{made.server.server_port}/v1/",
        AGENTOPS_MODEL_API_KEY="sk-secret",
        AGENTOPS_MODEL_NAME="big",
    ):
        yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def ask(*, awaited: bool, text: str = "go on?") -> dict[str, Any]:
    function = models_provider.resolve("").function(awaited=awaited)
    request = {
        "model": "big",
        "messages": [{"role": "user", "content": text}],
        "tools": [{"name": "look", "schema": {"type": "object"}}],
        "output": {"type": "boolean"},
    }
    if not awaited:
        return dict(function(request=request, timeout=5))

    async def once() -> Any:
        return await function(request=request, timeout=5)

    # On a thread: a browser of earlier tests may keep a loop running on this one.
    with ThreadPoolExecutor(1) as threads:
        return dict(threads.submit(asyncio.run, once()).result())


@pytest.mark.parametrize("awaited", [False, True], ids=["def", "async def"])
def test_a_request_carries_messages_tools_and_schema_and_its_answer_text_and_usage(
    endpoint: Endpoint, awaited: bool
):
    answer = ask(awaited=awaited)

    assert answer == {
        "text": "yes",
        "tool_calls": [],
        "usage": {"prompt_tokens": 3},
        "request_id": "req-1",
    }
    (asked,) = endpoint.asked
    assert asked["messages"] == [{"role": "user", "content": "go on?"}]
    assert asked["tools"][0]["function"] == {"name": "look", "parameters": {"type": "object"}}
    assert asked["response_format"]["json_schema"]["schema"] == {"type": "boolean"}
    assert endpoint.keys == ["Bearer sk-secret"]


@pytest.mark.parametrize("awaited", [False, True], ids=["def", "async def"])
def test_an_answer_of_overload_is_an_error_and_is_not_repeated_by_the_provider(
    endpoint: Endpoint, awaited: bool
):
    endpoint.status = 503

    with pytest.raises(httpx.HTTPStatusError, match="503"):
        ask(awaited=awaited)

    assert len(endpoint.asked) == 1


def test_requests_of_one_process_share_their_connection(endpoint: Endpoint):
    for text in ("one", "two", "three"):
        ask(awaited=False, text=text)

    assert len(endpoint.asked) == 3
    assert len(endpoint.clients) == 1


def test_an_answer_that_is_not_of_the_wanted_type_is_a_failed_call_that_names_the_model():
    with pytest.raises(ToolFailed, match="what was asked for"):
        models_provider.reply("big", {"text": "perhaps"}, bool)


def test_without_an_endpoint_the_settings_to_make_are_named():
    with (
        override_settings(AGENTOPS_MODEL_BASE_URL="", AGENTOPS_MODEL_NAME=""),
        pytest.raises(models_provider.ModelNotConfigured, match="AGENTOPS_MODEL_BASE_URL"),
    ):
        models_provider.resolve("")
