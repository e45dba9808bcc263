"""Group checkpoints: what the slots of a worker have to write goes into one statement while the one before is under way.

There is no timer and no thread of its own. Whoever finds nothing under way sends at once, whatever waits; whoever comes
meanwhile waits to be part of the next statement of its kind, which its first member sends. A lone run never waits.

A member that the answer does not name (another session had its run locked, or the fence refused it) goes on alone, with a
statement that waits and decides; so does each member of a batch that failed or whose answer was lost. So no run is held up,
or refused, for another's sake.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from runs.engine.statements import Fenced

log = structlog.get_logger(__name__)

#: Members of one statement at most.
MOST = 100
#: Statements under way at most, of any kind: with more of them each has fewer members, and all take longer.
UNDER_WAY = 2
#: Characters of parameters above which a member goes alone: others need not wait until a large payload is written.
LARGE = 64_000
#: Seconds that a member waits to be sent behind statements that do not return, before it sends another beside them.
PATIENCE = 0.25
#: The server's answer is that it did not do it: a value or a constraint of some member.
REFUSED = (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.NotSupportedError)

type Row = tuple[Any, ...]
type Send = Callable[[Fenced, list[str]], list[Row]]


class _Member:
    """A row that waits for its answer; `gate` opens when there is something to do for its thread."""

    __slots__ = ("answer", "done", "gate", "key", "leads", "row", "statement", "taken", "unsure")

    def __init__(self, statement: Fenced, key: Row, row: str) -> None:
        self.statement, self.key, self.row = statement, key, row
        self.answer: Row | None = None
        self.unsure = True
        self.taken = self.leads = self.done = False
        self.gate = threading.Lock()
        self.gate.acquire()

    def open(self) -> None:
        """The caller holds the lock of the batches: a gate may have been opened for another reason before."""
        if self.gate.locked():
            self.gate.release()


class Batches:
    """The fenced statements of this process."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: list[_Member] = []
        self._under_way = 0

    def write(self, statement: Fenced, parameters: Mapping[str, Any]) -> tuple[Row | None, bool]:
        """The member's row without its key, and whether it may have been applied although there is no row."""
        row = statement.row(parameters)
        if len(row) > LARGE:
            return None, False
        member = _Member(statement, statement.key_of(parameters), row)
        with self._lock:
            self._waiting.append(member)
            leads = self._under_way < UNDER_WAY
            self._under_way += leads
        while True:
            if leads:
                self._lead()
            if member.done and not member.leads:
                return member.answer, member.unsure
            if not member.done:
                member.gate.acquire(timeout=-1 if member.taken else PATIENCE)
            with self._lock:
                # The lead may have been handed to a member that has lost patience, or that another one took along: it goes on.
                leads, member.leads = member.leads, False
                if not (leads or member.taken):
                    self._under_way += 1
                    leads = True

    def _lead(self) -> None:
        """Send what has waited longest, with all of its kind, as one statement; hand the lead on, and tell each member."""
        rows: dict[Row, Row] = {}
        unsure = True
        with self._lock:
            members = self._next()
        try:
            if members:
                rows, unsure = self._answers(members)
        finally:
            # Also where this thread is ended here: nobody waits for ever for an answer that it does not bring.
            with self._lock:
                heir = next((member for member in self._waiting if not member.leads), None)
                if heir is not None and self._under_way <= UNDER_WAY:
                    heir.leads = True
                    heir.open()
                else:
                    self._under_way -= 1
                for member in members:
                    member.answer, member.unsure = rows.get(member.key), unsure
                    member.done = True
                    member.open()

    def _next(self) -> list[_Member]:
        if not self._waiting:
            return []  # whoever has lost patience has taken them along
        statement = self._waiting[0].statement
        members = [member for member in self._waiting if member.statement is statement][:MOST]
        for member in members:
            member.taken = True
        self._waiting = [member for member in self._waiting if not member.taken]
        return members

    def _answers(self, members: list[_Member]) -> tuple[dict[Row, Row], bool]:
        statement = members[0].statement
        try:
            rows = self._send(statement, [member.row for member in members])
        except REFUSED as error:
            # Nothing of it was written. Whose fault it was turns out when each goes alone.
            log.warning("batch.refused", members=len(members), error=str(error))
            return {}, False
        except (psycopg.Error, PoolTimeout) as error:
            log.warning("batch.unsure", members=len(members), error=str(error))
            return {}, True
        except Exception:
            # Whatever it was, it is not the others' fault, nor the one's who happened to send: each finds out alone.
            log.exception("batch.failed", members=len(members))
            return {}, True
        keys = len(statement.key)
        return {row[:keys]: row[keys:] for row in rows}, False
