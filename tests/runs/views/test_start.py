"""Start a run, from a form made from its workflow's input model."""

from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from runs import codec
from runs.models import Run
from runs.workflow import WORKFLOWS, Complete, Workflow
from tests import factories
from tests.runs.views.people import client_with

pytestmark = pytest.mark.django_db


class Level(Enum):
    LOW = "low"
    HIGH = "high"


class Item(BaseModel):
    sku: str
    count: int


class Everything(BaseModel):
    name: Annotated[str, Field(min_length=2, max_length=40, description="Who it is for")]
    count: Annotated[int, Field(ge=1, le=10)]
    price: Decimal
    share: float = 0.5
    urgent: bool = False
    sure: bool | None = None
    level: Level
    lane: Literal["fast", "slow"] = "slow"
    day: date
    at: datetime | None = None
    note: str | None = None
    items: list[Item] = []
    extra: dict[str, int] | None = None


@pytest.fixture
def everything():
    workflow = Workflow("everything", input=Everything, title="Every kind of field")
    workflow.step(start=True)(lambda ctx: Complete())
    yield workflow
    del WORKFLOWS["everything"]


GOOD = {
    "input-name": "Ines",
    "input-count": "3",
    "input-price": "12.30",
    "input-level": "high",
    "input-lane": "fast",
    "input-day": "2026-11-29",
    "input-items": '[{"sku": "LAMP", "count": 9007199254740993}]',
}


def test_workflows_are_listed_with_title_and_description(operator):
    html = operator.get("/runs/start/").content.decode()
    assert 'href="/runs/start/parcel/"' in html
    assert 'href="/runs/start/refund_request/"' in html
    assert "Refund request" in html and "pays back once" in html


def test_it_works(operator):
    response = operator.post("/runs/start/parcel/", {"input-order": "1042", "input-amount": "9.50"})
    run = Run.objects.get()
    assert response.headers["Location"] == f"/runs/{run.pk}/"
    assert codec.decode(run.input) == {"order": "1042", "amount": Decimal("9.50")}
    assert run.subject == "order 1042"
    assert run.started_by is not None


def test_every_kind_of_field_arrives_as_its_type(everything, operator):
    html = operator.get("/runs/start/everything/").content.decode()
    assert 'type="date"' in html and "Who it is for" in html
    response = operator.post(
        "/runs/start/everything/",
        {**GOOD, "input-urgent": "on", "input-sure": "no", "input-extra": '{"a": 1}'},
    )
    assert response.status_code == 302, response.content.decode()
    assert codec.decode(Run.objects.get().input) == {
        "name": "Ines",
        "count": 3,
        "price": Decimal("12.30"),
        "share": 0.5,
        "urgent": True,
        "sure": False,
        "level": "high",
        "lane": "fast",
        "day": date(2026, 11, 29),
        "at": None,
        "note": None,
        "items": [{"sku": "LAMP", "count": 9007199254740993}],
        "extra": {"a": 1},
    }


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("name", "", "This field is required."),
        ("name", "x", "at least 2 characters"),
        ("name", "a\x00b", "Null characters are not allowed."),
        ("count", "11", "less than or equal to 10"),
        ("count", "many", "valid integer"),
        ("price", "12,30", "valid decimal"),
        ("price", "NaN", "finite number"),
        ("level", "middling", "not one of the available choices"),
        ("day", "yesterday", "valid date"),
        ("items", "[{", "not valid JSON"),
        ("items", '[{"sku": "LAMP"}]', "0.count: Field required"),
        ("items", '[{"sku": "LAMP", "count": NaN}]', "not valid JSON"),
    ],
)
def test_a_mistake_stands_at_its_field_and_what_was_typed_stays(field, text, said, everything, operator):
    response = operator.post("/runs/start/everything/", {**GOOD, f"input-{field}": text})
    html = response.content.decode()
    assert response.status_code == 422
    errors = html[html.index(f'id="id_input-{field}_error"') :]
    assert said.replace('"', "&quot;") in errors[: errors.index("</ul>")]
    assert 'value="Ines"' in html or field == "name"
    assert not Run.objects.exists()


def test_subject_and_start_key_are_taken(operator):
    sent = {"input-order": "1042", "subject": "a gift", "start_key": "mail-8"}
    operator.post("/runs/start/parcel/", sent)
    run = Run.objects.get()
    assert (run.subject, run.start_key) == ("a gift", "mail-8")


def test_the_same_start_key_starts_one_run(operator):
    sent = {"input-order": "1042", "start_key": "mail-8"}
    operator.post("/runs/start/parcel/", sent)
    again = operator.post("/runs/start/parcel/", sent, follow=True)
    assert "no second one was started" in again.content.decode()
    assert Run.objects.count() == 1


def test_whoever_may_not_see_the_run_of_a_start_key_is_not_led_to_it(operator):
    operator.post("/runs/start/parcel/", {"input-order": "1042", "start_key": "mail-8"})
    starter = client_with("start_run")
    for order, told in (("1042", "a run that you may not see"), ("7", "was used for another input")):
        response = starter.post("/runs/start/parcel/", {"input-order": order, "start_key": "mail-8"})
        html = response.content.decode()
        assert response.status_code == 409 and told in html
        assert str(Run.objects.get().pk) not in html


def test_a_start_key_that_was_used_for_another_input_is_refused_and_leads_to_that_run(operator):
    operator.post("/runs/start/parcel/", {"input-order": "1042", "start_key": "mail-8"})
    response = operator.post("/runs/start/parcel/", {"input-order": "7", "start_key": "mail-8"})
    html = response.content.decode()
    assert response.status_code == 409
    assert f'href="/runs/{Run.objects.get().pk}/"' in html
    assert "was used for another input" in html


def test_only_get_and_post(operator):
    assert operator.put("/runs/start/parcel/").status_code == 405
    assert operator.post("/runs/start/").status_code == 405


def test_a_wrong_role_is_refused_by_direct_post(stranger):
    assert stranger.get("/runs/start/").status_code == 403
    assert stranger.post("/runs/start/parcel/", {"input-order": "1042"}).status_code == 403
    assert not Run.objects.exists()


def test_no_workflow_is_not_found(operator):
    assert operator.get("/runs/start/no_such_workflow/").status_code == 404


def test_a_workflow_without_an_input_model_takes_json(operator):
    workflow = Workflow("anything")
    workflow.step(start=True)(lambda ctx: Complete())
    try:
        response = operator.post("/runs/start/anything/", {"input-value": '{"a": [1, 2]}'})
        assert response.status_code == 302
        assert Run.objects.get().input == {"a": [1, 2]}
    finally:
        del WORKFLOWS["anything"]


def test_an_input_that_is_too_long_is_refused_at_its_field(operator):
    response = operator.post("/runs/start/parcel/", {"input-order": "9" * 1_000_000})
    assert response.status_code == 422 and "A form takes at most 900.0 KB" in response.content.decode()
    assert not Run.objects.exists()


def test_the_page_of_the_new_run_says_that_it_started(operator):
    response = operator.post("/runs/start/parcel/", {"input-order": "1042"}, follow=True)
    assert "Started." in response.content.decode()
    assert factories.parcel.name == "parcel"
