"""Tables of the execution engine. `docs/schema.md` lists each with its constraints and the query each index is for."""

from .audit import AuditEvent, Event
from .blob import Blob, BlobUse
from .conversation import LogLine, Message
from .operation import Operation
from .policy import Policy
from .run import Attempt, Clock, Run, StartKey
from .signal import Signal
from .worker import Worker

__all__ = [
    "Attempt",
    "AuditEvent",
    "Blob",
    "BlobUse",
    "Clock",
    "Event",
    "LogLine",
    "Message",
    "Operation",
    "Policy",
    "Run",
    "Signal",
    "StartKey",
    "Worker",
]
