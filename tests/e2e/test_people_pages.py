"""Inbox, limits and workers in a real browser: nothing inaccessible, nothing too wide, nothing that the policy refuses."""

from decimal import Decimal

import pytest
from django.contrib.auth.models import Group, User
from playwright.sync_api import Page
from pytest_django.live_server_helper import LiveServer

from agentops.look.samples import HOSTILE
from approvals import services
from approvals.models import Approval
from runs import codec
from runs import services as run_services
from runs.models import Grant
from runs.states import Status
from tests import factories
from tests.e2e.accessibility import small_targets, violations

LONG = "a-word-that-nobody-broke-" * 12


@pytest.fixture
def paths(mara: User) -> list[str]:
    """Pages with ordinary, long and hostile contents, in every state."""
    mara.groups.add(Group.objects.get(name="admins"))
    schema = {
        "properties": {"order": {"title": LONG}, "tags": {"type": "array"}, "copy": {"type": "boolean"}}
    }
    arguments = {"order": LONG, "tags": ["a", LONG], "copy": True, "text": codec.clean_text(HOSTILE[1])}
    question = factories.approval(name="a question", title=LONG, why=LONG, schema=schema, arguments=arguments)
    edited, decided, void = factories.approval(), factories.approval(), factories.approval()
    operator = factories.operator("priya")
    services.decide(operator, edited.pk, version=1, digest=edited.digest, verdict="approve")
    changed = {"order": LONG, "amount": Decimal("5.00")}
    services.edit(factories.operator("jun"), edited.pk, version=1, arguments=changed, reason=LONG)
    services.decide(operator, decided.pk, version=1, digest=decided.digest, verdict="reject", reason=LONG)
    run_services.cancel(factories.support(), void.run_id)
    run_services.set_limits(factories.admin("ada"), "step", "parcel/pack", max_attempts=8, reason=LONG)
    run_services.pause_workflow(factories.admin("bea"), "parcel", reason=LONG)
    factories.run(Status.RUNNING, worker_id=factories.worker(host=LONG, lost_slots=1).pk, subject=LONG)
    factories.worker(beats=False)
    factories.worker(draining=True)
    granted = factories.user("olivia", "support", first_name=LONG[:150])
    Grant.objects.create(user=granted, capability="operate", scope="subject", name=LONG, granted_by=LONG)
    found: list[Approval] = [question, edited, decided, void]
    return [
        "/approvals/",
        "/approvals/?show=others",
        "/approvals/?show=decided",
        *(f"/approvals/{approval.pk}/" for approval in found),
        f"/approvals/{question.pk}/edit/",
        "/limits/",
        "/limits/workflow/parcel/",
        "/limits/step/parcel/pack/?change=max_attempts&value=3",
        "/limits/resume/parcel/",
        "/workers/",
        "/people/",
        "/people/groups/",
        f"/people/{granted.pk}/",
        f"/people/{granted.pk}/off/",
        f"/people/{granted.pk}/grant/",
        "/people/who/?can=approvals.decide_approval&workflow=parcel&under=tool+book_courier",
        "/people/add/",
    ]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing(
    width: int, theme: str, signed_in: Page, live_server: LiveServer, paths: list[str]
) -> None:
    signed_in.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    signed_in.set_viewport_size({"width": width, "height": 900})
    for path in paths:
        signed_in.goto(live_server.url + path)
        assert violations(signed_in) == [], path


def test_no_page_scrolls_sideways_and_the_policy_refuses_nothing(
    signed_in: Page, live_server: LiveServer, paths: list[str], complaints: list[str]
) -> None:
    for path in paths:
        signed_in.goto(live_server.url + path)
        for width in (1280, 1000, 390, 320):
            signed_in.set_viewport_size({"width": width, "height": 800})
            assert signed_in.evaluate("document.documentElement.scrollWidth") == width, (path, width)
    assert complaints == []


def test_everything_that_can_be_pressed_is_at_least_24_pixels(
    signed_in: Page, live_server: LiveServer, paths: list[str]
) -> None:
    signed_in.set_viewport_size({"width": 390, "height": 844})
    for path in paths:
        signed_in.goto(live_server.url + path)
        assert small_targets(signed_in) == [], path
