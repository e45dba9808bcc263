"""The judge: compares what the database says was done with what the ledgers say happened.

It asks the database and the ledgers, then decides with plain data, so that each of its verdicts can be provoked in a test.
"""

import itertools
import json
import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from agentops.chaos.asked import EVENTS, REASON, Answer, Asked
from agentops.chaos.ledgers import CannotJudge, Ledgers, Performed, by_key
from agentops.chaos.load import SAMPLES
from runs import clock, doctor, history
from runs.engine.effects import provider_key
from runs.models import Attempt, Bulk, BulkItem, Event, Operation, Run, Worker
from runs.models.operation import Kind, OpStatus
from runs.states import TERMINAL, AttentionKind, Outcome, Status

#: The name under which robots add their lines to states.
EDITS = "edits"
#: How many examples of one kind of wrong the report shows.
SAMPLE = 5


@dataclass(frozen=True)
class Effect:
    """One effect as the database has it. `keys`: every provider key that it may have been sent under, the newest last."""

    operation: str
    run: str
    tool: str
    status: str
    keys: tuple[str, ...]
    settled_by: str = ""

    def __str__(self) -> str:
        return f"{self.tool} of run {self.run} (operation {self.operation}, key {self.keys[-1]})"


@dataclass(frozen=True)
class Strike:
    """A fault that hit processes. `at`: Unix seconds, just before."""

    at: float
    kind: str
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Notes:
    """What a trial knows of itself when it is judged; kept in its folder, so that it can be judged again."""

    seed: int
    duration: float
    """Seconds of load and faults, as they were in the end."""
    complete: bool
    """Whether everything was given the time to come to its end."""
    still: bool
    """Whether everything did, so that nothing moves any more while it is judged."""
    faults: dict[str, int]
    """Without those of the sandbox, whose ledger has them."""
    strikes: tuple[Strike, ...]
    confirmed: tuple[str, ...]
    """Runs whose start was confirmed."""
    told: tuple[str, ...] = ()
    """What robots saw that must not be."""
    asked: tuple[Asked, ...] = ()
    """What robots asked of runs, and what they were told."""

    def written(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises ValueError, KeyError or TypeError for a text that `written` did not make."""
        raw: dict[str, Any] = json.loads(text)
        strikes = tuple(Strike(one["at"], one["kind"], tuple(one["pids"])) for one in raw.pop("strikes"))
        confirmed, told = tuple(raw.pop("confirmed")), tuple(raw.pop("told"))
        asked = tuple(Asked(**one) for one in raw.pop("asked"))
        return cls(strikes=strikes, confirmed=confirmed, told=told, asked=asked, **raw)


@dataclass
class Wrong:
    """What must not be: by kind, how often and some examples."""

    counts: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, sample: str, count: int = 1) -> None:
        self.counts[kind] += count
        if len(self.samples[kind]) < SAMPLE:
            self.samples[kind].append(sample)


@dataclass(frozen=True)
class Tally:
    """Effects, counted."""

    expected: int
    seen: int
    in_doubt_settled: int
    not_observable: dict[str, int]
    """Effects recorded as done whose tool no ledger tells about, by tool."""


def compare(
    effects: Sequence[Effect],
    performed: Sequence[Performed],
    observable: set[str],
    wrong: Wrong,
    *,
    complete: bool = True,
    runs_of_samples: frozenset[str] = frozenset(),
) -> Tally:
    """Hold the database's effects against the ledgers; what does not agree goes into `wrong`.

    Args:
        observable: tools that a ledger tells about; another one is judged, too, once a ledger holds one of its keys.
        complete: whether everything has come to its end; else what is under way may have happened already.
        runs_of_samples: runs in whose name nothing may happen without a record.
    """
    seen_under = by_key(performed)
    judged = observable | {e.tool for e in effects if any(key in seen_under for key in e.keys)}
    tally: Counter[str] = Counter()
    not_observable: Counter[str] = Counter()
    known: set[str] = set()
    for effect in effects:
        known.update(effect.keys)
        happened = [one for key in effect.keys for one in seen_under.get(key, ())]
        done = effect.status == OpStatus.DONE
        if effect.tool not in judged:
            not_observable[effect.tool] += done
            continue
        tally["expected"] += done
        tally["seen"] += len(happened)
        tally["settled"] += done and effect.settled_by not in ("", "approval")
        if done and not happened:
            wrong.add("lost", f"recorded as done, in no ledger: {effect}")
        if len(happened) > 1:
            wrong.add(
                "repeated", f"happened {len(happened)} times: {effect}: {'; '.join(o.what for o in happened)}"
            )
        if happened and not done and complete and effect.status != OpStatus.PENDING:
            wrong.add(
                "unrecorded", f"happened, but is recorded as {effect.status}: {effect}: {happened[0].what}"
            )
    for one in performed:
        if complete and one.key not in known and one.run_id in runs_of_samples:
            wrong.add(
                "unrecorded",
                f"happened without a record: {one.what}, key {one.key or '(none)'}, run {one.run_id}",
            )
    return Tally(tally["expected"], tally["seen"], tally["settled"], dict(+not_observable))


# --- asking the database ------------------------------------------------------------------------------------------------


def effects_in_database() -> list[Effect]:
    """Every effect and compensation on record, with the keys of its earlier generations.

    What a fork has taken over, key and all, is not another effect.
    """
    rows = Operation.objects.filter(kind=Kind.EFFECT, provider_key__isnull=False).order_by("id")
    rows = rows.exclude(pk__in=taken_over().values("pk"))
    return [
        Effect(
            operation=str(row.pk),
            run=str(row.run_id),
            tool=row.name,
            status=row.status,
            keys=keys_of(row),
            settled_by=row.settled_by,
        )
        for row in rows.only(*_COLUMNS).iterator()
    ]


def taken_over() -> QuerySet[Operation]:
    """Effects that forks count on without having sent them: under the key of the run that did."""
    origin = Operation.objects.filter(pk=OuterRef("copied_from"), provider_key=OuterRef("provider_key"))
    return Operation.objects.filter(Exists(origin), kind=Kind.EFFECT)


_COLUMNS = ("run_id", "step_seq", "position", "name", "status", "provider_key", "generation", "settled_by")


def keys_of(operation: Operation) -> tuple[str, ...]:
    """Every provider key that an effect may have been sent under."""
    earlier = (
        provider_key(operation.run_id, operation.step_seq, operation.position, generation)
        for generation in range(operation.generation + 1)
    )
    keys = dict.fromkeys([*(str(key) for key in earlier), str(operation.provider_key)])
    return tuple(keys)


def runs_by_status() -> dict[str, int]:
    return dict(Run.objects.values_list("status").annotate(Count("pk")))


def unended(until: timedelta = timedelta()) -> tuple[list[Run], int]:
    """Runs that have come to no end, and how many more wait by right for something that is not to come within `until`.

    By right: runs of one's own workflows that wait for a signal, a person or a time. The samples have robots for all that they
    wait for.
    """
    runs = Run.objects.exclude(status__in=TERMINAL).order_by("id")
    asked = Q(status=Status.WAITING) | Q(status=Status.ATTENTION, attention_kind=AttentionKind.IN_DOUBT)
    later = Q(wake_at=None) | Q(wake_at__gt=clock.now() + until)
    waiting = runs.filter(asked & later).exclude(workflow__in=SAMPLES)
    return list(runs.exclude(pk__in=waiting.values("pk"))), waiting.count()


def in_doubt() -> QuerySet[Operation]:
    """Effects of the samples whose outcome nobody knows (yet): their ledgers tell of each."""
    return Operation.objects.filter(status=OpStatus.PENDING, run__workflow__in=SAMPLES)


def under_way(until: timedelta) -> int:
    """How much has not come to its end: runs, bulks, and effects in doubt that a kill has left behind."""
    killed = in_doubt().filter(run__status=Status.CANCELLED)
    return len(unended(until)[0]) + Bulk.objects.filter(finished_at=None).count() + killed.count()


def look_for_unended(wrong: Wrong) -> int:
    """Note runs, bulks and doubts without an end although nothing is broken any more; returns how many runs wait by right."""
    for bulk in Bulk.objects.filter(finished_at=None):
        wrong.add("not_ended", f"bulk {bulk.pk} ({bulk.name}) is {bulk.status}: {bulk.said}")
    for doubt in in_doubt():
        wrong.add("not_ended", f"nobody has found out whether {doubt.name} of run {doubt.run_id} happened")
    left, waiting = unended()
    for run in left:
        what = f"{run.status} at {run.step}" + (f", {run.attention_kind}" if run.attention_kind else "")
        held = f", held: {run.held_by}" if run.held_by else ""
        wake = f", wakes at {run.wake_at:%H:%M:%S}" if run.wake_at else ""
        wrong.add("not_ended", f"run {run.pk} of {run.workflow}: {what}{held}{wake} {run.reason}".rstrip())
    return waiting


def look_for_missing(confirmed: Iterable[str], wrong: Wrong) -> None:
    """Runs whose start was confirmed and that do not exist."""
    wanted = set(confirmed)
    missing = wanted - {str(pk) for pk in Run.objects.filter(pk__in=wanted).values_list("pk", flat=True)}
    for run_id in sorted(missing):
        wrong.add("lost_runs", f"the start of run {run_id} was confirmed, and it does not exist")


# --- what people did ----------------------------------------------------------------------------------------------------


def look_for_verbs(asked: Iterable[Asked], wrong: Wrong) -> dict[str, dict[str, int]]:
    """Hold what robots were told against the history; by verb, how often each answer was given.

    What was confirmed is there once, what was refused is not, and what nobody answered is there once at most.
    """
    kinds = set(EVENTS.values())
    events = Event.objects.filter(reason__startswith=f"{REASON} ", kind__in=kinds)
    there = Counter(
        (str(run), kind, reason) for run, kind, reason in events.values_list("run_id", "kind", "reason")
    )
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for one in asked:
        answers[one.verb][one.answer] += 1
        times = there[(one.run, EVENTS[one.verb], one.reason)]
        if one.answer == Answer.DONE and times == 0:
            wrong.add("lost_verbs", f"{one} was confirmed, and its history knows nothing of it")
        if one.answer == Answer.REFUSED and times:
            wrong.add("verbs", f"{one} was refused, and its history says that it was done")
        if times > 1:
            wrong.add("verbs", f"{one} is {times} times in its history")
    return {verb: dict(sorted(found.items())) for verb, found in sorted(answers.items())}


def look_for_edits(asked: Iterable[Asked], wrong: Wrong) -> None:
    """Each line that was added to a state, and confirmed, is in the state at the end: no checkpoint and no other edit lost it."""
    added: dict[str, list[str]] = defaultdict(list)
    for one in asked:
        if one.verb == "edit_state" and one.answer == Answer.DONE:
            added[one.run].append(one.reason)
    for run in Run.objects.filter(pk__in=added):
        state = history.whole(run.pk, run.state, run.state_sealed).true
        for line in added[str(run.pk)]:
            if line not in state.get(EDITS, ()):
                wrong.add("lost_edits", f"{line} was added to the state of run {run.pk}, and is not there")


def look_after_kills(wrong: Wrong) -> None:
    """Nothing begins for a run after its kill: neither an attempt nor an effect bears the epoch that the kill has made."""
    for run_id, data in Event.objects.filter(kind="killed").values_list("run_id", "data"):
        sent = Operation.objects.filter(run_id=run_id, intent_epoch__gte=data["epoch"])
        sent = sent.exclude(pk__in=taken_over().values("pk"))  # with epochs of another run
        tried = Attempt.objects.filter(run_id=run_id, epoch__gte=data["epoch"])
        if sent.exists() or tried.exists():
            wrong.add("after_kill", f"run {run_id} went on after it was killed")


def look_for_bulks(wrong: Wrong) -> tuple[int, int]:
    """Each run that a bulk says it has retried was retried by it once, and no other; (bulks, runs that they retried)."""
    bulks = 0
    done: Counter[tuple[str, str]] = Counter()
    events: Counter[tuple[str, str]] = Counter()
    for bulk in Bulk.objects.order_by("id"):
        bulks += 1
        reason = f"{bulk.name}: {bulk.reason}"
        items = BulkItem.objects.filter(bulk=bulk, state=BulkItem.State.DONE).values_list("run_id", flat=True)
        done.update((reason, str(run_id)) for run_id in items)
        retried = Event.objects.filter(kind="retried", reason=reason).values_list("run_id", flat=True)
        events.update((reason, str(run_id)) for run_id in retried)
    for (reason, run_id), times in (done - events).items():
        wrong.add(
            "bulks", f"bulk “{reason}” says that it retried run {run_id}, whose history does not", times
        )
    for (reason, run_id), times in (events - done).items():
        wrong.add("bulks", f"bulk “{reason}” retried run {run_id} {times} times more than it says", times)
    return bulks, done.total()


def look_for_families(wrong: Wrong) -> tuple[int, int]:
    """Each child exists once, and a join tells of each what it came to; (child runs, joins)."""
    children = joins = 0
    waits = Operation.objects.filter(kind=Kind.CHILD, copied_from=None).order_by("id")
    for wait in waits.only("run_id", "name", "status", "children", "result").iterator():
        statuses = list(
            Run.objects.filter(parent_operation_id=wait.pk)
            .order_by("child_index")
            .values_list("status", flat=True)
        )
        children += len(statuses)
        what = f"{wait.name} of run {wait.run_id}"
        if len(statuses) != wait.children:
            wrong.add("families", f"{what}: {wait.children} child runs were started, {len(statuses)} exist")
        if wait.status != OpStatus.DONE:
            continue
        joins += 1
        told = wait.result["ends"]
        if len(told) != len(statuses):
            wrong.add("families", f"{what}: joined {len(told)} child runs of {len(statuses)}")
        for place, (letter, status) in enumerate(zip(told, statuses, strict=False)):
            # A failed one may have been retried since; the others have ended for good.
            if letter not in JOINED or (letter != "f" and status != JOINED[letter]):
                wrong.add("families", f"{what}: joined child {place} as {letter!r}, and it is {status}")
    return children, joins


#: How the samples' joins, which wait for all, record what a child came to.
JOINED = {"c": Status.COMPLETED, "f": Status.FAILED, "x": Status.CANCELLED}


def examine(wrong: Wrong) -> None:
    """What `manage.py doctor` finds; warnings do not count, nor that the scratch server would not survive a power cut."""
    for problem in doctor.examine():
        if problem.severity == doctor.ERROR and problem.check != "durability":
            sample = "; ".join(problem.sample) or problem.advice
            wrong.add("doctor", f"{problem.check}: {sample}", problem.count)


# --- time to recover ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Try:
    """One attempt, of those of one run in their order."""

    run: uuid.UUID
    worker: uuid.UUID | None
    outcome: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True)
class Life:
    """One worker process."""

    worker: uuid.UUID
    pid: int
    started_at: datetime


#: Outcomes of attempts that somebody else closed, because their worker was gone.
STOPPED_BY_FAULT = frozenset({Outcome.CRASHED, Outcome.STOPPED, Outcome.TIMED_OUT})


def recoveries(strikes: Sequence[Strike], lives: Sequence[Life], tries: Sequence[Try]) -> list[float]:
    """Seconds from each fault that stopped an attempt to the beginning of the next attempt of its run.

    `tries` in order of run, visit and number. A run that was not tried again (cancelled, given up) counts for none.
    """
    hit: dict[uuid.UUID, list[float]] = defaultdict(list)
    for strike in strikes:
        for pid in strike.pids:
            born = [
                life for life in lives if life.pid == pid and life.started_at.timestamp() <= strike.at + 0.1
            ]
            if born:
                hit[max(born, key=lambda life: life.started_at).worker].append(strike.at)
    found = []
    for one, following in itertools.pairwise(tries):
        if one.run != following.run or one.worker is None or one.outcome not in STOPPED_BY_FAULT:
            continue
        assert one.ended_at is not None
        # The first blow that fell while it ran; the clocks of database and this process are those of one machine.
        begun, ended = one.started_at.timestamp() - 0.05, one.ended_at.timestamp() + 0.05
        blows = [at for at in hit.get(one.worker, ()) if begun <= at <= ended]
        if blows:
            found.append(max(0.0, following.started_at.timestamp() - min(blows)))
    return sorted(found)


def lives_and_tries() -> tuple[list[Life], list[Try]]:
    """All workers and attempts on record, those that run now included."""
    lives = [Life(*row) for row in Worker.objects.values_list("id", "pid", "started_at")]
    columns = ("run_id", "step_seq", "attempt_no", "worker_id", "outcome", "started_at", "ended_at")
    rows = list(Attempt.objects.values_list(*columns))
    running = Run.objects.filter(status=Status.RUNNING, attempt_started_at__isnull=False)
    rows += [
        (*row, "", started, None)
        for *row, started in running.values_list(
            "id", "step_seq", "attempt_no", "worker_id", "attempt_started_at"
        )
    ]
    rows.sort(key=lambda row: row[:3])
    return lives, [Try(row[0], *row[3:]) for row in rows]


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of them do not exceed; None of nothing."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(len(ordered) * share) - 1)], 3)


# --- the verdict --------------------------------------------------------------------------------------------------------

#: These have keys of their own; everything else that is wrong makes `invariants_ok` false.
EFFECTS = frozenset({"lost", "repeated"})


def judged(notes: Notes, ledgers: Ledgers) -> dict[str, Any]:
    """The report, with the keys of `--json`; None where there was nothing to measure.

    Raises CannotJudge when a ledger does not answer, or when nothing has happened that could be judged.
    """
    if not notes.confirmed:
        raise CannotJudge("No run was started, so nothing was proved.")
    wrong = Wrong()
    # The database first: what it says was done must be in the ledgers by now.
    effects = effects_in_database()
    performed = ledgers.performed()
    of_samples = Run.objects.filter(workflow__in=SAMPLES).values_list("pk", flat=True)
    tally = compare(
        effects,
        performed,
        ledgers.observable(),
        wrong,
        complete=notes.still,
        runs_of_samples=frozenset(str(pk) for pk in of_samples),
    )
    look_for_missing(notes.confirmed, wrong)
    waiting = look_for_unended(wrong) if notes.complete else 0
    pending = ledgers.webhooks_pending()
    if notes.complete and pending:
        wrong.add("webhooks", f"{pending} webhooks were never taken", pending)
    for told in notes.told:
        wrong.add("refusals", told)
    verbs = look_for_verbs(notes.asked, wrong)
    look_for_edits(notes.asked, wrong)
    look_after_kills(wrong)
    bulks, bulk_runs = look_for_bulks(wrong)
    children, joins = look_for_families(wrong)
    examine(wrong)
    statuses = runs_by_status()
    faults = Counter(notes.faults) + ledgers.faults()
    recovered = recoveries(notes.strikes, *lives_and_tries())
    return {
        "runs": sum(statuses.values()),
        "completed": statuses.get(Status.COMPLETED, 0),
        "attention": statuses.get(Status.ATTENTION, 0),
        "failed": statuses.get(Status.FAILED, 0),
        "cancelled": statuses.get(Status.CANCELLED, 0),
        "faults": faults.total(),
        "effects_expected": tally.expected,
        "effects_seen": tally.seen,
        "lost": wrong.counts["lost"],
        "repeated": wrong.counts["repeated"],
        "in_doubt_settled": tally.in_doubt_settled,
        "recovery_p50_s": percentile(recovered, 0.5),
        "recovery_p99_s": percentile(recovered, 0.99),
        "recovery_max_s": percentile(recovered, 1),
        "invariants_ok": not wrong.counts.keys() - EFFECTS,
        "faults_by_kind": dict(sorted(faults.items())),
        "seed": notes.seed,
        "duration": round(notes.duration, 1),
        "interrupted": not notes.complete,
        "waiting": waiting,
        "not_observable": tally.not_observable,
        "children": children,
        "joins": joins,
        "forks": Run.objects.filter(forked_from__isnull=False).count(),
        "effects_reused": taken_over().count(),
        "bulks": bulks,
        "bulk_runs": bulk_runs,
        "verbs": verbs,
        "wrong": dict(wrong.samples),
    }
