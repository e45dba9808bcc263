"""Signing in: works, wrong, limited, and nothing is told to those who guess."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from agentops.guesses import PER_ACCOUNT, PER_ADDRESS, Guesses
from agentops.models import Guess
from tests.console.conftest import PASSWORD

MISMATCH = "User name and password do not match."
TOO_MANY = "Too many attempts."


def _try(username: str, password: str, **extra: str) -> tuple[int, str]:
    response = Client().post("/sign-in/", {"username": username, "password": password, **extra})
    return response.status_code, response.content.decode()


@pytest.mark.parametrize("path", ["/", "/look/", "/password/", "/runs/0198f1a7/", "/nowhere/"])
def test_an_anonymous_visitor_sees_only_the_sign_in_page(path: str, db: None) -> None:
    response = Client().get(path)
    assert response.status_code == 302
    assert response["Location"] == f"/sign-in/?next={path}"


def test_an_anonymous_poll_is_answered_401_and_not_the_sign_in_page(db: None) -> None:
    response = Client(headers={"HX-Request": "true"}).get("/look/tick/")
    assert (response.status_code, response.content) == (401, b"You are signed out.")


def test_the_right_password_leads_to_the_page_that_was_asked_for(mara: User) -> None:
    response = Client().post("/sign-in/", {"username": mara.username, "password": PASSWORD, "next": "/look/"})
    assert (response.status_code, response["Location"]) == (302, "/look/")


@pytest.mark.parametrize(
    "address", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "/\\evil.example"]
)
def test_next_never_leads_to_another_site(address: str, mara: User) -> None:
    response = Client().post("/sign-in/", {"username": mara.username, "password": PASSWORD, "next": address})
    assert (response.status_code, response["Location"]) == (302, "/")


def test_a_wrong_password_an_unknown_name_and_a_closed_account_get_one_answer(
    mara: User, nobody: User
) -> None:
    nobody.is_active = False
    nobody.save()
    answers = [_try(mara.username, "wrong"), _try("no.such.person", "wrong"), _try(nobody.username, PASSWORD)]
    assert {status for status, _ in answers} == {422}
    assert all(MISMATCH in html for _, html in answers)
    assert not any("inactive" in html.lower() for _, html in answers)


def test_after_five_failures_even_the_right_password_has_to_wait(mara: User) -> None:
    for _ in range(PER_ACCOUNT):
        assert _try(mara.username, "wrong")[0] == 422
    status, html = _try(mara.username, PASSWORD)
    assert status == 429
    assert TOO_MANY in html
    assert MISMATCH not in html


def test_an_unknown_name_is_limited_like_a_known_one(db: None) -> None:
    assert [_try("no.such.person", "wrong")[0] for _ in range(PER_ACCOUNT + 1)] == [422] * PER_ACCOUNT + [429]


def test_another_address_is_not_locked_out_by_a_guesser(mara: User) -> None:
    for _ in range(PER_ACCOUNT + 1):
        _try(mara.username, "wrong")
    response = Client(REMOTE_ADDR="192.0.2.7").post(
        "/sign-in/", {"username": mara.username, "password": PASSWORD}
    )
    assert response.status_code == 302


def test_spelling_the_name_otherwise_gives_no_further_guesses(mara: User) -> None:
    for _ in range(PER_ACCOUNT):
        _try(mara.username, "wrong")
    assert _try(mara.username.upper(), "wrong")[0] == 429


def test_one_address_may_not_try_many_names(mara: User) -> None:
    for number in range(PER_ADDRESS):
        assert Guesses(f"name{number}", "127.0.0.1").count()
    assert _try(mara.username, PASSWORD)[0] == 429


def test_a_right_password_takes_its_own_try_back(mara: User) -> None:
    for _ in range(PER_ACCOUNT * 2):
        assert _try(mara.username, PASSWORD)[0] == 302


def test_the_count_ends_with_its_window_and_its_rows_go(mara: User) -> None:
    for _ in range(PER_ACCOUNT + 1):
        _try(mara.username, "wrong")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO runs_clock (id, shift) VALUES (1, '301 seconds')")
    assert _try(mara.username, PASSWORD)[0] == 302
    assert set(Guess.objects.values_list("count", flat=True)) <= {0}


@pytest.mark.django_db(transaction=True)
def test_guesses_sent_at_one_instant_do_not_slip_through() -> None:
    barrier = Barrier(8)

    def guess(_: int) -> bool:
        try:
            barrier.wait()
            return Guesses("mara.okafor", "127.0.0.1").count()
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(guess, range(8))) == PER_ACCOUNT


def test_a_form_without_its_token_is_refused_with_a_page_that_says_why(mara: User) -> None:
    client = Client(enforce_csrf_checks=True)
    response = client.post("/sign-in/", {"username": mara.username, "password": PASSWORD})
    assert response.status_code == 403
    assert "Form out of date" in response.content.decode()


def test_whoever_is_signed_in_does_not_see_the_form_again(signed_in: Client) -> None:
    assert signed_in.get("/sign-in/").status_code == 302
