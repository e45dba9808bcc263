"""`manage.py person`: who may sign in to the console, and with which groups."""

import getpass
import secrets
import sys
from typing import Any

from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from agentops.people.services import release_claims
from runs.management.acting import COMMAND_LINE
from runs.models import AuditEvent


class Command(BaseCommand):
    help = (
        "Make a person who may sign in, or change one: groups, a new password, on or off. Without an option it shows them. "
        "A generated password is printed once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", help="what the person signs in as")
        parser.add_argument(
            "--group",
            action="append",
            dest="groups",
            metavar="GROUP",
            help="operators, support, admins or one of your own; may be given more than once, and leaves only these",
        )
        parser.add_argument(
            "--new-password",
            action="store_true",
            help="give an existing person a new password; ends their sessions",
        )
        parser.add_argument(
            "--ask",
            action="store_true",
            help="ask for the password (without a terminal: a line of standard input) instead of generating one",
        )
        active = parser.add_mutually_exclusive_group()
        active.add_argument(
            "--off", action="store_const", const=False, dest="active", help="no sign-in any more"
        )
        active.add_argument("--on", action="store_const", const=True, dest="active", help="sign-in again")

    def handle(self, *args: Any, **options: Any) -> None:
        groups = None if options["groups"] is None else _groups(options["groups"])
        user = User.objects.filter(username=options["name"]).first()
        if user is None and groups is None:
            raise CommandError(
                f"there is no person {options['name']!r}; to make one, say in which group: --group operators"
            )
        known = user is not None
        person = user or User(username=options["name"])
        password = None
        if not known or options["new_password"] or options["ask"]:
            _check_name(person)
            password = _asked(person) if options["ask"] else secrets.token_urlsafe(15)
        if groups is not None or password is not None or options["active"] is not None:
            self._save(person, known, groups, password, options["active"])
        self.stdout.write(_described(person))
        if password is not None and not options["ask"]:
            self.stdout.write(f"password: {password}")

    @transaction.atomic
    def _save(
        self,
        person: User,
        known: bool,
        groups: list[Group] | None,
        password: str | None,
        active: bool | None,
    ) -> None:
        """Write the person, and one line of history with what was and what is."""
        old = _facts(person) if known else None
        if password is not None:
            person.set_password(password)
        if active is not None:
            person.is_active = active
        person.save()
        if active is False:
            release_claims(COMMAND_LINE, person, "")
        if groups is not None:
            person.groups.set(groups)
        AuditEvent.objects.create(
            kind="person_changed",
            target=f"person {person.username}",
            actor=COMMAND_LINE.name,
            old=old,
            new=_facts(person) | {"password": "new" if password is not None else "kept"},
        )


def _groups(names: list[str]) -> list[Group]:
    """The groups of these names. Raises CommandError for one that does not exist."""
    found = {group.name: group for group in Group.objects.all()}
    if unknown := sorted(set(names) - found.keys()):
        raise CommandError(f"there is no group {', '.join(unknown)}; known: {', '.join(sorted(found))}")
    return [found[name] for name in dict.fromkeys(names)]


def _check_name(person: User) -> None:
    try:
        person.clean_fields(exclude=["password"])
    except ValidationError as error:
        raise CommandError(f"{person.username!r}: {' '.join(error.messages)}") from None


def _asked(person: User) -> str:
    """A password that somebody typed. Raises CommandError for one that is too weak, or typed differently twice."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"Password of {person.username}: ")
        if getpass.getpass("Again: ") != password:
            raise CommandError("the two passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\n")
    try:
        validate_password(password, person)
    except ValidationError as error:
        raise CommandError(" ".join(error.messages)) from None
    return password


def _facts(person: User) -> dict[str, Any]:
    return {
        "groups": sorted(person.groups.values_list("name", flat=True)),
        "active": person.is_active,
    }


def _described(person: User) -> str:
    facts = _facts(person)
    groups = ", ".join(facts["groups"]) or "no group"
    return f"{person.username}: {groups}" + ("" if facts["active"] else "; switched off")
