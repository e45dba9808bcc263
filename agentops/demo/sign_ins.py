"""Who may sign in to a demo: made once, their passwords kept in the data folder and printed at each start."""

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.utils.crypto import constant_time_compare

#: Without characters that are mistaken for others.
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"

#: Name, groups, what they are for. The admin decides as an operator too, so that whoever asks, two others can approve.
PEOPLE = (
    ("olivia", ("operators",), "operator: approves what agents want to do"),
    ("omar", ("operators",), "operator: a second pair of eyes"),
    ("sam", ("support",), "support: finds out what went wrong; retries, cancels, forces"),
    ("ada", ("admins", "operators"), "admin: changes limits and pauses workflows; decides as well"),
)


@dataclass(frozen=True)
class SignIn:
    """`password` is None where somebody has changed it since."""

    name: str
    password: str | None
    purpose: str


class Secrets:
    """A small JSON file, readable by its owner only: what must be the same at the next start."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, or ValueError for a file that is none of ours."""
        self._path = path
        self._kept: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        if not isinstance(self._kept, dict):
            raise ValueError(f"{path} holds no JSON object")

    def keep(self, name: str, make: str) -> tuple[str, bool]:
        """The secret of this name, `make` if there is none yet; and whether it is new."""
        new = name not in self._kept
        if new:
            self.put(name, make)
        return self._kept[name], new

    def get(self, name: str) -> str | None:
        return self._kept.get(name)

    def put(self, name: str, secret: str) -> None:
        """Keep a secret under a name, in the place of an older one."""
        self._kept[name] = secret
        draft = self._path.with_suffix(".new")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(self._kept, file, indent=2)
        draft.replace(self._path)


def password() -> str:
    """Twelve characters of 31, about 59 bits."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(3))


@transaction.atomic
def make(kept: Secrets) -> list[SignIn]:
    """Make the people that are missing; a password that somebody has changed stays changed."""
    made = []
    for name, groups, purpose in PEOPLE:
        word, new = kept.keep(f"password of {name}", password())
        user, created = User.objects.get_or_create(username=name)
        if created or new:
            user.set_password(word)
            user.save()
            kept.put(f"hash of {name}", user.password)
        user.groups.add(*Group.objects.filter(name__in=groups))
        # Hashing a password again takes about a second; the same hash says as much.
        known = kept.get(f"hash of {name}") or ""
        ours = constant_time_compare(user.password, known) or user.check_password(word)
        made.append(SignIn(name, word if ours else None, purpose))
    return made
