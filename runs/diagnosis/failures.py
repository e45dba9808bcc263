"""Failure groups: what is recorded when a run enters `failed` or `attention`, and what pages read of it.

A run keeps the fingerprint of its last failure after a retry, so that a group can say how many of its runs are still failed
and how many went on. Numbers are counted from the runs (`run_by_fingerprint`), up to COUNT_LIMIT.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.contrib.postgres.expressions import ArraySubquery
from django.db import connection
from django.db.models import Case, Exists, IntegerField, JSONField, Max, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import JSONObject

from runs import access, clock, lifecycle
from runs.clock import Now
from runs.diagnosis.fingerprint import LOOKED_AT, VERDICT, Mark, folded
from runs.lifecycle import Actor
from runs.models import Attempt, AuditEvent, FailureGroup, FailureTally, Run, Worker
from runs.models.failure import target_of
from runs.selectors import COUNT_LIMIT, PAYLOADS, counted
from runs.services.verb import verb
from runs.states import FailureKind, Status

log = structlog.get_logger(__name__)

type Person = AbstractBaseUser | AnonymousUser

#: Groups of one page.
GROUPS = 25
#: Days that a trend shows; hours, where it is of one day.
DAYS = 14
HOURS = 24
#: A group that began so lately is called new.
NEW = timedelta(days=3)
#: Hours older than this are forgotten.
TALLIES_KEPT = timedelta(days=DAYS + 1)
#: Versions of one error that its page lists.
SIBLINGS = 20
#: Lines of its history.
HISTORY = 50
#: What one turn of a worker may take, in seconds, to give fingerprints to runs that have none.
TICK_TAKES = 5.0
BATCH = 100


# --- a run fails ---------------------------------------------------------------------------------------------------------

# Shared among failures, which do not wait for one another; a person who changes a state takes it alone. So a failure that was
# on its way is either seen by that person's transaction or sees what it did: none is lost between the two.
_ERROR = """
SELECT pg_advisory_xact_lock_shared(hashtextextended(%(lock)s, 0)), last.error_type, last.error
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
    SELECT error_type, left(error, %(length)s) AS error FROM runs_attempt
    WHERE run_id = %(run)s AND step_seq = %(visit)s AND error_type <> '' ORDER BY attempt_no DESC LIMIT 1
) AS last ON true
"""

# No row is locked that a failure of the same group in this moment would need as well, but for one of four of the hour, by
# session: ON CONFLICT DO NOTHING locks nothing, and the time is written when the last one is ten seconds old.
_ENTER = """
WITH made AS (
    INSERT INTO runs_failure_group (fingerprint, signature, sort, workflow, version, step, error_type, message,
        first_at, last_at, state, changed_by, revision)
    VALUES (%(fingerprint)s, %(signature)s, %(sort)s, %(workflow)s, %(version)s, %(step)s, %(error_type)s, %(message)s,
        %(at)s, %(at)s, 'open', '', 0)
    ON CONFLICT (fingerprint) DO NOTHING
), seen AS (
    UPDATE runs_failure_group SET first_at = least(first_at, %(at)s), last_at = greatest(last_at, %(at)s)
    WHERE fingerprint = %(fingerprint)s AND (last_at < %(at)s - interval '10 seconds' OR first_at > %(at)s)
), told AS (
    INSERT INTO runs_failure_tally (fingerprint, hour, shard, failures)
    VALUES (%(fingerprint)s, date_trunc('hour', %(at)s::timestamptz, 'UTC'), pg_backend_pid() %% 4, 1)
    ON CONFLICT (fingerprint, hour, shard) DO UPDATE SET failures = runs_failure_tally.failures + 1
)
SELECT EXISTS (SELECT FROM runs_failure_group WHERE signature = %(signature)s AND state IN ('fixed', 'handled'))
"""


def entered(run: Run, actor: Actor, *, late: bool = False) -> None:
    """Give the run, which has just become failed or needs attention, its fingerprint, and its group a failure more.

    The caller holds the run's lock and saves the run. Two round trips; three and more where a group is re-opened by it.
    `late`: it failed earlier, and nobody recorded its fingerprint then.
    """
    mark = _mark(run)
    at = _when(run) if late else run.finished_at or clock.now()
    run.fingerprint = mark.fingerprint
    parameters: dict[str, Any] = {
        "fingerprint": mark.fingerprint,
        "signature": mark.signature,
        "sort": mark.sort,
        "workflow": mark.workflow,
        "version": mark.version,
        "step": mark.step,
        "error_type": mark.error_type,
        "message": mark.message,
        "at": at,
    }
    with connection.cursor() as cursor:
        cursor.execute(_ENTER, parameters)
        (settled,) = cursor.fetchone()
    if settled:
        _reopen(run, mark, actor, at if late else None)


def lock_name(workflow: str) -> str:
    """What failures of a workflow hold shared, and a change of one of its groups alone."""
    return f"agentops failures {workflow}"


def _mark(run: Run) -> Mark:
    with connection.cursor() as cursor:
        cursor.execute(
            _ERROR,
            {
                "lock": lock_name(run.workflow),
                "run": run.pk,
                "visit": run.step_seq,
                "length": LOOKED_AT,
            },
        )
        _, error_type, error = cursor.fetchone()
    sort = FailureGroup.Sort.FAILURE
    if run.status == Status.ATTENTION:
        sort = FailureGroup.Sort.ATTENTION
        error_type, error = run.attention_kind.title().replace("_", ""), run.reason
    elif run.failure_kind == FailureKind.CRASHED:
        error_type, error = "WorkerLost", run.reason
    elif error_type is None:
        error_type, error = run.failure_kind.title().replace("_", ""), run.reason
    elif error_type == "Rejected":
        # One group for a “no”, whoever said it and why.
        error = VERDICT.sub(r"\1", error)
    return Mark(sort, run.workflow, run.version, run.step, error_type, folded(error))


def _when(run: Run) -> datetime:
    """When a run failed that nobody took note of."""
    ended = Attempt.objects.filter(run_id=run.pk).aggregate(at=Max("ended_at"))["at"]
    return run.finished_at or ended or run.created_at


def _reopen(run: Run, mark: Mark, actor: Actor, at: datetime | None) -> None:
    """Re-open what this failure shows not to be over: its own group if handled, and any that is fixed in its version.

    A failure that was found late (`at`) says nothing about what people decided after it.
    """
    over = Q(state=FailureGroup.State.HANDLED, fingerprint=mark.fingerprint)
    over |= Q(state=FailureGroup.State.FIXED, fixed_in__lte=mark.version)
    found = FailureGroup.objects.filter(over, signature=mark.signature).order_by("fingerprint")
    if at is not None:
        found = found.filter(changed_at__lt=at)
    # Another failure may do the same in this moment: its lock is awaited, and the condition looked at again.
    for group in found.select_for_update():
        was = {"state": group.state, "fixed_in": group.fixed_in}
        reason = (
            f"it was fixed in version {group.fixed_in}, and version {mark.version} failed the same way"
            if group.state == FailureGroup.State.FIXED
            else "it was handled, and another run failed the same way"
        )
        group.state = FailureGroup.State.OPEN
        group.changed_by = actor.name
        group.revision += 1
        group.save(update_fields=["state", "changed_by", "revision"])
        FailureGroup.objects.filter(pk=group.pk).update(changed_at=Now())
        AuditEvent.objects.create(
            kind="failure_reopened",
            target=group.target,
            actor_user_id=actor.id,
            actor=actor.name,
            reason=reason,
            old=was,
            new={"state": group.state, "run": str(run.pk), "version": mark.version},
        )


# --- runs that failed before ---------------------------------------------------------------------------------------------


def without() -> QuerySet[Run]:
    """Failed runs, and runs in attention, that no group holds: of a version before this, or under its workers. Newest first.

    Read from `run_without_fingerprint`, which is empty most of the time.
    """
    return Run.objects.filter(
        status__in=[Status.FAILED, Status.ATTENTION], fingerprint__isnull=True
    ).order_by("-pk")


@verb
def _give(run_id: uuid.UUID) -> bool:
    run = without().filter(pk=run_id).select_for_update(skip_locked=True, no_key=True).first()
    if run is None:
        return False
    entered(run, lifecycle.CLOCK, late=True)
    run.save(update_fields=["fingerprint"])
    return True


def give_fingerprints(*, until: float | None = None) -> int:
    """Give each run of `without` its fingerprint, a transaction each. Returns how many.

    Args:
        until: on `time.monotonic()`: none begins after this.
    """
    given, last = 0, None
    while True:
        rest = without() if last is None else without().filter(pk__lt=last)
        chosen = list(rest.values_list("pk", flat=True)[:BATCH])
        if not chosen:
            return given
        for run_id in chosen:
            if until is not None and time.monotonic() >= until:
                return given
            given += _give(run_id)
        last = chosen[-1]


def tick(seconds: float = TICK_TAKES) -> int:
    """A worker's turn: fingerprints for runs without, and the end of tallies that nobody shows any more."""
    FailureTally.objects.filter(hour__lt=clock.now() - TALLIES_KEPT).delete()
    given = give_fingerprints(until=time.monotonic() + seconds)
    if given:
        log.info("failures.fingerprinted", runs=given)
    return given


# --- what pages read -----------------------------------------------------------------------------------------------------


def seen_whole(user: Person, group: FailureGroup) -> bool:
    """Whether the person sees every run of the group's workflow, and so what is counted over all of them."""
    return access.may(user, "runs.view_run", Run(workflow=group.workflow))


def may_read(user: Person, group: FailureGroup) -> bool:
    """Whether the person may read the text of its error, which may come from any run of the workflow."""
    return access.may_see_payloads(user, Run(workflow=group.workflow))


def groups(user: Person, sort: str | None = FailureGroup.Sort.FAILURE) -> QuerySet[FailureGroup]:
    """Groups of a sort (None: of both) of which the person may see a run, the latest failure first."""
    found = FailureGroup.objects.order_by("-last_at", "-fingerprint")
    found = found if sort is None else found.filter(sort=sort)
    seen = access.condition(user, through="")
    if seen is None:
        return found
    theirs = Run.objects.filter(seen, fingerprint=OuterRef("pk"))
    return found.filter(Exists(theirs))


def unhandled(user: Person, sort: str = FailureGroup.Sort.FAILURE) -> QuerySet[FailureGroup]:
    """Groups about which something is left to do, the latest failure first (`failure_unhandled`). See `still`."""
    return groups(user, sort).exclude(state=FailureGroup.State.HANDLED)


def open_groups(user: Person) -> QuerySet[FailureGroup]:
    """Groups of failed runs that nobody has looked at yet (`failure_by_state`): what the navigation counts."""
    return groups(user).filter(state=FailureGroup.State.OPEN)


def runs_of(user: Person, fingerprint: uuid.UUID, *statuses: str) -> QuerySet[Run]:
    """Runs of a group that stand in one of these statuses (any, if none is given), newest first."""
    found = access.visible(user, Run.objects.filter(fingerprint=fingerprint))
    return (found.filter(status__in=statuses) if statuses else found).defer(*PAYLOADS).order_by("-pk")


def standing(sort: str) -> Status:
    """The status in which runs of such a group wait for somebody."""
    return Status.ATTENTION if sort == FailureGroup.Sort.ATTENTION else Status.FAILED


def still(user: Person, shown: Sequence[FailureGroup]) -> Mapping[uuid.UUID, int]:
    """How many runs of each of these groups still stand failed (or in attention), up to COUNT_LIMIT + 1. One query."""
    numbers = counted(*(runs_of(user, one.pk, standing(one.sort)) for one in shown))
    return dict(zip((one.pk for one in shown), numbers, strict=True))


@dataclass(frozen=True)
class Overview:
    """What there is, each counted up to COUNT_LIMIT + 1."""

    by_state: Mapping[str, int]
    unhandled: int
    runs: int
    """Failed runs in groups that are not handled."""
    without: int
    """Failed runs that are in no group yet."""
    oldest: datetime | None
    """Since when the oldest group that is not handled has been failing."""


def overview(user: Person, narrowed: QuerySet[FailureGroup], sort: str) -> Overview:
    """Two queries. `narrowed`: the groups of the list, of any state."""
    left = narrowed.exclude(state=FailureGroup.State.HANDLED)
    runs = access.visible(user, Run.objects.filter(status=standing(sort)))
    states = list(FailureGroup.State)
    number_left, in_them, outside, *by_state = counted(
        left,
        runs.filter(fingerprint__in=left.order_by().values("pk")),
        runs.filter(fingerprint__isnull=True),
        *(narrowed.filter(state=state) for state in states),
    )
    # Of so many as are counted: an honest "at least" where there are more.
    first = left.order_by().values_list("first_at", flat=True)[: COUNT_LIMIT + 1]
    return Overview(
        dict(zip((state.value for state in states), by_state, strict=True)),
        number_left,
        in_them,
        outside,
        min(first, default=None) if number_left else None,
    )


@dataclass(frozen=True)
class Place:
    """Where in a list of groups a page begins: before this one."""

    at: datetime
    fingerprint: uuid.UUID

    def __str__(self) -> str:
        return f"{int(self.at.timestamp() * 1_000_000)}.{self.fingerprint}"

    @classmethod
    def of(cls, group: FailureGroup) -> "Place":
        return cls(group.last_at, group.pk)

    @classmethod
    def parse(cls, text: str) -> "Place | None":
        """None for what is no place."""
        moment, _, key = text.partition(".")
        if not (moment.isascii() and moment.isdigit() and len(moment) < 18):
            return None
        try:
            at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(moment))
            return cls(at, uuid.UUID(key))
        except (ValueError, OverflowError):
            return None


def page(
    rows: QuerySet[FailureGroup], before: Place | None
) -> tuple[list[FailureGroup], Place | None, datetime]:
    """The groups of a page, where the next begins (None if this is the last), and the moment. One query if there are groups."""
    if before is not None:
        rows = rows.filter(last_at__lte=before.at).filter(
            Q(last_at__lt=before.at) | Q(last_at=before.at, fingerprint__lt=before.fingerprint)
        )
    found = list(rows.annotate(read_at=Now())[: GROUPS + 1])
    now: datetime = found[0].read_at if found else clock.now()
    return list(found[:GROUPS]), Place.of(found[GROUPS - 1]) if len(found) > GROUPS else None, now


@dataclass(frozen=True)
class Trend:
    """Failures by day and, of the last 24 hours, by hour; the oldest first, the present one last."""

    days: list[int]
    hours: list[int]


# Days counted back from the present one, and hours within that one alone. What is of a later hour counts as of this one.
_TALLIES = """
SELECT fingerprint, ago / 24, CASE WHEN ago < 24 THEN ago END, sum(failures)
FROM (
    SELECT fingerprint, failures, greatest(0, extract(epoch FROM %(now)s - hour)::integer / 3600) AS ago
    FROM runs_failure_tally WHERE fingerprint = ANY(%(fingerprints)s::uuid[]) AND hour >= %(begin)s
) AS counted GROUP BY 1, 2, 3
"""


def trends(fingerprints: Iterable[uuid.UUID], now: datetime | None = None) -> Mapping[uuid.UUID, Trend]:
    """How often runs entered each of these groups lately, retried ones each time. One query, on the key of the table.

    Days are of 24 hours and end with the present hour, so that no zone's midnight decides.
    """
    now = (now or clock.now()).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    begin = now - timedelta(hours=DAYS * 24 - 1)
    days: dict[uuid.UUID, list[int]] = defaultdict(lambda: [0] * DAYS)
    hours: dict[uuid.UUID, list[int]] = defaultdict(lambda: [0] * HOURS)
    with connection.cursor() as cursor:
        cursor.execute(_TALLIES, {"fingerprints": list(fingerprints), "now": now, "begin": begin})
        for fingerprint, day, hour, number in cursor.fetchall():
            days[fingerprint][DAYS - 1 - day] += number
            if not day:
                hours[fingerprint][HOURS - 1 - hour] += number
    return defaultdict(
        lambda: Trend([0] * DAYS, [0] * HOURS), {key: Trend(made, hours[key]) for key, made in days.items()}
    )


def latest(user: Person, most: int) -> tuple[list[tuple[FailureGroup, Trend]], datetime | None]:
    """The unhandled groups of failed runs that failed last, each with its trend; and the moment, if there is one. One query."""
    since = Now() - timedelta(hours=DAYS * 24)
    tallies = FailureTally.objects.filter(fingerprint=OuterRef("pk"), hour__gte=since)
    numbers = ArraySubquery(tallies.values(row=JSONObject(hour="hour", failures="failures")))
    found = list(unhandled(user).annotate(read_at=Now(), tallies=numbers)[:most])
    now: datetime | None = found[0].read_at if found else None
    return [(group, _trend(group.tallies, group.read_at)) for group in found], now


def _trend(tallies: Iterable[Mapping[str, Any]], now: datetime) -> Trend:
    """The same as `trends`, of one group's rows."""
    made = Trend([0] * DAYS, [0] * HOURS)
    now = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    for tally in tallies:
        ago = max(0, int((now - datetime.fromisoformat(tally["hour"])).total_seconds()) // 3600)
        if ago < DAYS * 24:
            made.days[DAYS - 1 - ago // 24] += tally["failures"]
        if ago < HOURS:
            made.hours[HOURS - 1 - ago] += tally["failures"]
    return made


# Versions of the group's workflow that live workers (worker_open) execute, each with the code that has it.
_LIVE = """
(SELECT jsonb_agg(DISTINCT jsonb_build_array(split_part(split_part(capability, '@', 2), '/', 1)::int, w.code_version))
 FROM runs_worker w, unnest(w.capabilities) AS capability
 WHERE w.closed_at IS NULL AND w.beat_until > statement_timestamp()
   AND starts_with(capability, runs_failure_group.workflow || '@'))
"""


@dataclass(frozen=True)
class Live:
    """What live workers execute of a workflow: versions, each with what its worker calls the code, the newest first."""

    versions: Sequence[tuple[int, str]]

    @classmethod
    def of(cls, group: FailureGroup) -> "Live":
        """Of a group that `siblings` read."""
        found: list[tuple[int, str]] = [(one, code) for one, code in getattr(group, "live", None) or []]
        return cls(sorted(found, reverse=True))

    def has(self, version: int) -> bool:
        """This version, or a later one."""
        return any(one >= version for one, _ in self.versions)

    @property
    def words(self) -> str:
        """“version 2 (code 7f3a), version 1 (code 7f3a)”; "" for nothing."""
        return ", ".join(
            f"version {one}" + (f" (code {code})" if code else "") for one, code in self.versions
        )


def siblings(user: Person, fingerprint: uuid.UUID) -> tuple[list[FailureGroup], datetime]:
    """A group and the same error at the same step in other versions, newest version first; and the moment. One query.

    Raises FailureGroup.DoesNotExist, also where the person may see no run of it.
    """
    one = FailureGroup.objects.filter(pk=fingerprint)
    found = groups(user, None).filter(signature=one.values("signature")[:1])
    # The group itself is among them, however many there are.
    first = Case(When(pk=fingerprint, then=0), default=1, output_field=IntegerField())
    live = RawSQL(_LIVE, [], output_field=JSONField())
    chosen = list(
        found.annotate(read_at=Now(), live=live, first=first).order_by("first", "-version")[:SIBLINGS]
    )
    if not chosen or chosen[0].pk != fingerprint:
        raise FailureGroup.DoesNotExist
    read_at: datetime = chosen[0].read_at
    return sorted(chosen, key=lambda group: -group.version), read_at


def history(group: FailureGroup) -> list[AuditEvent]:
    """What people said and did about it, newest first (`audit_by_target`)."""
    return list(AuditEvent.objects.filter(target=target_of(group.pk)).order_by("-id")[:HISTORY])


def last_error(run: Run) -> Attempt | None:
    """The attempt whose error ended the run, with its traceback; `code` is what its worker called its code, None if forgotten."""
    tries = Attempt.objects.filter(run_id=run.pk, step_seq=run.step_seq).exclude(error_type="")
    code = Worker.objects.filter(pk=OuterRef("worker_id")).values("code_version")
    return (
        tries.annotate(code=Subquery(code))
        .defer("state_after", "state_after_sealed")
        .order_by("-attempt_no")
        .first()
    )
