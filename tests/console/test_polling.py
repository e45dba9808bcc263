"""Polled regions: 304 while nothing changed, and forms that come back with their mistakes."""

from django.test import Client


def test_a_poll_that_knows_the_state_is_answered_304_without_a_body(signed_in: Client) -> None:
    first = signed_in.get("/look/tick/", headers={"HX-Request": "true"})
    again = signed_in.get("/look/tick/", headers={"HX-Request": "true", "HX-PTag": first["HX-PTag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert f'hx-ptag="{first["HX-PTag"]}"' in first.content.decode()


def test_a_poll_with_an_old_state_gets_the_fragment_only(signed_in: Client) -> None:
    response = signed_in.get("/look/tick/", headers={"HX-Request": "true", "HX-PTag": "older"})
    assert response.status_code == 200
    assert response.content.decode().startswith('<div id="tick"')


def test_a_refused_form_comes_back_with_what_was_typed_and_what_is_wrong(signed_in: Client) -> None:
    response = signed_in.post(
        "/look/form/", {"seen_version": "7", "reason": "<b>because</b>", "attempts": "1000"}
    )
    html = response.content.decode()
    assert response.status_code == 422
    assert 'value="&lt;b&gt;because&lt;/b&gt;"' in html
    assert 'aria-invalid="true"' in html
    assert "Ensure this value is less than or equal to 100." in html


def test_a_verb_that_worked_says_so_on_the_page_one_came_from(signed_in: Client) -> None:
    form = {"seen_version": "7", "reason": "<i>why</i>\u202e", "attempts": "8"}
    html = signed_in.post("/look/form/", form, follow=True).content.decode()
    assert 'Done, because “&lt;i&gt;why&lt;/i&gt;<span class="ctl">U+202E</span>”.' in html
    assert html.index("data-result") < html.index("<h1")
