"""The verbs of support: a fork with one effect done again, by keyboard-operable forms that axe has nothing against."""

from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from runs import clock
from runs.models import Attempt, Run
from runs.states import Status
from tests import factories
from tests.e2e.accessibility import violations


def look(page: Page) -> None:
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert violations(page) == [], page.url


def failed_order() -> Run:
    run = factories.run(Status.FAILED, step="ship", step_seq=2, attempt_no=1, state={"box": 1})
    now = clock.now()
    for visit, step, outcome in ((1, "pack", "succeeded"), (2, "ship", "failed")):
        Attempt.objects.create(
            run_id=run.pk,
            step_seq=visit,
            attempt_no=1,
            epoch=1,
            step=step,
            outcome=outcome,
            started_at=now,
            ended_at=now,
            state_after={"box": 1} if visit == 1 else None,
        )
    return run


def test_support_forks_a_run_and_lets_one_effect_happen_again(signed_in: Page, live_server: LiveServer):
    run = failed_order()
    kept = factories.operation(run, name="print_label", provider_ref="lbl_41")
    lost = factories.operation(run, name="book_courier", provider_ref="bk_7")
    signed_in.goto(f"{live_server.url}/runs/{run.pk}/")
    signed_in.get_by_role("link", name="Fork", exact=True).click()
    look(signed_in)
    signed_in.get_by_role("checkbox", name="Do again: book_courier").check()
    signed_in.get_by_label("Reason").fill("the parcel was lost")
    signed_in.get_by_role("button", name="Fork from visit 2").click()
    expect(signed_in.get_by_text("begins at step ship")).to_be_visible()
    made = Run.objects.get(forked_from=run.pk)
    copies = list(made.operation_set.values_list("copied_from", flat=True))
    assert copies == [kept.pk] and lost.pk not in copies


def test_the_pages_of_the_other_verbs(signed_in: Page, live_server: LiveServer):
    run = failed_order()
    factories.operation(run, step_seq=1, provider_ref="bk_7")
    for address in (f"{run.pk}/skip/?to=pack", f"{run.pk}/state/"):
        signed_in.goto(f"{live_server.url}/runs/{address}")
        look(signed_in)
    doubt = factories.doubt()
    for address in ("kill/", "priority/", f"operations/{doubt.pk}/answer/"):
        signed_in.goto(f"{live_server.url}/runs/{doubt.run_id}/{address}")
        look(signed_in)
    running = factories.run(Status.RUNNING, cancel_requested_at=clock.now(), cancel_requested_by="sam")
    for name in ("cancel", "force-resume"):
        signed_in.goto(f"{live_server.url}/runs/{running.pk}/{name}/")
        look(signed_in)
