"""Bodies that are small to send and large to work on cost nothing: refused before they are read, unpacked or followed down."""

import gzip
import io
import json
import time
from datetime import UTC, datetime

import pytest
from django.conf import settings as project
from django.core.handlers.wsgi import WSGIRequest
from django.test import Client
from pytest_django import Settings
from standardwebhooks import Webhook

from runs import codec
from runs.models import Signal
from runs.states import Status
from runs.webhooks import receive
from tests import factories

pytestmark = pytest.mark.django_db

DEEP = 100_000
# What is too much work is told by the seconds of this process's CPU: those of a clock depend on what else the machine does.


def signed(body: bytes, **headers: str) -> tuple[int, str]:
    """Send a body that is signed as it stands; return status and answer."""
    now = datetime.now(UTC)
    signature = Webhook(project.AGENTOPS_WEBHOOK_SECRET).sign("m1", now, body.decode("latin-1"))
    given = {
        "webhook-id": "m1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
    response = Client().post("/webhooks/shop", body, content_type="application/json", headers=given | headers)
    return response.status_code, response.json().get("error", "")


class Untouched(io.BytesIO):
    """A body that nobody may read."""

    def read(self, *args: object) -> bytes:
        raise AssertionError("the body was read")


def test_a_body_that_is_announced_as_too_large_is_not_read() -> None:
    environment = {
        "REQUEST_METHOD": "POST",
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "CONTENT_LENGTH": str(project.AGENTOPS_PAYLOAD_LIMIT + 1),
        "wsgi.input": Untouched(),
    }
    assert receive(WSGIRequest(environment), "shop").status_code == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "gzip, identity"])
def test_a_compressed_body_is_refused_and_not_unpacked(encoding: str) -> None:
    bomb = gzip.compress(b'{"type": "paid", "data": {"x": "' + b"0" * 50_000_000 + b'"}}')
    assert signed(bomb[:60_000], **{"Content-Encoding": encoding})[0] == 415


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[" * DEEP + b"]" * DEEP, "JSON"),
        (b'{"type": "paid", "data": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}", "JSON"),
        (b'{"type": "paid", "data": {"run_id": ' + b"9" * 100_000 + b"}}", "JSON"),
        (b'{"type": "paid", "data": {"run_id": 1e99999}}', "run_id"),
    ],
)
def test_what_no_parser_should_follow_down_is_400(body: bytes, says: str) -> None:
    began = time.process_time()
    status, error = signed(body)
    assert status == 400 and says in error and len(error) < 300
    assert time.process_time() - began < 5
    assert not Signal.objects.exists()


def nested(depth: int, bottom: object) -> object:
    for _ in range(depth):
        bottom = {"a": bottom}
    return bottom


def test_a_deep_and_large_value_is_kept_and_shown_within_seconds(console: Client) -> None:
    run = factories.run(Status.WAITING)
    deep = nested(codec.MAX_DEPTH - 10, "x" * 1_000_000)
    body = json.dumps({"type": "paid", "data": {"run_id": str(run.pk), "deep": deep}}).encode()
    assert signed(body)[0] == 200
    began = time.process_time()
    response = console.get(f"/runs/{run.pk}/", {"part": "signals"})
    assert response.status_code == 200 and b"paid" in response.content
    assert len(response.content) < 1_000_000
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "number", ["1e99999999", "-1e99999999", "1e-99999999", "9" * 4000, "0." + "1" * 4000]
)
def test_a_number_that_is_short_to_write_and_long_to_hold_is_told_at_once(
    number: str, console: Client
) -> None:
    began = time.process_time()
    approval = factories.approval(
        name="ask", schema={"type": "object", "properties": {"n": {"type": "number"}}}, arguments={"n": 1}
    )
    edited = console.post(
        f"/approvals/{approval.pk}/edit/", {"version": 1, "reason": "because", "payload-0": number}
    )
    assert edited.status_code in (302, 422)
    started = console.post("/runs/start/parcel/", {"input-order": "7", "input-amount": number})
    assert started.status_code in (302, 422)
    for page in ("/runs/", f"/approvals/{approval.pk}/", "/approvals/"):
        assert console.get(page).status_code == 200
    assert time.process_time() - began < 5


def test_a_json_field_follows_no_depth_down(console: Client) -> None:
    run = factories.run(Status.WAITING)
    form = {"seen_version": run.seen_version, "reason": "because", "name": "paid", "external_id": "e1"}
    for payload in ("[" * DEEP + "]" * DEEP, "9" * 100_000, '{"a":' * 500 + "1" + "}" * 500):
        response = console.post(
            f"/runs/{run.pk}/signal/", form | {"payload": payload, "external_id": payload[:9]}
        )
        assert response.status_code in (302, 422)


# --- forms ---------------------------------------------------------------------------------------------------------------


def test_a_form_above_the_limit_is_refused_with_a_page(console: Client) -> None:
    response = console.post("/theme/", {"theme": "x" * (project.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)})
    assert response.status_code == 413 and "Too large to send" in response.content.decode()


def test_a_form_of_ten_thousand_fields_is_refused(console: Client) -> None:
    assert console.post("/theme/", {f"f{n}": "1" for n in range(10_000)}).status_code == 400


@pytest.mark.parametrize("path", ["/sign-in/", "/theme/", "/runs/start/parcel/"])
def test_a_file_is_refused_before_it_is_written_anywhere(
    path: str, tmp_path, settings: Settings, console: Client
) -> None:
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    file = io.BytesIO(b"x" * 3_000_000)
    file.name = "large.bin"
    # Whoever proves itself by no token is turned away without its body being looked at.
    assert Client(enforce_csrf_checks=True).post(path, {"file": file}).status_code in (400, 403)
    console.handler.enforce_csrf_checks = True
    for body in (file, io.BytesIO(b"small")):
        assert console.post(path, {"theme": "dark", "file": body}).status_code in (400, 403)
    assert list(tmp_path.iterdir()) == []
