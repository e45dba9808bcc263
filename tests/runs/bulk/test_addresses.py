"""From the list of runs to a bulk of all that it shows."""

import pytest
from django.urls import reverse

from runs.bulk import selection
from tests import factories
from tests.people import SignIn

NEW = reverse("runs:bulk_new")


@pytest.mark.parametrize(
    ("listed", "address"),
    [
        (
            {"status": "dead_letter", "workflow": "parcel"},
            f"{NEW}?workflow=parcel&verb=retry&failure_kind=dead_letter",
        ),
        ({"status": "failed", "q": "order 1"}, f"{NEW}?q=order+1&verb=retry"),
        ({"status": "waiting", "subject": "order 7"}, f"{NEW}?subject=order+7&verb=cancel&status=waiting"),
        ({"status": "completed"}, ""),
    ],
)
def test_what_the_list_shows_is_what_the_bulk_chooses(listed: dict[str, str], address: str) -> None:
    assert selection.address(listed) == address


@pytest.mark.django_db
def test_the_list_offers_it_to_those_who_may_where_there_is_something_to_act_on(sign_in: SignIn) -> None:
    url = f"{reverse('runs:list')}?status=dead_letter"
    support = sign_in(factories.support())
    assert NEW not in support.get(url).content.decode()
    factories.failed(workflow="parcel")
    assert f"{NEW}?verb=retry&amp;failure_kind=dead_letter" in support.get(url).content.decode()
    assert NEW not in sign_in(factories.operator()).get(url).content.decode()
