"""Two administrators who take it from each other at one moment: one of them is left."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client

from agentops.people import holding, services
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 3


def managers() -> list[str]:
    found = User.objects.filter(holding.people_with([services.MANAGE]))
    return sorted(found.values_list("username", flat=True))


def browser(of: User) -> Client:
    made = Client()
    made.force_login(of)
    return made


def race(*paths_of: tuple[User, Callable[[], str]]) -> list[int]:
    """Each person sends the form of a page that they have open, at one moment; what each is answered."""
    barrier = Barrier(len(paths_of))

    def send(person: User, path: str) -> int:
        try:
            client = browser(person)
            form = client.get(path).context["form"]
            given = {"seen": form.initial["seen"], "reason": "first come"}
            barrier.wait()
            return client.post(path, given).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(len(paths_of)) as threads:
        futures = [threads.submit(send, person, path()) for person, path in paths_of]
        return [future.result() for future in futures]


@pytest.mark.parametrize("verb", ["leave", "off"])
def test_two_who_take_it_from_each_other_from_two_browsers_leave_one(verb: str) -> None:
    admins = Group.objects.get(name="admins").pk
    for _ in range(ROUNDS):
        User.objects.all().delete()
        ada, bea = factories.user("ada", "admins"), factories.user("bea", "admins")

        def path(of: User) -> str:
            return f"/people/{of.pk}/{verb}/" + (f"{admins}/" if verb == "leave" else "")

        answers = race((ada, lambda: path(bea)), (bea, lambda: path(ada)))  # noqa: B023 (called in this round)
        # Whoever came second was no longer allowed to by then, or no longer signed in.
        assert sorted(answers)[0] == 302
        assert len(managers()) == 1, answers


def test_a_person_who_gives_it_to_another_and_one_who_takes_it_away_leave_somebody() -> None:
    """Three verbs in a circle: each takes out the next; nobody is left only if each acted on what was no longer so."""
    admins = Group.objects.get(name="admins").pk
    for _ in range(ROUNDS):
        User.objects.all().delete()
        people = [factories.user(name, "admins") for name in ("ada", "bea", "cleo")]
        following = [*people[1:], people[0]]
        race(
            *(
                (person, lambda other=other: f"/people/{other.pk}/leave/{admins}/")
                for person, other in zip(people, following, strict=True)
            )
        )
        assert managers()
