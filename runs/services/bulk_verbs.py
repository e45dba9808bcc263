"""The verbs that a bulk may use: each is the very function that the page of one run calls."""

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from runs.errors import Asked, StateMismatch, VerbError
from runs.lifecycle import Actor
from runs.models import Bulk
from runs.services.cancel import cancel, preview_cancel
from runs.services.force_resume import force_resume, preview_force_resume
from runs.services.prioritise import preview_prioritise, prioritise
from runs.services.retry import preview_retry, retry
from runs.services.verb import Consequence, Done, label, lock, permit


@dataclass(frozen=True)
class BulkVerb:
    """One verb: what it takes to use it, and what it is called."""

    permission: str
    use: Callable[..., Done]
    preview: Callable[..., Consequence]
    guarded: bool
    """A run that has changed since it was chosen is skipped; else only one that has left the status it was chosen by."""
    makes_due: bool
    """Workers get something to do by it, so that it must leave them room."""
    infinitive: str
    """“retry”, as in “Retry 12 runs”."""
    past: str
    """“retried”, as in “12 runs were retried”."""
    given: tuple[str, ...] = ()
    """Columns of the bulk that the verb and its preview take as well."""

    def takes(self, bulk: Bulk) -> dict[str, Any]:
        return {name: getattr(bulk, name) for name in self.given}


VERBS: dict[str, BulkVerb] = {
    Bulk.Verb.RETRY: BulkVerb("runs.retry_run", retry, preview_retry, True, True, "retry", "retried"),
    Bulk.Verb.CANCEL: BulkVerb(
        "runs.cancel_run", cancel, preview_cancel, False, False, "cancel", "cancelled"
    ),
    Bulk.Verb.FORCE_RESUME: BulkVerb(
        "runs.force_resume_run", force_resume, preview_force_resume, True, True, "force on", "forced on"
    ),
    Bulk.Verb.PRIORITISE: BulkVerb(
        "runs.bulk",
        prioritise,
        preview_prioritise,
        False,
        False,
        "change the priority of",
        "given another priority",
        ("priority",),
    ),
}


@dataclass(frozen=True)
class Look:
    """What using the verb on a run would come to."""

    applies: bool
    said: str


def look(bulk: Bulk, actor: Actor, run_id: uuid.UUID, seen_version: int) -> Look:
    """Use the verb and take it back, so that no rule is written twice; the sentence is that of the verb's preview.

    Numbers and moments are left out of it: it is to be counted how many runs it holds for. Needs a transaction.
    """
    try:
        with transaction.atomic():
            verb = VERBS[bulk.verb]
            told = _told(verb.preview(lock(run_id), **verb.takes(bulk)))
            apply(bulk, actor, run_id, seen_version)
            transaction.set_rollback(True)
    except VerbError as error:
        return Look(False, alike(str(error)))
    return Look(True, alike(told))


def apply(bulk: Bulk, actor: Actor, run_id: uuid.UUID, seen_version: int) -> Done:
    """Use the verb on one run. Raises what the verb raises; Stale where the run has changed since it was chosen."""
    verb, run = VERBS[bulk.verb], lock(run_id)
    permit(actor, "runs.bulk", run=run)
    wanted = bulk.filter.get("status", "")
    if wanted and not verb.guarded and run.status != wanted:
        raise Moved(f"this run is now {label(run)}")
    reason = f"{bulk.name}: {bulk.reason}"
    try:
        seen = seen_version if verb.guarded else None
        return verb.use(actor, run_id, seen_version=seen, reason=reason, **verb.takes(bulk))
    except Asked:
        # Its request is taken back with everything else that a refused verb wrote: ten thousand requests help nobody.
        raise StateMismatch(
            "a policy wants others to approve this first: ask for it on the run’s own page"
        ) from None


class Moved(StateMismatch):
    """The run has left the status that it was chosen by."""


def _told(preview: Consequence) -> str:
    kept = len(preview.kept)
    if not kept:
        return preview.sentence
    return f"{preview.sentence} {'An effect that is done is' if kept == 1 else 'Effects that are done are'} kept."


def alike(sentence: str) -> str:
    """The sentence without what differs from run to run: moments, ids, numbers."""
    told = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:\+[\d:]+| UTC)?", "…", sentence)
    told = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4,12}){1,4}\b", "…", told)
    return told[:1].upper() + told[1:]
