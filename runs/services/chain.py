"""Check the audit chain a part at a time, and the chain of one run: was history changed behind the application?

Nothing is repaired, and no lock is held that anybody who writes history would wait for. The SQL functions that made the digests
make them again.
"""

import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from django.db import connection

from runs import clock
from runs.lifecycle import Actor
from runs.models import AuditHead, ChainCheck
from runs.services.verb import permit, verb

log = structlog.get_logger(__name__)

#: Links, or events, that one transaction looks at.
BATCH = 2000
#: Seconds that a person waits for the answer, and that a worker's turn takes at most.
TAKES = 2.0
#: Workers begin a check by themselves when the last one is older.
EVERY = timedelta(days=1)
#: Events of a run that are looked at together; more go on where these end.
OF_A_RUN = 10_000

CLOCK = Actor("clock")
_State = ChainCheck.State


def check_chain(actor: Actor, *, seconds: float = TAKES) -> ChainCheck:
    """Go on with the check that is under way, or begin one; for so many seconds at most, so that it may not be over by then.

    Raises NotAllowed.
    """
    permit(actor, "runs.view_auditevent", system=True)
    until = time.monotonic() + seconds
    check = _begin(actor)
    while check.state == _State.CHECKING:
        check = _part(check.pk)
        if time.monotonic() >= until:
            break
    return check


def tick(seconds: float = TAKES) -> None:
    """A worker's turn: go on with the check that is under way; begin one where the last is a day old."""
    last = latest()
    fresh = last is not None and last.state != _State.CHECKING and last.begun_at > clock.now() - EVERY
    if fresh or (last is None and not _anything()):
        return
    check = check_chain(CLOCK, seconds=seconds)
    if check.state == _State.BROKEN:
        log.error("audit.chain_broken", said=check.said, seq=check.bad_seq, event=str(check.bad_event or ""))


def latest() -> ChainCheck | None:
    return ChainCheck.objects.order_by("-id").first()


def latest_over() -> ChainCheck | None:
    """The newest check that came to an end: one that is under way does not take back what it found."""
    return ChainCheck.objects.filter(ended_at__isnull=False).order_by("-id").first()


def end() -> int:
    """How many entries are in the chain."""
    return AuditHead.objects.values_list("seq", flat=True).first() or 0


def _anything() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM runs_audit_event)")
        found: bool = cursor.fetchone()[0]
    return found


@verb
def _begin(actor: Actor) -> ChainCheck:
    with connection.cursor() as cursor:
        # Of two who begin at one moment, the second goes on with what the first has begun.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('agentops chain check', 0))")
    under_way = ChainCheck.objects.filter(state=_State.CHECKING).first()
    return under_way or ChainCheck.objects.create(begun_by=actor.name)


@verb
def _part(check_id: uuid.UUID) -> ChainCheck:
    """The next part of a check, under its row's lock."""
    check = ChainCheck.objects.select_for_update(no_key=True).get(pk=check_id)
    if check.state != _State.CHECKING:
        return check
    if check.linked:
        _look_up(check)
    else:
        _follow(check)
    if check.state != _State.CHECKING:
        check.ended_at = clock.now()
    check.save()
    return check


# By the primary key of the links, and each event by its own.
_LINKS = """
WITH part AS MATERIALIZED (
    SELECT seq, event_id, head FROM runs_audit_link WHERE seq > %(seq)s ORDER BY seq LIMIT %(batch)s
), judged AS MATERIALIZED (
    SELECT p.seq, p.event_id, p.head, CASE
        WHEN p.seq <> p.before + 1 THEN 'gap'
        WHEN e.id IS NULL THEN 'gone'
        WHEN p.head <> agentops_event_head(p.previous, agentops_audit_text(p.seq, e)) THEN 'changed'
        WHEN p.seq = %(anchor)s AND p.head <> %(anchored)s THEN 'anew'
    END AS wrong
    FROM (SELECT part.*, lag(seq, 1, %(seq)s::bigint) OVER chain AS before, lag(head, 1, %(head)s::bytea) OVER chain AS previous
        FROM part WINDOW chain AS (ORDER BY seq)) AS p
    LEFT JOIN runs_audit_event e ON e.id = p.event_id
)
SELECT seq, event_id, head, wrong, (SELECT count(*) FROM part) FROM judged
WHERE wrong IS NOT NULL OR seq = (SELECT max(seq) FROM part) ORDER BY seq LIMIT 1
"""
_WRONG = {
    "gap": "a link of the chain is missing before no. {}",
    "gone": "the entry of link no. {} is gone",
    "changed": "entry no. {}, or its link, is not what it was when it was written",
    "anew": "an earlier check found another digest at no. {}: the chain was made anew",
}

# One statement: head and last link are of one moment.
_END = """
SELECT coalesce(h.seq, 0), coalesce(h.head, ''::bytea), coalesce(l.seq, 0), coalesce(l.head, ''::bytea)
FROM (SELECT 1) AS one LEFT JOIN runs_audit_head h ON true
LEFT JOIN (SELECT seq, head FROM runs_audit_link ORDER BY seq DESC LIMIT 1) AS l ON true
"""


def _follow(check: ChainCheck) -> None:
    """Compare the next links with the one before each, and with their events."""
    anchor = ChainCheck.objects.filter(state=_State.SOUND).order_by("-id").first()
    parameters: dict[str, Any] = {
        "seq": check.seq,
        "head": bytes(check.head),
        "batch": BATCH,
        "anchor": anchor.seq if anchor else 0,
        "anchored": bytes(anchor.head) if anchor else b"",
    }
    with connection.cursor() as cursor:
        cursor.execute(_LINKS, parameters)
        row = cursor.fetchone()
        if row is not None and row[3]:
            _broken(check, row[0], row[1], _WRONG[row[3]].format(f"{row[0]:,}"))
            return
        if row is not None:
            check.seq, check.head = row[0], bytes(row[2])
            if row[4] == BATCH:
                return
        cursor.execute(_END)
        head_seq, head, last_seq, last = cursor.fetchone()
    if (head_seq, bytes(head)) != (last_seq, bytes(last)):
        _broken(check, last_seq, None, f"the chain ends with link {last_seq}, and should end with {head_seq}")
    elif anchor is not None and last_seq < anchor.seq:
        _broken(
            check,
            last_seq,
            None,
            f"an earlier check went up to link {anchor.seq}; the last is {last_seq} now",
        )
    else:
        # Whatever was linked since this part was read is there when somebody checks the next time.
        check.linked = True


# By the primary key of the events, and each link by its unique event.
_UNLINKED = """
WITH part AS MATERIALIZED (
    SELECT id FROM runs_audit_event WHERE %(from)s::uuid IS NULL OR id > %(from)s::uuid ORDER BY id LIMIT %(batch)s
)
SELECT (SELECT count(*) FROM part), (SELECT id FROM part ORDER BY id DESC LIMIT 1),
    (SELECT id FROM part WHERE NOT EXISTS (SELECT FROM runs_audit_link l WHERE l.event_id = part.id) ORDER BY id LIMIT 1)
"""


def _look_up(check: ChainCheck) -> None:
    """Look the next events up among the links."""
    with connection.cursor() as cursor:
        cursor.execute(_UNLINKED, {"from": check.looked_up, "batch": BATCH})
        number, last, unlinked = cursor.fetchone()
    if unlinked is not None:
        _broken(
            check, None, unlinked, "an entry is in no link of the chain: it was put in, or its link is gone"
        )
        return
    check.looked_up = last or check.looked_up
    if number < BATCH:
        check.state = _State.SOUND


def _broken(check: ChainCheck, seq: int | None, event: uuid.UUID | None, said: str) -> None:
    check.state, check.bad_seq, check.bad_event, check.said = _State.BROKEN, seq, event, said


# --- one run -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunCheck:
    """What a look at a run's chain found."""

    looked: int
    """The last event that was looked at."""
    ends: int
    """The number at which the run says its chain ends."""
    bad: int | None = None
    """The first event that is not good."""
    said: str = ""

    @property
    def sound(self) -> bool:
        """Good to its end."""
        return not self.said and self.looked == self.ends

    @property
    def goes_on(self) -> bool:
        """Good as far as was looked, and there are more events."""
        return not self.said and self.looked < self.ends


# By the primary key, (run_id, seq). All of it in one statement: the run's head and its last event are of one moment.
_OF_RUN = """
WITH part AS MATERIALIZED (
    SELECT * FROM runs_event WHERE run_id = %(run)s AND seq >= %(from)s ORDER BY seq LIMIT %(batch)s
), judged AS MATERIALIZED (
    SELECT seq, head, CASE
        WHEN seq <> before + 1 THEN 'gap'
        WHEN seq > %(from)s AND head <> agentops_event_head(
            previous, agentops_event_text(seq, at, kind, actor_id, actor, reason, data)) THEN 'changed'
    END AS wrong
    FROM (SELECT part.*, lag(seq, 1, %(before)s) OVER chain AS before, lag(head, 1, ''::bytea) OVER chain AS previous
        FROM part WINDOW chain AS (ORDER BY seq)) AS p
)
SELECT r.event_seq, r.event_head, first.seq, first.wrong, last.seq, last.head, newest.seq
FROM runs_run r
LEFT JOIN LATERAL (SELECT seq, wrong FROM judged WHERE wrong IS NOT NULL ORDER BY seq LIMIT 1) AS first ON true
LEFT JOIN LATERAL (SELECT seq, head FROM judged ORDER BY seq DESC LIMIT 1) AS last ON true
LEFT JOIN LATERAL (SELECT max(seq) AS seq FROM runs_event WHERE run_id = r.id) AS newest ON true
WHERE r.id = %(run)s
"""
_WRONG_OF_RUN = {
    "gap": "an event is missing before no. {}",
    "changed": "event no. {} is not what it was when it was written",
}


def check_run(run_id: uuid.UUID, after: int = 0) -> RunCheck:
    """Compare a run's events with one another and with the run, up to OF_A_RUN of them; `after`: those up to here are good.

    Reads only. The caller has asked whether the person may see the run; it exists.
    """
    parameters: dict[str, Any] = {
        "run": run_id,
        # The event before is read as well, for its digest.
        "from": after,
        "before": after - 1 if after else 0,
        "batch": OF_A_RUN + (1 if after else 0),
    }
    with connection.cursor() as cursor:
        cursor.execute(_OF_RUN, parameters)
        ends, head, bad, wrong, last, digest, newest = cursor.fetchone()
    if bad is not None:
        return RunCheck(bad - 1, ends, bad, _WRONG_OF_RUN[wrong].format(f"{bad:,}"))
    looked = last or 0
    if (newest or 0) > ends and looked >= ends:
        return RunCheck(ends, ends, ends + 1, f"the run says that its history ends with event {ends}")
    whole = looked == ends
    if not whole and (looked - after < OF_A_RUN):
        said = f"the run says that there are {ends:,} events: what came after no. {looked:,} was cut off"
        return RunCheck(looked, ends, looked + 1, said)
    if whole and bytes(digest or b"") != bytes(head):
        return RunCheck(
            looked, ends, looked, f"the run holds another digest than event no. {looked:,}, its last"
        )
    return RunCheck(looked, ends)
