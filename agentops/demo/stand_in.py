"""What decides in `refund_request` while no model is configured: a few rules that say of themselves that they are some."""

import json
import re
from decimal import Decimal
from typing import Any

from runs import models_provider

NAME = "rules:refund"
_SAYS_SO = "Decided by a rule-based stand-in, because no model is configured: "
_AMOUNT = re.compile(
    r"(?:€|EUR)\s*(\d+(?:[.,]\d{1,2})?)|(\d+(?:[.,]\d{1,2})?)\s*(?:€|EUR|euros?)", re.IGNORECASE
)
_LOST = re.compile(r"never (?:arrived|came)|(?:not|n't) (?:arrived|received)|\blost\b", re.IGNORECASE)
_BROKEN = re.compile(r"broken|damaged|defect|faulty|cracked|wrong", re.IGNORECASE)


def decide(request: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Answer like a model: text that is the plan as JSON. Reads the last message, which holds the case as JSON."""
    case = json.loads(request["messages"][-1]["content"])
    message, order = str(case["message"]), case["order"]
    named = _AMOUNT.search(message)
    full = Decimal(order["amount"])
    wanted = Decimal((named[1] or named[2]).replace(",", ".")) if named else full
    plan: dict[str, Any] = {"refund": True, "amount": str(min(wanted, full)), "return_label": False}
    if _BROKEN.search(message):
        plan |= {
            "reason": "the goods arrived broken or were the wrong ones; they are to come back.",
            "return_label": True,
        }
    elif _LOST.search(message) or order["status"] == "lost_in_transit":
        plan |= {"reason": "the parcel was lost on its way."}
    else:
        plan |= {"refund": False, "amount": "0", "reason": "the message names no loss and no damage."}
    plan["reason"] = _SAYS_SO + plan["reason"]
    return {"text": json.dumps(plan), "usage": {}}


models_provider.register(NAME, decide)
