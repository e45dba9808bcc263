"""Who signed in and out, and who tried to: entries of the audit, about “sign-in of NAME”, beside what was changed about a person.

A failed try never tells the name that was typed, since people type their password into that field: it tells whose name it is, or
that nobody has it. How many entries strangers can make is bounded: of the tries for one person within WINDOW_S seconds, and of
those under all unknown names together, only the 1st, 10th, 100th, … up to the 100,000th is entered, each with its number. That is
six entries for each person in five minutes at most, and one for those who mistype.

Whether a name is somebody's must not be told by how long an answer takes either: an entry is made for every try, its place in the
chain as well, and taken back where it is not one to keep.
"""

from typing import Any

from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Manager

from agentops import guesses

#: What entries about somebody's sign-in, and about those under a name that nobody has, are about.
OF, UNKNOWN = "sign-in of ", "sign-in"
#: Who failed, where nobody is signed in.
VISITOR = "a visitor"
#: The tries that are entered. `guesses` counts to a million and stays there.
ENTERED = frozenset(10**power for power in range(6))


def signed_in(person: User, how: str = "") -> None:
    """A password was right, or a link: call it in the transaction that signs the person in."""
    _enter("signed_in", person, how)


def signed_in_again(person: User) -> None:
    """Somebody who is signed in has proved once more who they are."""
    _enter("signed_in_again", person)


def signed_out(person: User) -> None:
    _enter("signed_out", person)


def failed(typed: str, by: User | None = None) -> None:
    """A try that signed nobody in, or that was refused as one too many. `by`: whose session asked for the password again."""
    person = User.objects.filter(username=typed).first()
    with transaction.atomic():
        number = guesses.count_failure(person.get_username() if person else "")
        before = transaction.savepoint_create()
        _events().create(
            kind="sign_in_failed",
            target=_target(person) if person else UNKNOWN,
            actor_user_id=by.pk if by else None,
            actor=by.get_username() if by else VISITOR,
            new={"tries": number},
        )
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS chain IMMEDIATE")
        if number in ENTERED:
            transaction.savepoint_commit(before)
        else:
            transaction.savepoint_rollback(before)


def _enter(kind: str, person: User, how: str = "") -> None:
    _events().create(
        kind=kind,
        target=_target(person),
        actor_user_id=person.pk,
        actor=person.get_username(),
        reason=how,
    )


def _target(person: User) -> str:
    return f"{OF}{person.get_username()}"


def _events() -> Manager[Any]:
    """Rows of the audit; their model is asked for late, as a cluster of ordinary tasks alone has none."""
    found: Manager[Any] = apps.get_model("runs", "AuditEvent").objects
    return found
