"""What workers do for bulks, in turns: choose the runs, look at them, use the verb on one after the other, see how they end.

A turn is one short transaction under the bulk's row lock, which one worker has at a time (SKIP LOCKED). What it did and that it
did it are committed together: whatever is killed, at whatever moment, nothing is lost and nothing is done twice.
"""

import math
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import F, Q, QuerySet

from runs import access, clock
from runs.bulk import selection as choosing
from runs.errors import NotAllowed, Stale, Unavailable, VerbError
from runs.lifecycle import Actor
from runs.models import Bulk, BulkItem, Run
from runs.services.bulk import PERMISSION, filter_of, pause, permit_part, record
from runs.services.bulk_verbs import VERBS, Moved, apply, look
from runs.services.verb import verb
from runs.states import TERMINAL, Status

log = structlog.get_logger(__name__)

#: Seconds that a worker's turns take at most before it looks whether it is to stop.
TICK_TAKES = 2.0
#: Runs that are looked at beforehand, spread evenly over all; of fewer, each.
LOOKS = 500
#: Runs that one turn looks at.
LOOK_BATCH = 20
#: Due runs of a queue that nobody has taken yet: with so many, what others start goes first.
ROOM = 10
#: Seconds after which the queue is looked at again, and after which a bulk that another worker has is asked for again.
NO_ROOM_PAUSE = 0.5
BUSY_PAUSE = 0.25
#: What was not done in time is not made up for, beyond this.
SLACK = timedelta(seconds=2)
#: Runs whose end one turn looks for, and how often (seconds); seldom once the bulk has been over for OLD.
FOLLOWED = 500
FOLLOW_EVERY = 2.0
FOLLOW_OLD_EVERY = 60.0
OLD = timedelta(minutes=10)

BULK = Actor("bulk")
NEVER = math.inf


def tick(seconds: float = TICK_TAKES, sleep: Callable[[float], object] = time.sleep) -> None:
    """A worker's turns, for so many seconds at most; less where there is nothing to do, or `sleep` says to stop (true)."""
    begun = time.monotonic()
    not_before: dict[uuid.UUID, float] = {}
    while (now := time.monotonic()) < begun + seconds:
        for bulk_id in at_work():
            if not_before.get(bulk_id, now) <= now:
                not_before[bulk_id] = now + turn(bulk_id)
        next_at = min(not_before.values(), default=NEVER)
        if next_at >= begun + seconds:
            return
        if next_at > now and sleep(next_at - now):
            return


def at_work() -> list[uuid.UUID]:
    """Bulks in which there is something to do: the partial index `bulk_at_work`."""
    ended = F("completed") + F("failed") + F("cancelled") + F("deleted")
    busy = Bulk.objects.filter(
        Q(status__in=[Bulk.Status.COUNTING, Bulk.Status.CANARY, Bulk.Status.RUNNING]) | Q(done__gt=ended)
    )
    return list(busy.order_by("id").values_list("pk", flat=True))


def turn(bulk_id: uuid.UUID) -> float:
    """One step of a bulk. Returns after how many seconds the next one makes sense.

    Raises OperationalError or InterfaceError where the database is away. An error that nobody foresaw stands this bulk still
    and no other.
    """
    try:
        return _turn(bulk_id)
    except Unavailable:
        return BUSY_PAUSE  # others were at the same rows, five times
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        # The same item would end every later turn in the same way: a person has to look.
        log.exception("bulk.failed", bulk=str(bulk_id))
        _stand_still(bulk_id, f"{type(error).__name__}: {error}")
        return NEVER


@verb
def _stand_still(bulk_id: uuid.UUID, error: str) -> None:
    made = Bulk.objects.select_for_update(no_key=True).get(pk=bulk_id)
    if made.status in (Bulk.Status.COUNTING, Bulk.Status.CANARY, Bulk.Status.RUNNING):
        said = f"An error that nobody foresaw, at the next run in line ({error[:300]}); the log of the workers has all of it"
        pause(made, said)
        record(made, "bulk_paused", BULK, said)


@verb
def _turn(bulk_id: uuid.UUID) -> float:
    made = Bulk.objects.select_for_update(skip_locked=True, no_key=True).filter(pk=bulk_id).first()
    if made is None:
        return BUSY_PAUSE
    now = clock.now()
    if made.under_way and made.follow_at <= now:
        _follow(made, now)
        return 0
    follow = (made.follow_at - now).total_seconds() if made.under_way else NEVER
    match made.status:
        case Bulk.Status.COUNTING:
            return _count(made)
        case Bulk.Status.CANARY | Bulk.Status.RUNNING:
            return min(_use(made, now), follow)
    return follow


def _authority(made: Bulk) -> Actor | None:
    """Whom it acts for, if that person still may; else it pauses and says so."""
    name = made.acts_for_name
    return _who(made, made.acts_for_id, f"{name}, for whom it acted,", f"It acted for {name}")


def _chooser(made: Bulk) -> Actor | None:
    """As whom its runs are chosen: who made it, whoever has resumed it since.

    What a filter finds depends on what a person sees, and a search on what they may read: with another person's eyes the set
    would be another one than was asked for, half-way. If that person may no more, it pauses and says so.
    """
    name = made.started_by_name
    return _who(made, made.started_by_id, f"{name}, as whom its runs are chosen,", f"{name} chose its runs")


def _who(made: Bulk, user_id: int | None, called: str, did: str) -> Actor | None:
    user = get_user_model()._default_manager.filter(pk=user_id).first() if user_id else None
    if user is None:
        refusal = f"The account of {called} is gone"
    elif not user.is_active:
        refusal = f"{called} is switched off"
    else:
        actor = Actor.of(user)
        try:
            permit_part(actor, made.verb)
        except NotAllowed as error:
            refusal = f"{did}, but {error}"
        else:
            return actor
    pause(made, refusal)
    record(made, "bulk_paused", BULK, refusal)
    return None


# --- choosing and looking ----------------------------------------------------------------------------------------------


def _count(made: Bulk) -> float:
    actor = _authority(made)
    if actor is None:
        return NEVER
    if not made.chosen:
        chooser = _chooser(made)
        if chooser is None:
            return NEVER
        _choose(made, chooser)
    elif made.looked < made.to_look:
        _look(made, actor)
    if made.chosen and made.looked >= made.to_look:
        _counted(made)
    made.save()
    return 0


def user_of(actor: Actor) -> AbstractBaseUser:
    assert actor.user is not None, "only a person makes a bulk"
    return actor.user


def usable(made_verb: str, actor: Actor) -> QuerySet[Run]:
    """Runs that this person sees and may use the verb on, in a bulk."""
    found = Run.objects.all()
    for permission in ("runs.view_run", PERMISSION, VERBS[made_verb].permission):
        found = access.visible(user_of(actor), found, permission)
    return found


def _choose(made: Bulk, actor: Actor) -> None:
    """Take the next window of runs into the set, as this person sees them."""
    chosen = filter_of(made)
    statuses = chosen.statuses(made.verb)
    status = Status(made.chosen_status) if made.chosen_status else statuses[0]
    found = choosing.window(
        chosen, status, made.chosen_after, made.created_at, usable(made.verb, actor), user_of(actor)
    )
    # A run that has moved to a later status meanwhile is found again.
    again = BulkItem.objects.filter(bulk=made, run_id__in=[run_id for run_id, _ in found.runs])
    there = set(again.values_list("run_id", flat=True))
    fresh = [(run_id, version) for run_id, version in found.runs if run_id not in there]
    BulkItem.objects.bulk_create(
        [
            BulkItem(bulk=made, place=made.total + number, run_id=run_id, seen_version=version)
            for number, (run_id, version) in enumerate(fresh, start=1)
        ],
        batch_size=1000,
    )
    made.total += len(fresh)
    made.chosen_status, made.chosen_after = status, found.last
    if found.last is None:
        later = statuses[statuses.index(status) + 1 :]
        made.chosen, made.chosen_status = not later, later[0] if later else status
        made.to_look = min(made.total, LOOKS) if made.chosen else 0


def _look(made: Bulk, actor: Actor) -> None:
    """Look at the next few: each, or as many of them as are looked at, spread evenly."""
    numbers = range(made.looked, min(made.looked + LOOK_BATCH, made.to_look))
    places = [number * made.total // made.to_look + 1 for number in numbers]
    for item in BulkItem.objects.filter(bulk=made, place__in=places).order_by("place"):
        seen = look(made, actor, item.run_id, item.seen_version)
        item.look = seen.said
        if not seen.applies:
            item.state = BulkItem.State.OUT
            made.out += 1
        item.save(update_fields=["look", "state"])
    made.looked += len(places)


def _counted(made: Bulk) -> None:
    made.revision += 1
    if made.left:
        made.status = Bulk.Status.READY
        return
    made.status, made.finished_at = Bulk.Status.DONE, clock.now()
    made.said = "No run is eligible" if made.total else "No run matched"


# --- using the verb ----------------------------------------------------------------------------------------------------


def _use(made: Bulk, now: datetime) -> float:
    """Use the verb on the next run, if its moment has come and workers have room for it."""
    if made.next_at > now:
        return (made.next_at - now).total_seconds()
    actor = _authority(made)
    if actor is None:
        return NEVER
    waiting = BulkItem.objects.filter(bulk=made, state=BulkItem.State.WAITING).order_by("place")
    item = waiting.select_for_update(skip_locked=True).first()
    if item is None:
        _end(made)
        return 0
    if VERBS[made.verb].makes_due and (queue := _crowded(item.run_id)) is not None:
        said = f"Waits for room: {ROOM} runs or more are due in queue {queue}, and those go first"
        Bulk.objects.filter(pk=made.pk).exclude(said=said).update(said=said)
        return NO_ROOM_PAUSE
    _use_on(made, actor, item, now)
    made.said = ""
    made.next_at = max(made.next_at, now - SLACK) + timedelta(minutes=1) / made.rate
    if not made.left:
        _end(made)
        return 0
    if made.status == Bulk.Status.CANARY and made.handled >= made.canary:
        made.status = Bulk.Status.REVIEW
        made.revision += 1
    made.save()
    return 0


def _use_on(made: Bulk, actor: Actor, item: BulkItem, now: datetime) -> None:
    try:
        with transaction.atomic():
            result = apply(made, actor, item.run_id, item.seen_version)
        item.said = result.sentence
        item.state = BulkItem.State.DONE if result.changed else BulkItem.State.SKIPPED
    except (Stale, Moved) as error:
        item.state, item.said = BulkItem.State.SKIPPED, str(error)
    except VerbError as error:
        item.state, item.said = BulkItem.State.REFUSED, str(error)
    item.at = now
    item.save(update_fields=["state", "said", "at"])
    match item.state:
        case BulkItem.State.DONE:
            made.done += 1
        case BulkItem.State.SKIPPED:
            made.skipped += 1
        case _:
            made.refused += 1


def _crowded(run_id: uuid.UUID) -> str | None:
    """The run's queue where ROOM due runs or more wait in it for a worker (the index `run_due`); else None."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT r.queue, (SELECT count(*) FROM (SELECT FROM runs_run d WHERE d.queue = r.queue"
            " AND d.sort_at <= agentops_now() LIMIT %s) AS due) FROM runs_run r WHERE r.id = %s",
            [ROOM, run_id],
        )
        row = cursor.fetchone()
    return row[0] if row is not None and row[1] >= ROOM else None


def _end(made: Bulk) -> None:
    made.status, made.finished_at, made.said = Bulk.Status.DONE, clock.now(), ""
    made.revision += 1
    made.save()
    counts = {"done": made.done, "refused": made.refused, "skipped": made.skipped}
    record(made, "bulk_done", BULK, f"for {made.acts_for_name}", new=counts)


# --- what becomes of them ----------------------------------------------------------------------------------------------

_ENDS = {
    Status.COMPLETED: BulkItem.Ended.COMPLETED,
    Status.FAILED: BulkItem.Ended.FAILED,
    Status.CANCELLED: BulkItem.Ended.CANCELLED,
}


def _follow(made: Bulk, now: datetime) -> None:
    """Write down how runs ended that the verb was used on: some at a time, from the front again after the last."""
    open_items = BulkItem.objects.filter(bulk=made, state=BulkItem.State.DONE, ended="")
    chosen = dict(
        open_items.filter(place__gt=made.follow_after)
        .order_by("place")
        .values_list("place", "run_id")[:FOLLOWED]
    )
    statuses = dict(Run.objects.filter(pk__in=chosen.values()).values_list("pk", "status"))
    ends: dict[str, list[int]] = {}
    for place, run_id in chosen.items():
        status = statuses.get(run_id)
        if status is None:
            ends.setdefault(BulkItem.Ended.DELETED, []).append(place)
        elif status in TERMINAL:
            ends.setdefault(_ENDS[Status(status)], []).append(place)
    for end, places in ends.items():
        BulkItem.objects.filter(bulk=made, place__in=places).update(ended=end)
        setattr(made, end, getattr(made, end) + len(places))
    made.follow_after = max(chosen, default=0) if len(chosen) == FOLLOWED else 0
    old = made.finished_at is not None and made.finished_at < now - OLD
    made.follow_at = now + timedelta(seconds=FOLLOW_OLD_EVERY if old else FOLLOW_EVERY)
    made.save()
