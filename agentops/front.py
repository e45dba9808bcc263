"""The front page: what needs people, what fails, what is slow, what is stuck, and how much is done."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.models import User

from agentops.console.sparkline import Sparkline, sparkline
from approvals.inbox import worklist
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
    trend: Sparkline
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
    def quiet(self) -> bool:
        """Nothing needs anybody."""
        return not (
            self.waiting or self.failing or self.slow or self.late_queues or self.unserved or self.parked
        )

    @property
    def seen(self) -> tuple[object, ...]:
        """What decides whether the page looks otherwise than before."""
        return (
            self.waiting,
            self.late,
            [(one.line.item, one.line.unread, one.line.claimed_by) for one in self.items],
            [(one.group.pk, one.group.last_at) for one in self.failing],
            [(run.pk, run.step) for run in self.slow],
            [(queue.name, queue.due) for queue in (*self.late_queues, *self.unserved)],
            [(one.hold, one.runs) for one in self.parked],
            self.done,
            self.errors,
        )


def front(user: User) -> Front:
    """Eight queries at most, each on an index; nothing is counted beyond COUNT_LIMIT."""
    now = clock.now()
    keys = worklist.keys(user, worklist.Wanted())
    groups = list(failures.unhandled(user)[:ROWS])
    trends = failures.trends([group.pk for group in groups])
    queues = list(activity.look_at_queues().values()) if access.may(user, "runs.view_worker") else []
    unserved = [queue for queue in queues if queue.unserved]
    late = [q for q in queues if not q.unserved and q.due and (q.oldest_s or 0) > LATE_S]
    day = activity.day()
    # Everything that all queues did says nothing of the part that this person may see.
    whole = access.everywhere(user, "runs.view_run")
    done, errors = (day.completed, day.failed) if whole else ([], [])
    return Front(
        waiting=len(keys),
        late=sum(key.due <= now for key in keys),
        items=[Waiting(line) for line in worklist.lines(user, [(key.kind, key.item) for key in keys[:ROWS]])],
        failing=[
            Failing(
                group,
                sparkline(trends[group.pk].days, f"{sum(trends[group.pk].days)} in 14 days"),
                group.message if failures.may_read(user, group) else "",
            )
            for group in groups
        ],
        slow=_slow(user),
        late_queues=sorted(late, key=lambda queue: -(queue.oldest_s or 0))[:ROWS],
        unserved=unserved[:ROWS],
        parked=_parked(user),
        completed=sparkline(done, f"Completed in 24 hours: {sum(done):,}"),
        failed=sparkline(errors, f"Attempts that failed in 24 hours: {sum(errors):,}"),
        done=sum(done),
        errors=sum(errors),
    )


def _slow(user: User) -> Sequence[Run]:
    """Attempts that have been going on longest: of the runs that workers have now, which are few (run_by_status)."""
    running = access.visible(user, Run.objects.filter(status=Status.RUNNING))
    found = running.filter(attempt_started_at__lt=clock.Now() - SLOW).order_by("attempt_started_at")
    return list(
        found.only("workflow", "subject", "step", "attempt_no", "attempt_started_at", "wake_at")[:ROWS]
    )


def _parked(user: User) -> list[Parked]:
    """Runs that wait for a capable worker or for room under a limit, of the first COUNT_LIMIT + 1 of them (run_parked)."""
    held = access.visible(user, Run.objects.exclude(held_by__in=["", Hold.PAUSED]))
    some = Counter(held.values_list("held_by", flat=True)[: COUNT_LIMIT + 1])
    return [Parked(hold, runs) for hold, runs in some.most_common()]
