"""Search of runs: which of them a text finds, looked up in indexes and never by reading all runs.

A run is found by the beginning of its id, of its subject or of its start key; by the end of its subject ("1042" finds
"order 1042"); by the name of its workflow; and by any part of its reason, which is looked for in the newest runs that failed or
need attention.
Upper and lower case are the same. A `%` or `_` stands for itself.
"""

import uuid
from typing import Any

from django.db import connection

from runs import access

#: Runs that one way of searching finds; somebody who finds more types more.
LIMIT = 300
#: Newest failed runs, and as many that need attention, whose reason is looked at.
REASONS = 2000

# Each way by itself: in one condition with OR, sorted and cut, PostgreSQL would walk through all runs in the hope of an early
# hit. The expressions are those of the indexes run_subject_begins, run_subject_ends and run_start_key. The newest runs are chosen
# by their ids alone, in run_by_status: with their reasons beside them, all runs would be read backwards until enough had failed.
_WAYS = """
(SELECT id FROM runs_run WHERE subject <> '' AND lower(subject) LIKE lower(%(begins)s){seen} LIMIT %(limit)s)
UNION
(SELECT id FROM runs_run WHERE subject <> '' AND reverse(lower(subject)) LIKE lower(%(ends)s){seen} LIMIT %(limit)s)
UNION
(SELECT id FROM runs_run WHERE start_key IS NOT NULL AND lower(start_key) LIKE lower(%(begins)s){seen} LIMIT %(limit)s)
UNION
(SELECT id FROM runs_run WHERE workflow = %(text)s{seen} ORDER BY id DESC LIMIT %(limit)s)
UNION
(SELECT id FROM runs_run WHERE id IN (
    (SELECT id FROM runs_run WHERE status = 'failed'{read} ORDER BY id DESC LIMIT %(reasons)s)
    UNION ALL
    (SELECT id FROM runs_run WHERE status = 'attention'{read} ORDER BY id DESC LIMIT %(reasons)s)
) AND reason ILIKE %(holds)s LIMIT %(limit)s)
"""
_BY_ID = """
UNION
(SELECT id FROM runs_run WHERE id BETWEEN %(first)s AND %(last)s{seen} ORDER BY id DESC LIMIT %(limit)s)
"""


def matching(text: str, user: access.Person | None = None) -> list[uuid.UUID]:
    """Ids of the runs that `text` finds, at most LIMIT by each way. One query.

    With a user: of those that this person may see, and by their reason those alone whose content the person may see. Else
    what is found would tell what is hidden, and what others may see would use up the LIMIT.
    """
    literal = text.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    backwards = text[::-1].replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    parameters: dict[str, Any] = {
        "text": text,
        "begins": f"{literal}%",
        "ends": f"{backwards}%",
        "holds": f"%{literal}%",
        "limit": LIMIT,
        "reasons": REASONS,
    }
    query, conditions = _WAYS, {"seen": "", "read": ""}
    if user is not None:
        conditions["seen"] = access.narrowing(user, "runs.view_run", "id", parameters)
        conditions["read"] = access.narrowing(user, "runs.view_payload", "id", parameters)
    digits = text.replace("-", "").lower()
    if digits and len(digits) <= 32 and set(digits) <= set("0123456789abcdef"):
        query += _BY_ID
        parameters |= {"first": uuid.UUID(digits.ljust(32, "0")), "last": uuid.UUID(digits.ljust(32, "f"))}
    with connection.cursor() as cursor:
        cursor.execute(query.format(**conditions), parameters)
        return [run_id for (run_id,) in cursor.fetchall()]
