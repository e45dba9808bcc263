"""Retention: delete finished runs that are older than their workflow allows, with everything that is theirs.

The deleting is done by the SQL function `agentops_delete_runs`, which looks at status and age again under each run's lock,
passes a run by that somebody else works on, keeps start keys, and writes a line of audit in the same transaction.
"""

import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import batched

import structlog
from django.db import IntegrityError, connection
from django.db.models import Exists, OuterRef, Q, QuerySet

from runs import blobs, clock, policies, registry
from runs.errors import Invalid
from runs.lifecycle import Actor
from runs.models import Operation, Policy, Run
from runs.models.operation import Kind
from runs.models.run import new_id
from runs.services.verb import permit, verb
from runs.states import TERMINAL

log = structlog.get_logger(__name__)

#: Runs that one transaction deletes.
BATCH = 100
#: Seconds between two ticks of a worker, and what one tick may take.
TICK_EVERY = 300.0
TICK_TAKES = 2.0

RETENTION = Actor("retention")


@dataclass(frozen=True)
class Rule:
    """How long finished runs of a workflow are kept; `days` 0: for ever."""

    workflow: str
    days: int
    source: str
    """Whose word it is: “override by ada”, “workflow”, “setting” or “command”."""

    @property
    def sentence(self) -> str:
        return f"finished more than {self.days} {'day' if self.days == 1 else 'days'} ago ({self.source})"


@dataclass
class Deleted:
    """What became of the runs of one rule: how many are gone, and which could not be deleted."""

    rule: Rule
    runs: int = 0
    kept: int = 0
    """Finished and old enough, but somebody worked on them just then, or something else still refers to them."""


def rules() -> list[Rule]:
    """The rule of every workflow that has runs, also where no code declares it any more."""
    overrides = policies.load()
    return [rule_of(name, overrides) for name in _workflows_with_runs()]


def rule_of(name: str, overrides: policies.Overrides) -> Rule:
    """How long runs of a workflow are kept: override < its code < the site's setting, the first that says something."""
    override = overrides.get((Policy.Scope.WORKFLOW, name))
    if override is not None and override.retention_days is not None:
        return Rule(name, override.retention_days, f"override by {override.changed_by}")
    try:
        declared = registry.workflow(name)
    except registry.UnknownWorkflow:
        declared = None
    says = declared is not None and declared.retention is not None
    return Rule(name, policies.retention_of_code(declared), "workflow" if says else "setting")


def _workflows_with_runs() -> list[str]:
    """Names of workflows, one index look-up each, however many runs there are."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE names AS ((SELECT workflow FROM runs_run ORDER BY workflow LIMIT 1) UNION ALL"
            " SELECT (SELECT workflow FROM runs_run WHERE workflow > names.workflow ORDER BY workflow LIMIT 1)"
            " FROM names WHERE names.workflow IS NOT NULL) SELECT workflow FROM names WHERE workflow IS NOT NULL"
        )
        return [name for (name,) in cursor.fetchall()]


def over_age(rule: Rule, moment: datetime) -> QuerySet[Run]:
    """Finished runs that the rule no longer keeps at `moment`, oldest first.

    A run ends after it was made, and ids are ordered by time: the index on (workflow, id) leads to the old end of the table,
    so that no index on the time of the end is needed. What stands there and is not finished is passed by.
    """
    if not rule.days:
        return Run.objects.none()
    cutoff = moment - timedelta(days=rule.days)
    oldest_kept = uuid.UUID(int=int(cutoff.timestamp() * 1000) << 80)
    ended = Q(status__in=sorted(s.value for s in TERMINAL), finished_at__lt=cutoff)
    old = Run.objects.filter(ended, workflow=rule.workflow, pk__lt=oldest_kept).order_by("pk")
    # A family goes from the top: a parent that is retried reads what its children came to. None goes while children work.
    parents = Run.objects.filter(pk=OuterRef("parent_id"))
    waits = Operation.objects.filter(run_id=OuterRef(OuterRef("pk")), kind=Kind.CHILD).values("pk")
    at_work = Run.objects.filter(parent_operation_id__in=waits, finished_at__isnull=True)
    return old.exclude(Exists(parents)).exclude(Exists(at_work))


def delete_finished(actor: Actor, rule: Rule, *, until: float | None = None, alone: bool = False) -> Deleted:
    """Delete what the rule no longer keeps, a transaction for each batch.

    Args:
        until: on `time.monotonic()`: no batch begins after this.
        alone: stop when another session is at it with `alone`.

    Raises NotAllowed, and Invalid for an age of less than a day.
    """
    permit(actor, "runs.delete_run", system=True)
    if rule.days < 0:
        raise Invalid(f"{rule.days} days is no age; give 1 or more, or 0 to keep runs for ever")
    deleted, moment, last = Deleted(rule), clock.now(), uuid.UUID(int=0)
    while until is None or time.monotonic() < until:
        chosen = list(over_age(rule, moment).filter(pk__gt=last).values_list("pk", flat=True)[:BATCH])
        if not chosen:
            break
        last = chosen[-1]
        gone = delete_chosen(actor, rule, chosen, alone=alone)
        if gone is None:
            break
        deleted.runs += gone
        deleted.kept += len(chosen) - gone
    return deleted


def delete_chosen(actor: Actor, rule: Rule, chosen: list[uuid.UUID], *, alone: bool = False) -> int | None:
    """Delete a batch; where something still refers to one of its runs, all others. How many; None: another session is at it."""
    try:
        return _delete_at_once(actor, rule, chosen, alone)
    except IntegrityError as error:
        if len(chosen) == 1:
            # One run that cannot be deleted must not keep all others: a table of the site's own may refer to it.
            log.warning("retention.kept", run=str(chosen[0]), error=str(error))
            return 0
    gone = 0
    for half in batched(chosen, (len(chosen) + 1) // 2):
        part = delete_chosen(actor, rule, list(half), alone=alone)
        if part is None:
            return gone or None
        gone += part
    return gone


@verb
def _delete_at_once(actor: Actor, rule: Rule, chosen: list[uuid.UUID], alone: bool) -> int | None:
    with connection.cursor() as cursor:
        if alone:
            cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended('agentops retention', 0))")
            if not cursor.fetchone()[0]:
                return None
        cursor.execute(
            "SELECT cardinality(agentops_delete_runs(%s, make_interval(days => %s), %s, %s, %s, %s))",
            [chosen, rule.days, new_id(), actor.id, actor.name, rule.sentence],
        )
        gone: int = cursor.fetchone()[0]
    return gone


def tick(seconds: float = TICK_TAKES) -> int:
    """A worker's turn: delete for so many seconds at most, while no other worker does. Returns how many runs are gone."""
    until, gone = time.monotonic() + seconds, 0
    for rule in rules():
        gone += delete_finished(RETENTION, rule, until=until, alone=True).runs
    if gone:
        blobs.sweep()
        log.info("retention.deleted", runs=gone)
    return gone
