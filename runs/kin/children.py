"""Child runs: what a step starts and waits for, how they are written, and when enough of them have ended.

The runs are inserted in the transaction that opens the wait and suspends the parent: they exist once however often the step is
repeated. What they came to stands in their own rows; the wait records how each of them had ended when the parent took notice.
"""

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import batched
from typing import Any, Literal

from django.db import connection
from pydantic import ValidationError

from runs import blobs, clock, codec, redaction, registry, sizes, waits
from runs.errors import Diverged, InvalidInput
from runs.models import Operation, Run
from runs.models.operation import Kind, OpStatus, Rest
from runs.models.run import new_id
from runs.states import Status
from runs.workflow import Child, Ended, Ends, Workflow

#: Rows of one INSERT.
BATCH = 1000
#: Characters of all reasons that a wait records; each child keeps its own in full.
REASONS = 500_000
#: Error type of a wait that its parent asked to fail where a child did not complete.
FAILED = "ChildFailed"

#: Whether enough children of a wait have ended. The index on unfinished children is entered behind the child that ended last
#: (`last`): children are claimed in order, so the next one is usually found there at once, while the entries of those that have
#: ended, which nobody has removed yet, lie before it. ORDER BY keeps the planner at that index whatever it knows of the table.
_ENOUGH = """CASE WHEN o.children_wanted IS NULL THEN
        (SELECT c.child_index FROM runs_run c WHERE c.parent_operation_id = o.id AND c.finished_at IS NULL
            AND c.child_index > {last} ORDER BY c.child_index LIMIT 1) IS NULL
        AND (SELECT c.child_index FROM runs_run c WHERE c.parent_operation_id = o.id AND c.finished_at IS NULL
            AND c.child_index <= {last} ORDER BY c.child_index LIMIT 1) IS NULL
    ELSE (SELECT count(*) FILTER (WHERE c.status = 'completed') >= o.children_wanted
            OR count(*) FILTER (WHERE c.status IN ('failed', 'cancelled')) > o.children - o.children_wanted
        FROM runs_run c WHERE c.parent_operation_id = o.id)
    END"""

#: The parent that this wait may keep waiting although enough of its children have ended; under the parent's lock it is seen
#: whether it does. A closed one may just be opened again, by a parent that was retried and suspends.
ENOUGH = f"""
SELECT o.run_id FROM runs_operation o
WHERE o.id = %(wait)s AND o.status IN ('open', 'closed') AND {_ENOUGH.format(last="%(last)s")}
"""  # noqa: S608 - constants

#: The same for waits in the order of their ids, a page at a time; each row comes with the last id of a full page.
ENOUGH_OF_PAGE = f"""
WITH page AS MATERIALIZED (
    SELECT o.id, o.run_id, o.children, o.children_wanted FROM runs_operation o
    WHERE o.status = 'open' AND o.kind = 'child' AND o.id > %(after)s ORDER BY o.id LIMIT %(limit)s
)
SELECT last.id, o.id, o.run_id
FROM (SELECT CASE WHEN count(*) = %(limit)s THEN (array_agg(id ORDER BY id DESC))[1] END AS id FROM page) AS last
LEFT JOIN (SELECT o.id, o.run_id FROM page o JOIN runs_run r ON r.id = o.run_id
    WHERE r.status = 'waiting' AND r.held_by = '' AND (r.wake_at IS NULL OR r.wake_at > agentops_now())
      AND {_ENOUGH.format(last="0")}) AS o ON true
"""  # noqa: S608 - constants

#: New runs, due at once, and the first event of each, whose head is in the run already (see `services.start`).
INSERT = """
WITH given AS (
    SELECT g.*, p.started_by_id, p.started_by_name, p.tenant, p.depth + 1 AS depth, %(now)s::timestamptz AS now,
        jsonb_build_object('workflow', g.workflow, 'version', g.version, 'input', g.digest, 'parent', p.id) AS data
    FROM unnest(%(ids)s::uuid[], %(places)s::int[], %(workflows)s::text[], %(versions)s::int[], %(steps)s::text[],
        %(queues)s::text[], %(priorities)s::int[], %(subjects)s::text[], %(deadlines)s::timestamptz[], %(inputs)s::text[],
        %(sealed)s::bytea[], %(digests)s::text[])
        AS g (id, place, workflow, version, step, queue, priority, subject, deadline_at, input, input_sealed, digest),
        runs_run p WHERE p.id = %(parent)s
), made AS (
    INSERT INTO runs_run (id, workflow, version, queue, priority, subject, tenant, started_by_id, started_by_name, created_at,
        deadline_at, parent_id, parent_operation_id, child_index, depth, input, input_sealed, input_digest, step, step_seq,
        attempt_no, status, epoch, wake_at, visit_started_at, failures, crashes, lone_crashes, state, event_seq, event_head,
        sort_at, held_by, compensating, resume_step, cancel_requested_by, attention_kind, failure_kind, reason, external)
    SELECT id, workflow, version, queue, priority, subject, tenant, started_by_id, started_by_name, now,
        deadline_at, %(parent)s, %(wait)s, place, depth, input::jsonb, input_sealed, digest, step, 1,
        0, 'queued', 0, now, now, 0, 0, 0, '{}', 1,
        agentops_event_head(''::bytea, agentops_event_text(1, now, 'started', NULL, %(actor)s, '', data)),
        now - make_interval(mins => priority), '', false, '', '', '', '', '', '{}'
    FROM given RETURNING id, event_head
)
INSERT INTO runs_event (run_id, seq, at, kind, actor_id, actor, reason, data, head)
SELECT g.id, 1, g.now, 'started', NULL, %(actor)s, '', g.data, m.event_head FROM made m JOIN given g USING (id)
"""

#: What the children of a wait came to, in order.
ENDS = """
SELECT id, status, failure_kind, reason FROM runs_run WHERE parent_operation_id = %(wait)s ORDER BY child_index
"""
RESULTS = """
SELECT id, result, result_sealed FROM runs_run WHERE parent_operation_id = %(wait)s ORDER BY child_index
"""

#: The run and those above it, the uppermost first.
LINE = """
WITH RECURSIVE line AS (
    SELECT id, parent_id, workflow, 0 AS up FROM runs_run WHERE id = %(run)s
    UNION ALL SELECT r.id, r.parent_id, r.workflow, line.up + 1 FROM line JOIN runs_run r ON r.id = line.parent_id
)
SELECT workflow FROM line ORDER BY up DESC
"""

#: How a wait records what became of each child, one letter for each.
LETTERS = {Status.COMPLETED: "c", Status.FAILED: "f", Status.CANCELLED: "x"}
GOING_ON = "-"
_STATUS: dict[str, Literal["completed", "failed", "cancelled", "unfinished"]] = {
    "c": "completed",
    "f": "failed",
    "x": "cancelled",
    GOING_ON: "unfinished",
}

Leave = Literal["cancel", "leave"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A child run that is to be started: its input validated and encoded."""

    definition: Workflow
    encoded: Any
    text: bytes
    """Canonical JSON of the input: made once for its size, its digest and its row."""
    subject: str
    wish: Child

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text).hexdigest()

    def digest_instead(self, run: uuid.UUID, origin: uuid.UUID) -> str:
        """As `codec.digest_instead`."""
        return hashlib.sha256(codec.named_instead(self.text, run, origin)).hexdigest()


@dataclass(frozen=True, slots=True)
class Terms:
    """What a step waits for. `wanted`: how many must complete; None: all must have ended."""

    wanted: int | None
    raising: bool
    unneeded: Leave
    orphans: Leave


def prepare(wishes: Sequence[Child]) -> list[Prepared]:
    """The runs that are wished for. Raises InvalidInput naming the first that cannot be started."""
    return [_prepare(number, wish) for number, wish in enumerate(wishes)]


def _prepare(number: int, wish: Child) -> Prepared:
    name = wish.workflow if isinstance(wish.workflow, str) else wish.workflow.name
    what = f"child {number} ({name})"
    try:
        definition = registry.workflow(name)
        value = definition.validate_input(wish.input)
        encoded = codec.encode(value, path="input")
        text = codec.canonical(encoded)
        sizes.check("input", text.decode(), encoded, "input")
    except registry.UnknownWorkflow as error:
        raise InvalidInput(f"child {number}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "input"
        raise InvalidInput(f"{what}: {path}: {first['msg']}") from error
    except (codec.NotRecordable, sizes.TooLarge) as error:
        raise InvalidInput(f"{what}: {error}") from error
    if definition.start is None:
        raise InvalidInput(f"{what} has no start step")
    if wish.priority is not None and wish.priority not in range(10):
        raise InvalidInput(f"{what}: priority is {wish.priority}; it must be from 0 to 9")
    subject = wish.subject
    if subject is None:
        subject = definition.subject(value) if definition.subject else ""
    return Prepared(definition, encoded, text, codec.clean_text(subject, 200), wish)


def enough(wait: Operation) -> bool:
    """Whether the wait is over. The caller holds the parent's lock."""
    with connection.cursor() as cursor:
        cursor.execute(ENOUGH, {"wait": wait.pk, "last": 0})
        return cursor.fetchone() is not None


def start(parent: Run, wait: Operation, prepared: Sequence[Prepared]) -> None:
    """Insert the runs, some hundreds in a statement. The caller holds the parent's lock."""
    now = clock.now()
    numbered = enumerate(prepared)
    for batch in batched(numbered, BATCH):
        _insert(parent, wait, batch, now)
    with connection.cursor() as cursor:
        for queue in sorted({_queue(one) for one in prepared}):
            cursor.execute("SELECT pg_notify('agentops_due', %s)", [queue])


def _queue(one: Prepared) -> str:
    return one.wish.queue or one.definition.queue


def _insert(parent: Run, wait: Operation, batch: Sequence[tuple[int, Prepared]], now: datetime) -> None:
    ids = [new_id() for _ in batch]
    inputs, sealed = [], []
    for run_id, (_, one) in zip(ids, batch, strict=True):
        display, hidden = redaction.split(one.encoded)
        small = display is one.encoded and len(one.text) <= blobs.limit()
        inputs.append((one.text if small else codec.canonical(blobs.spilled(display, run_id))).decode())
        sealed.append(hidden)
    some = [one for _, one in batch]
    with connection.cursor() as cursor:
        cursor.execute(
            INSERT,
            {
                "parent": parent.pk,
                "wait": wait.pk,
                "now": now,
                "actor": f"run {str(parent.pk)[:13]}",
                "ids": ids,
                "places": [number for number, _ in batch],
                "workflows": [one.definition.name for one in some],
                "versions": [one.definition.version for one in some],
                "steps": [one.definition.start.name for one in some if one.definition.start],
                "queues": [_queue(one) for one in some],
                "priorities": [
                    parent.priority if one.wish.priority is None else one.wish.priority for one in some
                ],
                "subjects": [one.subject for one in some],
                "deadlines": [
                    now + one.definition.deadline if one.definition.deadline else None for one in some
                ],
                "inputs": inputs,
                "sealed": sealed,
                "digests": [one.digest for one in some],
            },
        )


def line(run_id: uuid.UUID) -> list[str]:
    """The names of the workflows from the run that nobody's step started down to this one."""
    with connection.cursor() as cursor:
        cursor.execute(LINE, {"run": run_id})
        return [name for (name,) in cursor.fetchall()]


def ends(
    recorded: Mapping[str, Any],
    rows: Sequence[tuple[Any, ...]],
    whole: Callable[[Sequence[Any]], list[Any]],
) -> Ends:
    """What a wait recorded, with the results that stand in the rows (of RESULTS) of its children.

    Raises Diverged where a child is gone.
    """
    letters, others = recorded["ends"], recorded["others"]
    if len(rows) != len(letters):
        raise Diverged(f"{len(letters) - len(rows)} child runs that this step started are gone")
    done = [place for place, letter in enumerate(letters) if letter == "c"]
    displays = dict(zip(done, whole([rows[place][1] for place in done]), strict=True))
    made = []
    for place, (run_id, _, sealed) in enumerate(rows):
        status = _STATUS[letters[place]]
        result = None
        if status == "completed":
            result = codec.decode(redaction.true_value(displays[place], sealed))
        told = others.get(str(place), {})
        made.append(Ended(run_id, status, result, told.get("reason", ""), told.get("kind", "")))
    return Ends(made)


class ChildWait(waits.OneByOne):
    """A wait for child runs."""

    name: str = Kind.CHILD

    def open(self, run: Run, operation: Operation, options: Mapping[str, Any]) -> None:
        """Start the runs; `options`: prepared, terms."""
        terms: Terms = options["terms"]
        operation.children, operation.children_wanted = len(options["prepared"]), terms.wanted
        operation.save(update_fields=["children", "children_wanted"])
        start(run, operation, options["prepared"])

    def look(self, run: Run, operation: Operation) -> bool:
        return enough(operation) and self._record(operation)

    def expire(self, run: Run, operation: Operation) -> None:
        what = "the child run" if operation.children == 1 else f"the {operation.children} child runs"
        self._let_go(operation, True)
        waits.settle(
            operation, None, status=OpStatus.FAILED, error=f"{what} of {operation.name} did not end in time"
        )

    def close(self, operation: Operation) -> None:
        if operation.request["orphans"] == "cancel":
            operation.rest = Rest.CANCEL
            operation.save(update_fields=["rest"])

    def describe(self, operation: Operation) -> waits.Description:
        """`operation` is from `reasons.with_children`, where it can say how many of them have not ended."""
        total = operation.children or 0
        going_on: int | None = getattr(operation, "going_on", None)
        if going_on == waits.UNTOLD:
            return waits.Description(f"child runs of {operation.name} have not ended")
        if total == 1:
            return waits.Description(f"a child run of {operation.name} has not ended")
        of = f"{total:,}"
        if going_on is not None and going_on < total:
            # Counted so far and no further (reasons.GOING_ON).
            of = f"{'more than 1,000' if going_on > 1000 else going_on} of {total:,}"
        enough = f" ({operation.children_wanted:,} are enough)" if operation.children_wanted else ""
        return waits.Description(f"{of} child runs of {operation.name} have not ended{enough}")

    def _record(self, operation: Operation) -> bool:
        """Record how each child stands now: this answer holds, whatever people do with the children later.

        False if enough of them have not ended after all: nobody holds their locks, and a failed one may be retried between two
        looks. What is recorded is one look.
        """
        with connection.cursor() as cursor:
            cursor.execute(ENDS, {"wait": operation.pk})
            rows = cursor.fetchall()
        letters = "".join(LETTERS.get(Status(status), GOING_ON) for _, status, _, _ in rows)
        if not _are_enough(letters, operation.children_wanted):
            return False
        others = [(place, row) for place, row in enumerate(rows) if letters[place] in "fx"]
        space = max(80, REASONS // max(1, len(others)))
        told = {
            str(place): {"run": str(row[0]), "kind": row[2], "reason": _short(row[3], space)}
            for place, row in others
        }
        counts = Counter(letters)
        failed = bool(others) and bool(operation.request["raising"])
        if operation.children_wanted is not None:
            failed = bool(operation.request["raising"]) and counts["c"] < operation.children_wanted
        self._let_go(operation, GOING_ON in letters)
        waits.settle(
            operation,
            {"ends": letters, "others": told},
            status=OpStatus.FAILED if failed else OpStatus.DONE,
            error=_told(operation, counts) if failed else "",
            error_type=FAILED,
            by="child runs",
        )
        return True

    def _let_go(self, operation: Operation, some_go_on: bool) -> None:
        """Say what is to become of the children that nobody waits for any more."""
        if some_go_on and operation.request["unneeded"] == "cancel":
            operation.rest = Rest.CANCEL
        elif some_go_on and operation.request["orphans"] == "cancel":
            operation.rest = Rest.AT_END
        else:
            return
        operation.save(update_fields=["rest"])


def _are_enough(letters: str, wanted: int | None) -> bool:
    """ENOUGH, of one look."""
    if wanted is None:
        return GOING_ON not in letters
    hopeless = letters.count("f") + letters.count("x") > len(letters) - wanted
    return letters.count("c") >= wanted or hopeless


def _short(text: str, space: int) -> str:
    return text if len(text) <= space else text[: space - 1] + "…"


def _told(operation: Operation, counts: Counter[str]) -> str:
    parts = [f"{counts['f']} failed"] if counts["f"] else []
    parts += [f"{counts['x']} cancelled"] if counts["x"] else []
    if operation.children == 1:
        return f"the child run of {operation.name} was {'cancelled' if counts['x'] else 'not completed: it failed'}"
    return f"of {operation.children} child runs of {operation.name}, {' and '.join(parts)}"


waits.register(ChildWait())
