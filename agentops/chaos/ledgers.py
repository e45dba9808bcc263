"""What really happened, as told by those who did it: the sandbox, and the ledgers of apps of one's own.

An app gives a ledger by a function in its module `chaos.py`:

    def performed_effects() -> Iterable[str | Performed]:
        "The idempotency key of each effect that was carried out; a key as often as it was."
"""

import importlib
import importlib.util
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import httpx
from django.conf import settings

from agentops.sandbox.client import Entry, SandboxLedger
from runs import registry

HOOK = "performed_effects"
NOT_GIVEN: Any = object()


class CannotJudge(Exception):
    """What happened cannot be found out, so nothing is proved; the message says why."""


@dataclass(frozen=True)
class Performed:
    """One effect that was carried out. `key`: the idempotency key that the tool was given.

    `reference` and `result` are what a person would enter for “it happened” (the result as the tool returns it). `what` names
    it in a report. `run_id`: where the ledger knows for which run it was.
    """

    key: str
    reference: str = ""
    result: Any = NOT_GIVEN
    what: str = ""
    run_id: str = ""


class Ledgers:
    """All ledgers of a trial."""

    def __init__(self, sandbox: SandboxLedger) -> None:
        self._sandbox = sandbox
        self._hooks = {app: hook for app in settings.AGENTOPS_APPS if (hook := _hook_of(app)) is not None}

    def performed(self) -> list[Performed]:
        """Every effect of every ledger, oldest first in each. Raises CannotJudge."""
        return [_of_entry(entry) for entry in self._entries()] + [
            one for app in self._hooks for one in self._told_by(app)
        ]

    def under(self, keys: Collection[str]) -> list[Performed]:
        """What was carried out under one of these keys, now. Raises CannotJudge."""
        found = [_of_entry(entry) for key in keys for entry in self._entries(key=key)]
        told = [one for app in self._hooks for one in self._told_by(app) if one.key in keys]
        return found + told

    def observable(self, seen: Collection[str] = ()) -> set[str]:
        """Names of the effects' tools that some ledger tells about.

        Those of the samples, which the sandbox carries out; those of an app with a ledger; and those in `seen`, under whose keys
        a ledger holds something.
        """
        of_ledgers = ("agentops.demo", *self._hooks)
        return set(seen) | {
            tool.name
            for tool in registry.tools()
            if tool.effect
            and any(
                tool.fn.__module__ == app or tool.fn.__module__.startswith(f"{app}.") for app in of_ledgers
            )
        }

    def faults(self) -> Counter[str]:
        """The faults of providers and of their webhooks, by kind, one for each request that suffered it."""
        counts: Counter[str] = Counter()
        for request in self._asked(self._sandbox.requests):
            for name in str(request["faults"]).split(", "):
                if name not in ("", "none"):
                    counts[name if name.startswith("webhook") else f"provider_{name}"] += 1
        return counts

    def webhooks_pending(self) -> int:
        """How many webhooks have not been taken yet."""
        return self._asked(self._sandbox.summary).webhooks_pending

    def _entries(self, **equal: str) -> list[Entry]:
        return self._asked(lambda: self._sandbox.entries(**equal))

    def _asked[T](self, question: Callable[[], T]) -> T:
        try:
            return question()
        except httpx.HTTPError as error:
            raise CannotJudge(f"The sandbox's ledger does not answer: {error}") from error

    def _told_by(self, app: str) -> list[Performed]:
        try:
            told = list(self._hooks[app]())
        except Exception as error:
            raise CannotJudge(f"{app}.chaos.{HOOK} failed: {type(error).__name__}: {error}") from error
        return [
            one if isinstance(one, Performed) else Performed(str(one), what=f"{app}: {one}") for one in told
        ]


def _hook_of(app: str) -> Callable[[], Iterable[str | Performed]] | None:
    name = f"{app}.chaos"
    if importlib.util.find_spec(name) is None:
        return None
    hook: Callable[[], Iterable[str | Performed]] | None = getattr(importlib.import_module(name), HOOK, None)
    return hook


def _of_entry(entry: Entry) -> Performed:
    run = (
        entry.business_key.removeprefix("run:").partition("/")[0]
        if entry.business_key.startswith("run:")
        else ""
    )
    return Performed(
        key=entry.key or "",
        reference=entry.reference or "",
        result=entry.answer,
        what=f"{entry.kind} no. {entry.no} at {entry.at}",
        run_id=run,
    )


def by_key(performed: Iterable[Performed]) -> dict[str, list[Performed]]:
    found: dict[str, list[Performed]] = defaultdict(list)
    for one in performed:
        found[one.key].append(one)
    return found
