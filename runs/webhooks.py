"""The one endpoint for signals from outside: `POST /webhooks/<source>`, signed as Standard Webhooks says.

    {"type": "payment.settled", "data": {"run_id": "…" or "correlation": "…", …}}

`type` is the signal's name, the header `webhook-id` its external id, `data` its payload. An answer of 2xx means that the
signal is stored; the same message again is answered alike and changes nothing.
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import uuid
from typing import Any

import structlog
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from standardwebhooks import Webhook, WebhookVerificationError

from runs import services, sizes
from runs.errors import Invalid, VerbError
from runs.lifecycle import Actor
from runs.services.payloads import parse_json

log = structlog.get_logger(__name__)


@csrf_exempt  # whoever calls proves itself by the signature and has no session
@login_not_required
@require_POST
def receive(request: HttpRequest, source: str) -> JsonResponse:
    """Verify, store and route one webhook. 4xx: refused, with the reason; 503: no secret is configured."""
    if not settings.AGENTOPS_WEBHOOK_SECRET:
        return _refuse(503, "no webhook secret is configured (AGENTOPS_WEBHOOK_SECRET)")
    # A signature is over the bytes as they are sent, and nobody unpacks a bomb here.
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        return _refuse(415, "a body with a content encoding is not accepted: send it as it is")
    limit = sizes.limit("signal")
    if _announced(request) > limit or len(body := request.read(limit + 1)) > limit:
        return _refuse(413, f"at most {limit:,} bytes are accepted")
    refusal = _unverified(request, body)
    if refusal:
        log.warning("webhook.refused", source=source, reason=refusal)
        return _refuse(401, refusal)
    try:
        received = services.receive_signal(
            Actor(f"webhook {source}"),
            source=source,
            external_id=request.headers["webhook-id"],
            **_address(parse_json(body, "the body")),
        )
    except VerbError as error:
        return _refuse(error.status, str(error))
    return JsonResponse({"signal": str(received.signal.pk), "answer": received.sentence})


def _announced(request: HttpRequest) -> int:
    """Bytes of the body as its sender announces them, 0 for none: one that is too large is not even read."""
    length = request.META.get("CONTENT_LENGTH") or "0"
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _refuse(status: int, reason: str) -> JsonResponse:
    return JsonResponse({"error": reason}, status=status)


def _unverified(request: HttpRequest, body: bytes) -> str:
    """Why the signature does not hold, or "". Looks at the bytes as they came, before anything parses them."""
    headers = {name: value for name, value in request.headers.items() if name.lower().startswith("webhook-")}
    verifier = Webhook(settings.AGENTOPS_WEBHOOK_SECRET)
    try:
        verifier.verify(body, headers, json_parse=False)
    except WebhookVerificationError as error:
        return f"the signature does not hold: {error}"
    except ValueError:  # the library's own words for a malformed header or a body that is no UTF-8
        return "the signature does not hold: it or the body is malformed"
    return ""


def _address(message: Any) -> dict[str, Any]:
    """Name, payload and address of the signal in a verified body. Raises Invalid."""
    if not isinstance(message, dict) or not isinstance(message.get("type"), str) or not message["type"]:
        raise Invalid("the body must be an object with a “type”")
    data = message.get("data")
    if not isinstance(data, dict):
        raise Invalid("“data” must be an object")
    run_id, correlation = data.get("run_id"), data.get("correlation") or ""
    if not isinstance(correlation, str):
        raise Invalid("“data.correlation” must be text")
    try:
        parsed = None if run_id is None else uuid.UUID(run_id)
    except (ValueError, AttributeError, TypeError):
        raise Invalid("“data.run_id” is no run id") from None
    return {"name": message["type"], "payload": data, "run_id": parsed, "correlation": correlation}
