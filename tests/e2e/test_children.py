"""A parent's page in a browser: the child that failed is found, and the way back."""

import pytest
from django.contrib.auth.models import Group, User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from runs.models import Run
from runs.states import Status
from tests.e2e.accessibility import violations
from tests.runs.engine.family import parked, silently_ended


@pytest.fixture
def family(mara: User) -> tuple[Run, list[Run]]:
    """Of thirty children one has failed and two have completed."""
    mara.groups.add(Group.objects.get(name="operators"))
    run, _, made = parked(30)
    for one in made[:2]:
        silently_ended(one)
    silently_ended(made[20], Status.FAILED)
    Run.objects.filter(pk=made[20].pk).update(reason="no such city", subject="Atlantis")
    return run, made


@pytest.mark.parametrize("width", [1280, 390])
def test_from_a_parent_to_the_child_that_failed_and_back(
    width: int, family: tuple[Run, list[Run]], signed_in: Page, live_server: LiveServer
) -> None:
    run, made = family
    signed_in.set_viewport_size({"width": width, "height": 900})
    signed_in.goto(f"{live_server.url}/runs/{run.pk}/")
    expect(
        signed_in.get_by_text("Waiting because 27 of 30 child runs of f_child have not ended.")
    ).to_be_visible()
    assert violations(signed_in) == []
    signed_in.get_by_role("link", name="Completed 2").click()
    expect(signed_in.get_by_role("table", name="Child runs of this run").locator("tbody tr")).to_have_count(2)
    signed_in.get_by_role("link", name="What needs a look first").click()
    signed_in.get_by_role("link", name="Atlantis").click()
    expect(signed_in).to_have_url(f"{live_server.url}/runs/{made[20].pk}/")
    assert violations(signed_in) == []
    signed_in.get_by_role("link", name=f"run {str(run.pk)[:13]}").click()
    expect(signed_in).to_have_url(f"{live_server.url}/runs/{run.pk}/")
