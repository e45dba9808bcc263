"""Guessing passwords: counted for all web processes together, by address and by account, and nobody is locked out by others."""

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, RequestFactory
from pytest_django import Settings

from agentops import guesses
from agentops.addresses import client_address
from agentops.models import Guess
from tests.harness.processes import Processes
from tests.security.conftest import PASSWORD

pytestmark = pytest.mark.django_db


def attempt(
    client: Client, password: str = "wrong", name: str = "mara.okafor", address: str = "192.0.2.1"
) -> int:
    answer = client.post("/sign-in/", {"username": name, "password": password}, REMOTE_ADDR=address)
    return answer.status_code


def flood(times: int) -> None:
    """Wrong passwords from many addresses, one each."""
    for number in range(times):
        attempt(Client(), address=f"198.51.100.{number}")


def test_an_account_is_guessed_from_many_addresses_only_so_often(mara: User) -> None:
    flood(guesses.PER_ACCOUNT_EVERYWHERE)
    assert attempt(Client(), PASSWORD, address="203.0.113.9") == 429


def test_a_browser_that_is_known_signs_in_while_the_account_is_under_attack(mara: User) -> None:
    own = Client()
    assert attempt(own, PASSWORD) == 302
    own.post("/sign-out/")
    flood(guesses.PER_ACCOUNT_EVERYWHERE + 1)
    for _ in range(guesses.PER_ADDRESS + 1):
        attempt(Client(), name="somebody.else")
    assert attempt(Client(), PASSWORD) == 429
    assert attempt(own, PASSWORD) == 302


def test_a_known_browser_may_not_guess_for_ever_either(mara: User) -> None:
    own = Client()
    attempt(own, PASSWORD)
    own.post("/sign-out/")
    answers = [attempt(own) for _ in range(guesses.PER_ACCOUNT + 1)]
    assert answers == [422] * guesses.PER_ACCOUNT + [429]


def test_a_browser_is_known_for_its_own_account_only_and_nobody_makes_the_cookie_up(mara: User) -> None:
    User.objects.create_user("k.ito", password=PASSWORD)
    others = Client()
    assert attempt(others, PASSWORD, name="k.ito") == 302
    others.post("/sign-out/")
    flood(guesses.PER_ACCOUNT_EVERYWHERE)
    assert attempt(others, PASSWORD) == 429
    forged = Client()
    forged.cookies["known"] = others.cookies["known"].value[:-1] + "x"
    assert attempt(forged, PASSWORD) == 429


def test_an_attack_ends_with_its_window(mara: User) -> None:
    flood(guesses.PER_ACCOUNT_EVERYWHERE + 1)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO runs_clock (id, shift) VALUES (1, '301 seconds')")
    assert attempt(Client(), PASSWORD, address="203.0.113.9") == 302


def test_an_address_that_is_over_makes_no_rows_for_the_names_that_it_tries(mara: User) -> None:
    for number in range(guesses.PER_ADDRESS):
        assert guesses.Guesses(f"name {number}", "192.0.2.1").count()
    before = Guess.objects.count()
    assert not guesses.Guesses("one more", "192.0.2.1").count()
    assert Guess.objects.count() == before


def test_the_table_tells_neither_names_nor_passwords_typed_as_names(mara: User) -> None:
    attempt(Client(), name=PASSWORD)
    for key in Guess.objects.values_list("key", flat=True):
        assert len(key) == 64 and PASSWORD not in key


@pytest.mark.django_db(transaction=True)
def test_two_web_processes_count_together(processes: Processes) -> None:
    for _ in range(guesses.PER_ACCOUNT):
        assert guesses.Guesses("mara.okafor", "192.0.2.1").count()
    one_more = "from agentops.guesses import Guesses; print(Guesses('mara.okafor', '192.0.2.1').count())"
    assert processes.run("shell", "--no-imports", "-c", one_more).strip() == "False"


# --- where a request comes from ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, None, "10.0.0.1"),
        (0, "192.0.2.7", "10.0.0.1"),  # nobody in front whose word counts
        (1, "192.0.2.7", "192.0.2.7"),
        (1, "203.0.113.66, 192.0.2.7", "192.0.2.7"),  # the client's own words come first
        (2, "203.0.113.66, 192.0.2.7, 10.0.0.9", "192.0.2.7"),
        (2, "192.0.2.7", "10.0.0.1"),  # passed one proxy too few
        (1, "unknown", "10.0.0.1"),
        (1, "", "10.0.0.1"),
        (1, None, "10.0.0.1"),
        (1, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        (1, "::ffff:192.0.2.7", "192.0.2.7"),
    ],
)
def test_the_address_is_the_one_that_the_outermost_trusted_proxy_saw(
    proxies: int, forwarded: str | None, address: str, settings: Settings
) -> None:
    settings.AGENTOPS_PROXIES = proxies
    request = RequestFactory().get("/", REMOTE_ADDR="10.0.0.1")
    if forwarded is not None:
        request.META["HTTP_X_FORWARDED_FOR"] = forwarded
    assert client_address(request) == address


def test_a_client_without_an_address_is_counted_as_one(settings: Settings) -> None:
    assert client_address(RequestFactory().get("/", REMOTE_ADDR="")) == ""
