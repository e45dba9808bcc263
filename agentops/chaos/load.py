"""The load: which runs are started when."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentops.chaos.plan import Start

#: Orders of the sandbox above the limit for approvals; any other is refunded without asking where the message names little.
DEAR = (1002, 1010, 1013, 1014, 1019, 1021, 1023, 1026, 1027, 1030, 1038, 1039, 1043, 1045, 1046, 1050)
SAMPLES = frozenset(
    {
        *("refund_request", "access_request", "nightly_sync", "flaky_report"),
        *("order_audit", "order_check", "refund_round"),
    }
)

_PEOPLE = ("grace", "hiro", "inés", "jonas", "kemal", "linh")
_SYSTEMS = ("billing", "warehouse", "wiki", "payroll")
_SMALL = (
    "It arrived broken. Please refund {amount} EUR.",
    "I have not received anything yet, please refund EUR {amount}.",
    "Could you tell me how long the battery lasts?",
)


@dataclass(frozen=True)
class Given:
    """A workflow that the user named, with the inputs that its runs take in turn."""

    workflow: str
    inputs: Sequence[Any]


def starts(seed: int, duration: float, per_second: float, given: Sequence[Given] = ()) -> list[Start]:
    """The runs of a trial: `per_second` of them, evenly, until `duration` is over; at least one."""
    dice = random.Random(f"{seed}/load")
    count = max(1, round(duration * per_second))
    return [
        Start(round(n / per_second, 3), n + 1, *(_in_turn(given, n) if given else _sample(dice)))
        for n in range(count)
    ]


def _in_turn(given: Sequence[Given], n: int) -> tuple[str, Any]:
    one = given[n % len(given)]
    return one.workflow, one.inputs[n // len(given) % len(one.inputs)]


def _small(dice: random.Random) -> dict[str, str]:
    """A complaint that is refunded without asking, or not at all."""
    message = dice.choice(_SMALL).format(amount=dice.randint(5, 40))
    return {"order_id": str(dice.randint(2000, 9999)), "message": message}


def _sample(dice: random.Random) -> tuple[str, Any]:
    kinds = ("small", "large", "access", "sync", "report", "round", "audit")
    kind = dice.choices(kinds, (46, 16, 16, 8, 8, 4, 2))[0]
    if kind == "small":
        return "refund_request", _small(dice)
    if kind == "large":
        message = f"Half of it was damaged on the way. I would like {dice.randint(101, 149)} EUR back."
        return "refund_request", {"order_id": str(dice.choice(DEAR)), "message": message}
    if kind == "round":
        return "refund_round", {"complaints": [_small(dice) for _ in range(dice.randint(2, 4))]}
    if kind == "audit":
        return "order_audit", {"first": dice.randint(1000, 1090), "orders": dice.randint(3, 8)}
    if kind == "access":
        person, resource = dice.choice(_PEOPLE), dice.choice(_SYSTEMS)
        return "access_request", {"person": person, "resource": resource, "reason": "A new task."}
    if kind == "sync":
        return "nightly_sync", {"pages": dice.randint(2, 4)}
    endings = ("works", "bad_data", "provider_down", "gives_up", "kills_its_process")
    return "flaky_report", {"ending": dice.choices(endings, (5, 2, 1, 1, 1))[0]}
