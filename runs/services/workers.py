"""Verbs on worker processes: take nothing new, take runs again, end and be replaced."""

import uuid

from runs.errors import Invalid, NotFound, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, Run, Worker
from runs.models.worker import Asked
from runs.services.verb import Consequence, permit, verb

#: What each verb is called; the empty one takes a request back.
WORDS = {"drain": "Drain", "recycle": "Recycle", "resume": "Let it take runs again"}
_ASKED = {"drain": Asked.DRAIN, "recycle": Asked.RECYCLE, "resume": ""}
_DONE = {
    "drain": "takes no new runs from its next beat on",
    "recycle": "ends once its runs have ended, and its cluster starts another",
    "resume": "takes runs again from its next beat on",
}


@verb
def ask_worker(actor: Actor, worker_id: uuid.UUID, what: str, *, reason: str) -> str:
    """Ask a worker to drain, to recycle, or to take runs again; it reads this at its next beat. What that means, as a sentence.

    Raises NotAllowed, NotFound, Invalid (no reason, no such verb), StateMismatch (it has ended, is being recycled, or there is
    nothing to take back).
    """
    permit(actor, "runs.drain_worker")
    if what not in _ASKED:
        raise Invalid(f"a worker can be asked to drain, to recycle or to resume, not to {what!r}")
    if not reason.strip():
        raise Invalid("say why")
    worker = Worker.objects.select_for_update().filter(pk=worker_id).first()
    if worker is None:
        raise NotFound(f"there is no worker {worker_id}")
    _require(worker, what)
    old = worker.asked
    if old == _ASKED[what]:
        return f"Worker {worker} had been asked already: it {_DONE[what]}."
    worker.asked, worker.asked_by = _ASKED[what], actor.name
    worker.save(update_fields=["asked", "asked_by"])
    AuditEvent.objects.create(
        kind=f"worker_{what}",
        target=f"worker {worker_id}",
        actor_user_id=actor.id,
        actor=actor.name,
        reason=reason,
        old={"asked": old},
        new={"asked": worker.asked},
    )
    return f"Worker {worker} {_DONE[what]}."


def _require(worker: Worker, what: str) -> None:
    if worker.closed_at is not None:
        raise StateMismatch(f"worker {worker} has ended")
    if worker.asked == Asked.RECYCLE and what != "recycle":
        raise StateMismatch(
            f"worker {worker} is being recycled, as {worker.asked_by} asked; that cannot be taken back"
        )
    if what == "resume" and not worker.asked:
        raise StateMismatch(f"worker {worker} takes runs already")


def preview_ask_worker(worker: Worker, what: str) -> Consequence:
    """What `ask_worker` would do now. Raises StateMismatch where it would be refused."""
    _require(worker, what)
    runs = Run.objects.filter(worker_id=worker.pk).count()
    has = {0: "It has no runs now.", 1: "It has 1 run now, which goes on to its next wait or end."}.get(
        runs, f"It has {runs} runs now, which go on to their next wait or end."
    )
    match what:
        case "drain":
            return Consequence(
                f"It takes no new runs and goes on beating. {has} Other workers of its queues take the rest."
            )
        case "recycle":
            return Consequence(
                f"It takes no new runs, ends, and its cluster starts a fresh process. {has} Nothing is lost."
            )
    return Consequence("It takes due runs of its queues again.")
