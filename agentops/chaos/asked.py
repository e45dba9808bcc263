"""What the robots asked of runs, and what they were told: the judge holds it against the history.

Each request says why in words of its own, so that the history can tell one from another, and whether one of them is there twice.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from django.db import InterfaceError, OperationalError

from runs.errors import VerbError
from runs.services import Done

DATABASE_AWAY = (OperationalError, InterfaceError)
#: Reasons begin with this.
REASON = "chaos"

#: The event that each verb writes, once, into the history of the run that it was used on.
EVENTS = {
    "cancel": "cancel_requested",
    "force_resume": "force_resumed",
    "retry": "retried",
    "fork": "forked",
    "skip": "skipped",
    "edit_state": "state_edited",
    "kill": "killed",
    "decide": "vote",
}


class Answer(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    """Or it had been done before: nothing is to follow from it."""
    UNKNOWN = "unknown"
    """The database went away meanwhile: it may have been done, once."""


@dataclass(frozen=True)
class Asked:
    """One request, and what became of it. `verb`: a key of EVENTS."""

    verb: str
    run: str
    reason: str
    answer: str

    def __str__(self) -> str:
        return f"{self.verb} of run {self.run} ({self.reason})"


class Book:
    """Requests in the order in which they were answered; written by several threads."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.asked: list[Asked] = []

    def ask(self, verb: str, run_id: UUID, work: Callable[[str], Done]) -> str:
        """Ask for it, with a reason; the refusal, or "". Raises what says that the database is away."""
        reason = self.reason()
        try:
            done = work(reason)
        except VerbError as error:
            self.note(verb, run_id, reason, Answer.REFUSED)
            return str(error)
        except DATABASE_AWAY:
            self.note(verb, run_id, reason, Answer.UNKNOWN)
            raise
        self.note(verb, run_id, reason, Answer.DONE if done.changed else Answer.REFUSED)
        return ""

    def reason(self) -> str:
        """One that no other request has."""
        return f"{REASON} {next(self._numbers)}"

    def note(self, verb: str, run_id: UUID, reason: str, answer: Answer) -> None:
        self.asked.append(Asked(verb, str(run_id), reason, str(answer)))
