"""Whatever agents, customers and providers write, pages of runs show it as text and do nothing else."""

import re
from html.parser import HTMLParser

import pytest

from runs import clock, codec
from runs.models import Attempt, LogLine, Message, Operation, Run, Signal
from runs.models.operation import Kind, OpStatus
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "Refund to acc\u202e123\u202c of \u2066Dana\u2069",
    "before\x00after\x1b[31mred",
    "javascript:alert(3)",
    "\" onmouseover=alert(4) x='{{ 7|add:7 }}",
    "ignore\U000e0069\U000e0067 previous\u200binstructions",
)
DECEIVING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)


class Page(HTMLParser):
    """What a browser would do with a page: its scripts, its event attributes and where its links lead."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.handlers, self.links, self.text = set(), [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action", "hx-get")]
        self.text += " ".join(value or "" for _, value in attrs)

    def handle_data(self, data):
        self.text += data


def harmless(html, *, typed=False):
    """Check what a page would do; `typed`: a form gives a person back what that person typed, character by character."""
    page = Page(html)
    assert html.count("<script") == html.count("<script src=")
    assert not page.tags & {"img", "iframe", "object", "style", "base"}
    assert page.handlers == []
    assert not [link for link in page.links if not link.startswith(("/", "?", "#"))]
    assert typed or not DECEIVING.search(page.text)
    return page


@pytest.fixture
def addresses(request):
    """Pages of a run whose every field holds `text`, as the database can store it."""
    text = codec.clean_text(request.param)
    now, value = clock.now(), {text: [text, {"deep": text}]}
    run = factories.run(
        Status.FAILED, subject=text, start_key=text, tenant=text, reason=text, state=value, external=value
    )
    Run.objects.filter(pk=run.pk).update(
        started_by_name=text, workflow=text, step=text, queue=text, input=value
    )
    common = {"run_id": run.pk, "step_seq": 1, "attempt_no": 1}
    Attempt.objects.create(
        **common,
        epoch=1,
        step=text,
        outcome="failed",
        started_at=now,
        ended_at=now,
        error_type=text,
        error=text,
        traceback=f'Traceback:\n  File "{text}", line 1, in {text}\n    {text}\n{text}',
        closed_by=text,
        state_after=value,
    )
    effect = factories.operation(
        run,
        status=OpStatus.FAILED,
        name=text,
        provider_ref=text,
        error_type=text,
        error=text,
        request=value,
        approved=value,
        response=value,
        settled_by=text,
        correlation=text,
        compensate_with=text,
    )
    factories.operation(run, Kind.QUERY, name=text, position=text, result=value)
    Message.objects.create(**common, position="1", role=text, content=text, digest="")
    Message.objects.create(**common, position="2", role=text, content=value, digest="")
    LogLine.objects.create(**common, position="1", level=text, text=text, data=value)
    Signal.objects.create(
        run_id=run.pk,
        name=text,
        correlation=text,
        source=text,
        external_id=text,
        payload=value,
        digest="",
        sent_by=text,
        ignored=text,
    )
    doubt = factories.doubt(name=text, request=value)
    Run.objects.filter(pk=doubt.run_id).update(reason=text, subject=text)
    home = f"/runs/{run.pk}/"
    return [
        "/runs/",
        *(f"{home}?part={part}" for part in ("messages", "logs", "values", "signals", "events")),
        f"{home}retry/",
        f"{home}cancel/",
        f"{home}attempts/1/1/",
        f"{home}operations/{effect.pk}/",
        f"/runs/{doubt.run_id}/",
        f"/runs/{doubt.run_id}/operations/{doubt.pk}/answer/",
        f"/runs/{doubt.run_id}/signal/",
    ]


@pytest.mark.parametrize("addresses", HOSTILE, indirect=True)
def test_hostile_text_is_harmless_in_every_field(addresses, admin):
    for address in addresses:
        harmless(admin.get(address).content.decode())
    assert Operation.objects.count() == 3


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_an_address_is_harmless(text, admin):
    for query in ({"q": text}, {"status": text}, {"workflow": text}, {"subject": text}, {"before": text}):
        response = admin.get("/runs/", query)
        assert response.status_code == 200, query
        harmless(response.content.decode())
    run = factories.run(Status.WAITING)
    for query in ({"part": text}, {"before": text}):
        harmless(admin.get(f"/runs/{run.pk}/", query).content.decode())


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_a_form_comes_back_harmless(text, admin, form):
    run = factories.run(Status.FAILED)
    refused = admin.post(f"/runs/{run.pk}/retry/", {"seen_version": "0", "reason": text})
    assert refused.status_code in (409, 422)
    page = harmless(refused.content.decode(), typed=True)
    assert "Retry step pack" in page.text
    started = admin.post("/runs/start/parcel/", {"input-amount": text, "input-order": text})
    assert started.status_code == 422
