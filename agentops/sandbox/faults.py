"""Misbehaviour by name: which faults exist, where each applies, and how a plan is written down.

A plan is a comma-separated list such as `latency:0.5, timeout_after` or `none`. The number after the colon is
seconds for latencies and time-outs, and the `Retry-After` of a 429.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    LATENCY = "latency"
    LATE = "late"
    ERROR_500 = "500"
    ERROR_503 = "503"
    ERROR_429 = "429"
    SMTP_451 = "451"
    TIMEOUT_BEFORE = "timeout_before"
    TIMEOUT_AFTER = "timeout_after"
    CLOSE_BEFORE = "close_before"
    CLOSE_AFTER = "close_after"
    ERROR_500_AFTER = "500_after"
    WEBHOOK_DUPLICATE = "webhook_duplicate"
    WEBHOOK_OUT_OF_ORDER = "webhook_out_of_order"
    WEBHOOK_EARLY = "webhook_early"


SMTP = "SMTP"
ENDPOINTS = frozenset(
    {
        "GET /orders",
        "POST /refunds",
        "GET /refunds",
        "POST /charges",
        "GET /charges",
        "POST /tickets",
        "POST /access",
        "GET /access",
        "GET /pages",
        SMTP,
    }
)
ANYWHERE = "*"

_DEFAULT_VALUE = {
    Fault.LATENCY: 1.0,
    Fault.LATE: 3.0,
    Fault.ERROR_429: 1.0,
    Fault.TIMEOUT_BEFORE: 60.0,
    Fault.TIMEOUT_AFTER: 60.0,
}
_HANGS = {Fault.LATENCY, Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.CLOSE_BEFORE, Fault.CLOSE_AFTER}
_HTTP = _HANGS | {Fault.LATE, Fault.ERROR_500, Fault.ERROR_503, Fault.ERROR_429, Fault.ERROR_500_AFTER}
_WEBHOOK = {Fault.WEBHOOK_DUPLICATE, Fault.WEBHOOK_OUT_OF_ORDER, Fault.WEBHOOK_EARLY}


class UnknownFault(ValueError):
    """A fault, an endpoint or a rate that the sandbox does not know; the message says which."""


type Plan = dict[Fault, float]
"""What one request suffers: fault → its number (0 where the fault takes none)."""


@dataclass(frozen=True)
class Rates:
    """Random misbehaviour of one endpoint: the chance of each fault per request, at most one at a time."""

    endpoint: str
    chances: dict[str, float]
    seed: int

    def draw(self, endpoint: str, request_no: int) -> Plan:
        """The plan of one request: depends on seed, endpoint and request number alone."""
        point = random.Random(f"{self.seed}/{endpoint}/{request_no}").random()
        for text, chance in self.chances.items():
            point -= chance
            if point < 0:
                return {fault: value for fault, value in parse(text).items() if fault in applicable(endpoint)}
        return {}


def applicable(endpoint: str) -> set[Fault]:
    """The faults that have a meaning at an endpoint."""
    if endpoint == SMTP:
        return _HANGS | {Fault.SMTP_451}
    if endpoint == "POST /refunds":
        return _HTTP | _WEBHOOK
    return _HTTP


def parse(text: str) -> Plan:
    """Read a written plan. Raises UnknownFault for a name or number that means nothing."""
    plan: Plan = {}
    for part in text.split(","):
        name, _, number = part.strip().partition(":")
        if name in ("", "none"):
            continue
        try:
            fault = Fault(name)
            value = float(number) if number else _DEFAULT_VALUE.get(fault, 0.0)
        except ValueError:
            raise UnknownFault(
                f"unknown fault {part.strip()!r}; known are none, {', '.join(Fault)}, some with :number"
            ) from None
        if not 0 <= value <= 3600 or (number and fault not in _DEFAULT_VALUE):
            raise UnknownFault(f"fault {fault} does not take the number {number!r}")
        plan[fault] = value
    return plan


def parse_for(endpoint: str, text: str) -> Plan:
    """Like `parse`, and refuses faults that have no meaning at the endpoint."""
    plan = parse(text)
    if foreign := plan.keys() - applicable(endpoint):
        raise UnknownFault(f"{', '.join(sorted(foreign))} has no meaning at {endpoint}")
    return plan


def check_endpoint(name: str) -> str:
    """The canonical name of an endpoint: "POST /refunds", "/refunds" (any method), "SMTP" or "*"."""
    if (
        name == ANYWHERE
        or name in ENDPOINTS
        or any(known.partition(" ")[2] == name for known in ENDPOINTS if " " in known)
    ):
        return name
    raise UnknownFault(
        f"unknown endpoint {name!r}; known are *, {', '.join(sorted(ENDPOINTS))}, or a path alone"
    )


def names_for(endpoint: str) -> list[str]:
    """The names under which rates or scripts of an endpoint may be filed, most specific first."""
    path = endpoint.partition(" ")[2]
    return [endpoint, path, ANYWHERE] if path else [endpoint, ANYWHERE]


def rates_from(settings: Mapping[str, object]) -> Rates:
    """Read `{"503": 0.1, "latency:2": 0.05, "endpoint": "POST /refunds", "seed": 7}`. Raises UnknownFault."""
    endpoint = check_endpoint(str(settings.get("endpoint", ANYWHERE)))
    seed = settings.get("seed", 0)
    if not isinstance(seed, int) or abs(seed) >= 2**63:
        raise UnknownFault("seed must be a whole number of at most 63 bits")
    chances: dict[str, float] = {}
    for text, chance in settings.items():
        if text in ("endpoint", "seed"):
            continue
        if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 <= chance <= 1:
            raise UnknownFault(f"the probability of {text} must be a number from 0 to 1")
        if endpoint in ENDPOINTS:
            parse_for(endpoint, text)
        else:
            parse(text)
        chances[text] = float(chance)
    if sum(chances.values()) > 1 + 1e-9:
        raise UnknownFault("the probabilities add up to more than 1")
    return Rates(endpoint, chances, seed)


def written(plan: Iterable[Fault]) -> str:
    """A plan as it stands in the ledger."""
    return ", ".join(sorted(plan)) or "none"
