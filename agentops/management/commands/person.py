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

from agentops.people.services import shut_out
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
            "--off",
            action="store_const",
            const=False,
            dest="active",
            help="no sign-in any more: ends their sessions, and makes password and sign-in links void",
        )
        active.add_argument(
            "--on", action="store_const", const=True, dest="active", help="sign-in again, with a new password"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        groups = None if options["groups"] is None else _groups(options["groups"])
        name = User.normalize_username(options["name"])  # as the sign-in does
        user = User.objects.filter(username=name).first()
        if user is None and groups is None:
            raise CommandError(
                f"there is no person {name!r}; to make one, say in which group: --group operators"
            )
        known = user is not None
        person = user or User(username=name)
        if not known:
            _check_name(person)
        password = None
        off, back = options["active"] is False, options["active"] is True and not person.is_active
        if off and (options["new_password"] or options["ask"]):
            raise CommandError("whoever is switched off has no password: give one with --on")
        if not off and (not known or back or options["new_password"] or options["ask"]):
            password = _asked(person) if options["ask"] else secrets.token_urlsafe(15)
        if groups is not None or password is not None or options["active"] is not None:
            person = self._save(person, known, groups, password, options["active"])
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
    ) -> User:
        """Write what is given and nothing else of the person, and one line of history with what was and what is."""
        if known:
            person = _locked(person)
        old = _facts(person) if known else None
        if password is not None:
            person.set_password(password)
        if active is not None:
            person.is_active = active
        given = {"password": password, "is_active": active}
        person.save(update_fields=[name for name, one in given.items() if one is not None] if known else None)
        if active is False:
            shut_out(COMMAND_LINE, person, "")
        if groups is not None:
            person.groups.set(groups)
        AuditEvent.objects.create(
            kind="person_changed",
            target=f"person {person.username}",
            actor=COMMAND_LINE.name,
            old=old,
            new=_facts(person)
            | {"password": "new" if password is not None else "void" if active is False else "kept"},
        )
        return person


def _groups(names: list[str]) -> list[Group]:
    """The groups of these names. Raises CommandError for one that does not exist."""
    found = {group.name: group for group in Group.objects.all()}
    if unknown := sorted(set(names) - found.keys()):
        raise CommandError(f"there is no group {', '.join(unknown)}; known: {', '.join(sorted(found))}")
    return [found[name] for name in dict.fromkeys(names)]


def _locked(person: User) -> User:
    """The person as they are now, under a lock: a password may have been typed for minutes since they were read.

    Raises CommandError where somebody has switched them off or on meanwhile: what was asked for was meant for the other.
    """
    now = User.objects.select_for_update(no_key=True).filter(pk=person.pk).first()
    if now is None or now.is_active != person.is_active:
        raise CommandError(f"{person.username} was changed in this moment: look at them and ask again")
    return now


def _check_name(person: User) -> None:
    try:
        person.clean_fields(exclude=["password"])
    except ValidationError as error:
        raise CommandError(f"{person.username!r}: {' '.join(error.messages)}") from None
    # As in the console: histories and policies tell people by their names.
    if other := User.objects.filter(username__iexact=person.username).first():
        raise CommandError(
            f"there is {other.username} already: names that differ by case alone would be mixed up"
        )


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
