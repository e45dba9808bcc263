"""Tables of the execution engine. `docs/schema.md` lists each with its constraints and the query each index is for."""

from .audit import AuditEvent, AuditHead, AuditLink, ChainCheck, Event
from .blob import Blob, BlobUse
from .bulk import Bulk, BulkItem
from .conversation import LogLine, Message
from .evidence import Evidence
from .failure import FailureGroup, FailureTally
from .grant import Grant
from .operation import Operation
from .policy import Limit, LimitedCall, Policy
from .run import Attempt, Clock, Run, StartKey
from .signal import Signal
from .worker import Activity, Worker

__all__ = [
    "Activity",
    "Attempt",
    "AuditEvent",
    "AuditHead",
    "AuditLink",
    "Blob",
    "BlobUse",
    "Bulk",
    "BulkItem",
    "ChainCheck",
    "Clock",
    "Event",
    "Evidence",
    "FailureGroup",
    "FailureTally",
    "Grant",
    "Limit",
    "LimitedCall",
    "LogLine",
    "Message",
    "Operation",
    "Policy",
    "Run",
    "Signal",
    "StartKey",
    "Worker",
]
