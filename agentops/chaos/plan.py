"""What a trial will do and when, decided before it begins from one seed: the same seed makes the same plan.

A plan names no process and no run, since those exist only later: it holds numbers from 0 to 1 that pick among what is there
when the time has come.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Group(StrEnum):
    PROCESSES = "processes"
    DATABASE = "database"
    PROVIDERS = "providers"
    WEBHOOKS = "webhooks"
    PEOPLE = "people"


class Kind(StrEnum):
    """A kind of fault; the comment says what is done."""

    KILL_WORKER = "kill_worker"  # kill -9 of one worker process
    KILL_SENTINEL = "kill_sentinel"  # kill -9 of a cluster's sentinel; its workers die with it
    KILL_MAIN = "kill_main"  # kill -9 of a cluster's main process
    KILL_WEB = "kill_web"  # kill -9 of one process of the web server
    FREEZE_SHORT = "freeze_short"  # SIGSTOP of a worker or web process for less than a lease, then SIGCONT
    FREEZE_LONG = "freeze_long"  # SIGSTOP of a worker for longer than a lease
    FREEZE_CLUSTER = (
        "freeze_cluster"  # all processes of a cluster at once, longer than a lease: a host that stands still
    )
    DRAIN = "drain"  # SIGTERM to a cluster, as at a deployment
    FAILPOINT = "failpoint"  # kill -9 or a delay exactly between two durable facts
    RESTART_FAST = "restart_fast"  # PostgreSQL is restarted
    RESTART_IMMEDIATE = "restart_immediate"  # PostgreSQL is stopped as by a crash
    CUT_SESSIONS = "cut_sessions"  # pg_terminate_backend of some sessions
    CUT_CONNECTIONS = "cut_connections"  # the proxy in front of PostgreSQL drops some connections
    DELAY = "delay"  # every byte to and from PostgreSQL is late
    HANG = "hang"  # nothing passes for a while, also for longer than a lease
    PROVIDER = "provider"  # errors before and after the work, silence, closed connections, slow answers
    WEBHOOK = "webhook"  # duplicated, early, late and reordered webhooks
    FORGED_WEBHOOK = "forged_webhook"  # a webhook that nobody signed
    RACE = "race"  # several people decide on one approval at the same moment
    CHANGE_LIMITS = "change_limits"
    PAUSE = "pause"  # a workflow is paused, and lifted again
    CANCEL = "cancel"
    FORCE_RESUME = "force_resume"
    RETRY = "retry"  # a failed run is retried in place
    FORK = (
        "fork"  # a new run begins at a visit of one that has ended; now and then an effect is to happen again
    )
    SKIP = "skip"  # a run goes on behind the step where it stands
    EDIT_STATE = "edit_state"  # a line is added to the state of a run that no worker has
    KILL = "kill"  # a run ends at once, whatever is under way
    BULK = (
        "bulk"  # all failed runs of a workflow are retried by a bulk, which is paused and resumed meanwhile
    )
    TOGETHER = "together"  # two people give a verdict each to several like approvals at the same moment


GROUPS: Mapping[Group, tuple[Kind, ...]] = {
    Group.PROCESSES: (
        *(Kind.KILL_WORKER, Kind.KILL_SENTINEL, Kind.KILL_MAIN, Kind.KILL_WEB),
        *(Kind.FREEZE_SHORT, Kind.FREEZE_LONG, Kind.FREEZE_CLUSTER, Kind.DRAIN, Kind.FAILPOINT),
    ),
    Group.DATABASE: (
        *(Kind.RESTART_FAST, Kind.RESTART_IMMEDIATE, Kind.CUT_SESSIONS, Kind.CUT_CONNECTIONS),
        *(Kind.DELAY, Kind.HANG),
    ),
    Group.PROVIDERS: (Kind.PROVIDER,),
    Group.WEBHOOKS: (Kind.WEBHOOK, Kind.FORGED_WEBHOOK),
    Group.PEOPLE: (
        *(
            Kind.RACE,
            Kind.TOGETHER,
            Kind.CHANGE_LIMITS,
            Kind.PAUSE,
            Kind.CANCEL,
            Kind.FORCE_RESUME,
            Kind.RETRY,
        ),
        *(Kind.FORK, Kind.SKIP, Kind.EDIT_STATE, Kind.KILL, Kind.BULK),
    ),
}

#: These happen all the time at a rate of their own, not at times of the plan: per request, per approval, per process.
CONTINUOUS = frozenset({Kind.PROVIDER, Kind.WEBHOOK, Kind.RACE, Kind.TOGETHER, Kind.FAILPOINT})

#: How often a kind is dealt, beside the others.
WEIGHTS: Mapping[Kind, int] = {
    Kind.KILL_WORKER: 5,
    Kind.KILL_SENTINEL: 1,
    Kind.KILL_MAIN: 1,
    Kind.KILL_WEB: 2,
    Kind.FREEZE_SHORT: 2,
    Kind.FREEZE_LONG: 2,
    Kind.FREEZE_CLUSTER: 1,
    Kind.DRAIN: 1,
    Kind.FAILPOINT: 1,
    Kind.RESTART_FAST: 1,
    Kind.RESTART_IMMEDIATE: 1,
    Kind.CUT_SESSIONS: 2,
    Kind.CUT_CONNECTIONS: 2,
    Kind.DELAY: 2,
    Kind.HANG: 1,
    Kind.PROVIDER: 1,
    Kind.WEBHOOK: 1,
    Kind.FORGED_WEBHOOK: 2,
    Kind.RACE: 1,
    Kind.CHANGE_LIMITS: 2,
    Kind.PAUSE: 1,
    Kind.CANCEL: 2,
    Kind.FORCE_RESUME: 2,
    Kind.RETRY: 1,
    Kind.FORK: 2,
    Kind.SKIP: 2,
    Kind.EDIT_STATE: 2,
    Kind.KILL: 1,
    Kind.BULK: 1,
    Kind.TOGETHER: 1,
}

type Weights = Mapping[Kind, int]


class UnknownKind(ValueError):
    """A name is neither a kind nor a group; the message says which are known."""


def choose(only: Sequence[str] = (), without: Sequence[str] = ()) -> dict[Kind, int]:
    """The kinds of a trial and their weights. `only` and `without` hold names of kinds or groups; `only` also KIND=WEIGHT.

    Raises UnknownKind.
    """
    chosen: dict[Kind, int] = {} if only else dict(WEIGHTS)
    for entry in only:
        name, equals, weight = entry.partition("=")
        if equals and not (weight.isdecimal() and 0 < int(weight) <= 1000):
            raise UnknownKind(f"{entry!r} has no weight from 1 to 1000 after the “=”")
        chosen |= {kind: int(weight) if equals else WEIGHTS[kind] for kind in named(name)}
    for entry in without:
        for kind in named(entry):
            chosen.pop(kind, None)
    return chosen


def named(name: str) -> tuple[Kind, ...]:
    """The kinds that a name stands for. Raises UnknownKind."""
    if name in Group:
        return GROUPS[Group(name)]
    if name in Kind:
        return (Kind(name),)
    raise UnknownKind(
        f"there is no kind or group of faults {name!r}; groups: {', '.join(Group)}; kinds: {', '.join(Kind)}"
    )


@dataclass(frozen=True)
class Fault:
    """One planned fault. `at`: seconds from the start. `pick`, `size`, `length`: 0 to 1, used as the kind needs."""

    at: float
    kind: Kind
    pick: float
    size: float
    length: float


@dataclass(frozen=True)
class Start:
    """One planned start of a run; `number` counts from 1. `at`: seconds from the start."""

    at: float
    number: int
    workflow: str
    input: Any


#: Nothing is broken before the first runs have begun (seconds).
QUIET_S = 1.5


def faults(seed: int, duration: float, per_minute: float, weights: Weights) -> list[Fault]:
    """The faults of a trial, in order of time: `per_minute` of them a minute, kinds dealt like cards by weight."""
    dice = random.Random(f"{seed}/faults")
    deck = [kind for kind in sorted(weights) if kind not in CONTINUOUS for _ in range(weights[kind])]
    room = max(0.0, duration - QUIET_S)
    count = round(per_minute * duration / 60) if deck else 0
    times = sorted(QUIET_S + dice.random() * room for _ in range(count))
    kinds: list[Kind] = []
    while len(kinds) < count:
        dice.shuffle(deck)
        kinds += deck
    return [
        Fault(round(at, 3), kind, dice.random(), dice.random(), dice.random())
        for at, kind in zip(times, kinds, strict=False)
    ]
