"""The front page: what needs people, what fails, what is slow, what is stuck, and how much is done."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.models import User
from django.db.models import F, Value

from agentops.console.sparkline import Sparkline, sparkline
from approvals.inbox import navigation, worklist
from approvals.inbox.listing import title_of, url_of
from runs import access, clock
from runs.diagnosis import failures
from runs.models import FailureGroup, Run
from runs.pages import activity
from runs.selectors import COUNT_LIMIT
from runs.states import Hold, Status

#: Rows of each part; the page behind its title has all of them.
ROWS = 5
#: An attempt that has been going on for longer is named.
SLOW = timedelta(minutes=1)
#: A queue whose oldest due run waits for longer is named (seconds).
LATE_S = 30.0


@dataclass(frozen=True)
class Waiting:
    """An item of the inbox."""

    line: worklist.Line

    @property
    def title(self) -> str:
        return title_of(self.line)

    @property
    def url(self) -> str:
        return url_of(self.line.kind, self.line.item)


@dataclass(frozen=True)
class Failing:
    """A failure group and its trend."""

    group: FailureGroup
    trend: Sparkline | None
    """None for who sees only some of its runs."""
    message: str
    """Of its error; empty for whoever may not see what is in runs."""


@dataclass(frozen=True)
class Parked:
    """How many runs a hold keeps, and why."""

    hold: str
    runs: int

    @property
    def sentence(self) -> str:
        """What they wait for; follows their number."""
        match self.hold:
            case Hold.CONCURRENCY:
                return "for a place under a concurrency limit"
            case Hold.RATE:
                return "for their turn under a rate limit"
        return "for a worker that can execute their step"


@dataclass(frozen=True)
class Front:
    """What the front page shows of what this person may see."""

    waiting: int
    """Items of the inbox that this person may act on, up to COUNT_LIMIT + 1 of each kind."""
    late: int
    """Of these, how many are past their target."""
    items: Sequence[Waiting]
    requests: int
    """Verbs that others want to use and this person may decide on, up to navigation.LIMIT + 1."""
    failing: Sequence[Failing]
    slow: Sequence[Run]
    late_queues: Sequence[activity.Queue]
    unserved: Sequence[activity.Queue]
    parked: Sequence[Parked]
    completed: Sparkline
    failed: Sparkline
    done: int
    errors: int

    @property
    def requests_text(self) -> str:
        """ "3", "99+"; "" for none."""
        number = f"{navigation.LIMIT}+" if self.requests > navigation.LIMIT else str(self.requests)
        return number if self.requests else ""

    @property
    def quiet(self) -> bool:
        """Nothing needs anybody."""
        return not (
            self.waiting
            or self.requests
            or self.failing
            or self.slow
            or self.late_queues
            or self.unserved
            or self.parked
        )

    @property
    def seen(self) -> tuple[object, ...]:
        """What decides whether the page looks otherwise than before."""
        return (
            self.waiting,
            self.late,
            [(one.line.item, one.line.unread, one.line.claimed_by) for one in self.items],
            self.requests,
            [(one.group.pk, one.group.last_at) for one in self.failing],
            [(run.pk, run.step) for run in self.slow],
            [(queue.name, queue.due) for queue in (*self.late_queues, *self.unserved)],
            [(one.hold, one.runs) for one in self.parked],
            self.done,
            self.errors,
        )


def front(user: User, requests: int) -> Front:
    """Seven queries at most, each on an index; nothing is counted beyond COUNT_LIMIT. `requests` the navigation has counted."""
    keys = worklist.keys(user, worklist.Wanted())
    groups, read_at = failures.latest(user, ROWS)
    now = read_at or clock.now()
    queues = list(activity.look_at_queues().values()) if access.may(user, "runs.view_worker") else []
    unserved = [queue for queue in queues if queue.unserved]
    late = [q for q in queues if not q.unserved and q.due and (q.oldest_s or 0) > LATE_S]
    # Everything that all queues did says nothing of the part that this person may see.
    day = activity.day() if access.everywhere(user, "runs.view_run") else None
    done, errors = (day.completed, day.failed) if day else ([], [])
    slow, parked = _standing(user)
    return Front(
        waiting=len(keys),
        late=sum(key.due <= now for key in keys),
        items=[Waiting(line) for line in worklist.lines(user, [(key.kind, key.item) for key in keys[:ROWS]])],
        requests=requests,
        failing=[
            Failing(
                group,
                sparkline(trend.days, f"{sum(trend.days)} in 14 days")
                if failures.seen_whole(user, group)
                else None,
                group.message if failures.may_read(user, group) else "",
            )
            for group, trend in groups
        ],
        slow=slow,
        late_queues=sorted(late, key=lambda queue: -(queue.oldest_s or 0))[:ROWS],
        unserved=unserved[:ROWS],
        parked=parked,
        completed=sparkline(done, f"Completed in 24 hours: {sum(done):,}"),
        failed=sparkline(errors, f"Attempts that failed in 24 hours: {sum(errors):,}"),
        done=sum(done),
        errors=sum(errors),
    )


def _standing(user: User) -> tuple[list[Run], list[Parked]]:
    """Attempts that have been going on longest, and how many runs each hold keeps. One query.

    The first are looked for among the runs that workers have now, which are few (`run_by_status`); of the others the first
    COUNT_LIMIT + 1 are looked at (`run_parked`).
    """
    columns = ("id", "workflow", "subject", "step", "attempt_no", "attempt_started_at", "wake_at")
    running = access.visible(user, Run.objects.filter(status=Status.RUNNING))
    slow = running.filter(attempt_started_at__lt=clock.Now() - SLOW).annotate(hold=Value(""))
    held = access.visible(user, Run.objects.exclude(held_by__in=["", Hold.PAUSED])).annotate(
        hold=F("held_by")
    )
    both = (
        slow.order_by("attempt_started_at")
        .values_list(*columns, "hold")[:ROWS]
        .union(held.order_by().values_list(*columns, "hold")[: COUNT_LIMIT + 1], all=True)
    )
    found = list(both)
    late = [Run(**dict(zip(columns, row, strict=False))) for row in found if not row[-1]]
    late.sort(key=lambda run: (run.attempt_started_at, run.pk))
    return late, [
        Parked(hold, runs) for hold, runs in Counter(row[-1] for row in found if row[-1]).most_common()
    ]
