"""What happens in a demo: a dozen runs at the first start, then one every few seconds, and a provider with bad days."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from agentops.sandbox.client import SandboxLedger
from approvals.models import Approval
from runs.lifecycle import Actor
from runs.models import Run
from runs.services import start
from runs.states import TERMINAL, Status

#: The trickle starts nothing that would add to one of these once there are so many.
MOST_OPEN_APPROVALS = 12
MOST_IN_DEAD_LETTER = 20
MOST_IN_ATTENTION = 3
MOST_UNFINISHED = 80


@dataclass(frozen=True)
class Sample:
    by: str
    workflow: str
    input: dict[str, Any]


def _refund(order_id: int, message: str, by: str = "sam") -> Sample:
    return Sample(by, "refund_request", {"order_id": str(order_id), "message": message})


def _report(ending: str) -> Sample:
    return Sample("sam", "flaky_report", {"ending": ending})


#: Orders above and below the limit for approvals are known: the sandbox invents them the same way each time.
DEAR = (1002, 1010, 1013, 1014, 1019, 1021, 1023, 1026, 1027, 1030, 1038, 1039, 1043, 1045, 1046, 1050)
CHEAP = (1004, 1005, 1020, 1033, 1035, 1037, 1044, 1051, 1055, 1057, 1058, 1062, 1063, 1067, 1069)

FIRST = (
    _refund(1004, "The coffee grinder arrived broken, its lid is cracked. Please refund it."),
    _refund(1002, "My parcel never arrived, and nobody answers the phone."),
    Sample("sam", "nightly_sync", {"pages": 10}),
    _refund(1014, "Half of it was damaged on the way. I would like 140 EUR back.", by="olivia"),
    Sample(
        "sam",
        "access_request",
        {
            "person": "grace",
            "resource": "billing",
            "role": "editor",
            "reason": "She closes the books this month.",
        },
    ),
    Sample("olivia", "order_audit", {"first": 1000, "orders": 24}),
    _report("bad_data"),
    _refund(1033, "I have changed my mind and like blue better."),
    _report("provider_down"),
    Sample(
        "olivia",
        "access_request",
        {
            "person": "hiro",
            "resource": "data warehouse",
            "reason": "Audit of the third quarter.",
            "for_days": 30,
        },
    ),
    _refund(1007, "The lamp is still not arrived. Where is it?"),
    _report("gives_up"),
    _report("refused"),
    _refund(1038, "You sent the wrong jacket, twice. I want my money back."),
)

_COMPLAINTS = (
    "It arrived broken. Please refund {amount} EUR.",
    "The wrong article was in the box. I would like {amount} euros back.",
    "My parcel never arrived.",
    "I have not received anything yet, please refund EUR {amount}.",
    "Damaged on the way, see the photos.",
    "Could you tell me how long the battery lasts?",
)
_PEOPLE = ("grace", "hiro", "inés", "jonas", "kemal", "linh")
_SYSTEMS = ("billing", "warehouse", "wiki", "payroll")


def start_first() -> int:
    """Start the first dozen, unless an earlier start of the demo has done so. Returns how many are new."""
    return sum(_start(sample, f"demo/first/{number}") for number, sample in enumerate(FIRST, start=1))


def start_one_more() -> None:
    """Start another run, as long as people keep up with them."""
    if Run.objects.exclude(status__in=TERMINAL).count() >= MOST_UNFINISHED:
        return
    sample = _draw()
    if _asks(sample) and Approval.objects.filter(state=Approval.State.OPEN).count() >= MOST_OPEN_APPROVALS:
        sample = _small_refund()
    if (
        sample.workflow == "flaky_report"
        and Run.objects.filter(status=Status.FAILED).count() >= MOST_IN_DEAD_LETTER
    ):
        sample = _report("works")
    _start(sample)


def _start(sample: Sample, key: str | None = None) -> bool:
    by = User.objects.get(username=sample.by)
    return start(Actor.of(by), sample.workflow, sample.input, start_key=key, reason="demo").created


def _asks(sample: Sample) -> bool:
    """Whether people will be asked to approve it."""
    given = sample.input
    return sample.workflow == "access_request" or int(given.get("order_id", 0)) in DEAR


def _draw() -> Sample:
    kind = random.choices(("small", "large", "access", "sync", "report"), (10, 4, 2, 1, 3))[0]
    if kind == "small":
        return _small_refund()
    if kind == "large":
        return _refund(random.choice(DEAR), _complaint(range(101, 150)), random.choice(("sam", "omar")))
    if kind == "access":
        return Sample(
            random.choice(("sam", "olivia")),
            "access_request",
            {
                "person": random.choice(_PEOPLE),
                "resource": random.choice(_SYSTEMS),
                "reason": "A new task.",
                "for_days": random.choice((0, 1, 30)),
            },
        )
    if kind == "sync":
        return Sample("sam", "nightly_sync", {"pages": random.randint(2, 10)})
    return _report(random.choice(("works", "works", "provider_down", "bad_data", "refused", "gives_up")))


def _small_refund() -> Sample:
    return _refund(random.choice(CHEAP), _complaint(range(5, 40)))


def _complaint(amounts: Iterable[int]) -> str:
    return random.choice(_COMPLAINTS).format(amount=random.choice(list(amounts)))


# --- bad days of the provider ------------------------------------------------------------------------------------------


def misbehave(sandbox: SandboxLedger) -> None:
    """What agents get over by themselves: errors before and after the work, dropped connections, doubled webhooks."""
    refunds = {"503": 0.06, "500_after": 0.04, "close_after": 0.04, "429:2": 0.04, "webhook_duplicate": 0.1}
    sandbox.fault_rates(refunds, endpoint="POST /refunds", seed=1)
    sandbox.fault_rates({"503": 0.05, "close_after": 0.05}, endpoint="POST /charges", seed=2)
    sandbox.fault_rates({"451": 0.08}, endpoint="SMTP", seed=3)


def cut_a_mail(sandbox: SandboxLedger) -> None:
    """Let the next mail be cut in mid-send, which only a person can settle; unless some wait for that already."""
    if Run.objects.filter(status=Status.ATTENTION).count() < MOST_IN_ATTENTION:
        sandbox.script("SMTP", "close_after")
