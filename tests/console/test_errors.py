"""Error pages say what happened and that nothing was done; htmx gets one sentence."""

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client, RequestFactory

from agentops import views


@pytest.mark.parametrize(
    ("status", "answer", "title"),
    [
        (400, 400, "Bad request"),
        (403, 403, "Not allowed"),
        (404, 404, "Not found"),
        (409, 409, "This had changed"),
        (410, 403, "Not allowed"),
        (419, 403, "Form out of date"),
        (500, 500, "The server failed"),
    ],
)
def test_every_error_has_a_page_in_the_console(
    status: int, answer: int, title: str, signed_in: Client
) -> None:
    response = signed_in.get(f"/look/error/{status}/")
    assert response.status_code == answer
    assert title in response.content.decode()


@pytest.mark.parametrize("status", [400, 403, 404, 409])
def test_htmx_gets_one_plain_sentence(status: int, signed_in: Client) -> None:
    response = signed_in.get(f"/look/error/{status}/", headers={"HX-Request": "true"})
    assert response.status_code == status
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert "<" not in response.content.decode()


def test_a_conflict_leads_to_the_fresh_view(signed_in: Client) -> None:
    html = signed_in.get("/look/error/409/").content.decode()
    assert "This run has changed since the page was loaded; it is now completed." in html
    assert 'href="/look/"' in html


def test_an_address_that_leads_nowhere_is_not_found(signed_in: Client) -> None:
    assert signed_in.get("/nowhere/").status_code == 404


def test_a_database_that_does_not_answer_is_said_to_pass() -> None:
    try:
        raise OperationalError("the connection is lost")
    except OperationalError:
        response = views.server_error(RequestFactory().get("/"))
    assert response.status_code == 503
    assert "The database does not answer" in response.content.decode()
    assert "connection is lost" not in response.content.decode()


def test_the_page_of_a_server_error_needs_neither_database_nor_session() -> None:
    response = views.server_error(RequestFactory().get("/"))
    assert response.status_code == 500
    assert "Runs are not affected" in response.content.decode()


def test_whoever_is_in_no_group_is_told_so(nobody: User) -> None:
    client = Client()
    client.force_login(nobody)
    assert "in no group" in client.get("/").content.decode()
