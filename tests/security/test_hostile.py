"""Whatever agents, customers, providers and people write, every page shows it as text, does nothing else and stays small."""

import pytest
from django.db import connection
from django.db.models import JSONField
from django.test import Client

from runs.states import Status
from tests import factories
from tests.security.hostile import HOSTILE, LONG, harmless
from tests.security.test_content import addresses, models
from tests.security.world import world

pytestmark = pytest.mark.django_db

#: Pages whose form is filled in with what is recorded.
FORMS = {"approvals:edit", "policies:edit"}
#: The whole of one value, as JSON: asked for by who wants all of it.
WHOLE = {"approvals:version", "runs:value", "runs:record_value", "runs:operation_value"}
#: Forms in which the whole of a value is edited.
EDITED = {"approvals:edit", "runs:skip", "runs:edit_state", "runs:fork"}
#: Bytes of a page, however long what it shows is.
LARGEST = 900_000

#: All in one, and the one that must stand first to work.
TEXTS = (" ".join(HOSTILE), "javascript:alert(3)")


@pytest.mark.parametrize("text", TEXTS)
def test_hostile_text_in_every_field_is_harmless_on_every_page(text: str, console: Client) -> None:
    for name, url in addresses(world(text)).items():
        if name.startswith("look:"):
            continue  # shows hostile samples of its own, some of them in a form
        response = console.get(url)
        assert response.status_code < 500, name
        if response["Content-Type"].startswith("text/html"):
            html = response.content.decode()
            # A form gives a person back what stands in it, character by character.
            assert harmless(html, typed=name in FORMS), name
            if "hx-get" in html:
                polled = console.get(url, headers={"HX-Request": "true"})
                assert harmless(polled.content.decode(), typed=name in FORMS), name
        elif name != "runs:evidence":  # only ever a download
            assert b"<" not in response.content or response["Content-Type"].startswith("application/json")


def test_a_line_of_a_megabyte_in_every_field_of_content_makes_no_page_large(console: Client) -> None:
    made = world()
    _fill(LONG)
    sizes = {}
    for name, url in addresses(made).items():
        if name not in WHOLE | EDITED and name != "runs:evidence":
            response = console.get(url)
            assert response.status_code < 500, name
            sizes[name] = len(response.content)
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}


def _fill(text: str) -> None:
    """Put `text` into every field of content of every row, past what guards the tables."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for _, model, fields in models():
            for name in fields:
                (field,) = (one for one in model._meta.concrete_fields if one.attname == name)
                made = "jsonb_build_object('long', %s::text)" if isinstance(field, JSONField) else "%s"
                if field.get_internal_type() != "BinaryField":
                    cursor.execute(f'UPDATE "{model._meta.db_table}" SET "{field.column}" = {made}', [text])
        cursor.execute("SET session_replication_role = DEFAULT")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_an_address_is_harmless(text: str, console: Client) -> None:
    run = factories.run(Status.WAITING)
    for url, names in (
        ("/runs/", ("q", "status", "workflow", "subject", "before")),
        (f"/runs/{run.pk}/", ("part", "before", "children", "after")),
        ("/failures/", ("workflow", "version", "before")),
        ("/bulk/new/", ("workflow", "step", "tool", "q", "subject")),
        ("/approvals/", ("group", "kind", "claim", "after")),
        ("/runs/subjects/", ("subject",)),
    ):
        response = console.get(url, dict.fromkeys(names, text))
        assert response.status_code in (200, 422), url
        harmless(response.content.decode(), typed=True)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_a_form_comes_back_harmless(text: str, console: Client) -> None:
    run = factories.run(Status.FAILED)
    refused = console.post(f"/runs/{run.pk}/retry/", {"seen_version": "0", "reason": text})
    assert refused.status_code in (409, 422)
    assert "Retry step pack" in harmless(refused.content.decode(), typed=True).text
    started = console.post("/runs/start/parcel/", {"input-amount": text, "input-order": text})
    assert started.status_code == 422
    harmless(started.content.decode(), typed=True)
