"""What the outside world remembers: one SQLite file, written durably before any answer leaves.

Tables: `requests` (every request to the world, also those that failed on purpose), `entries` (what happened:
refunds, charges, tickets, grants, mails), `deliveries` (webhooks, sent until answered), `rates` and `script`
(planned misbehaviour) and `settings`. All of it survives `kill -9` of the sandbox.
"""

import fcntl
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from agentops.sandbox import faults
from agentops.sandbox.faults import Plan, Rates

_VERSION = 1
_SCHEMA = """
CREATE TABLE requests (
    no INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, endpoint TEXT NOT NULL, key TEXT,
    digest TEXT NOT NULL, faults TEXT NOT NULL
) STRICT;
CREATE TABLE entries (
    no INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, kind TEXT NOT NULL, key TEXT, order_id TEXT,
    reference TEXT, business_key TEXT NOT NULL, digest TEXT NOT NULL,
    request_no INTEGER NOT NULL REFERENCES requests, answer TEXT NOT NULL
) STRICT;
-- Look-ups by key, and the promise itself: an endpoint that honours keys acts once for each.
CREATE UNIQUE INDEX entries_once_per_key ON entries (kind, key)
    WHERE kind IN ('refund', 'access') AND key IS NOT NULL;
CREATE INDEX entries_by_order ON entries (order_id, kind);
CREATE INDEX entries_by_reference ON entries (reference, kind);
CREATE TABLE deliveries (
    no INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT NOT NULL, order_id TEXT, payload TEXT NOT NULL,
    due_at REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, delivered_at TEXT, last_outcome TEXT
) STRICT;
CREATE INDEX deliveries_due ON deliveries (due_at) WHERE delivered_at IS NULL;
CREATE TABLE rates (endpoint TEXT PRIMARY KEY, chances TEXT NOT NULL, seed INTEGER NOT NULL) STRICT;
CREATE TABLE script (
    no INTEGER PRIMARY KEY AUTOINCREMENT, endpoint TEXT NOT NULL, faults TEXT NOT NULL
) STRICT;
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
"""
_FLAKY_PROVIDER = Rates("GET /pages", {"503": 0.2, "429": 0.1}, seed=0)
"""`GET /pages` is flaky from the start, until somebody posts other rates for it."""

COLUMNS = {
    "entries": {"kind", "key", "order_id", "reference", "business_key"},
    "requests": {"endpoint", "key"},
    "deliveries": {"order_id", "message_id"},
}
"""By which columns each table may be asked."""

type Row = dict[str, Any]


class LedgerUnusable(Exception):
    """The ledger cannot be opened; the message says what to do."""


class LedgerClosed(Exception):
    """The sandbox is stopping: nothing more is written, and no answer may be sent."""


def _why_not(folder: Path, error: sqlite3.Error) -> str:
    return f"The ledger in {folder} cannot be used ({error}): choose another folder with --data."


@dataclass(frozen=True)
class Delivery:
    """One webhook that is due. `payload` is the exact body; times are Unix seconds."""

    no: int
    message_id: str
    payload: str
    attempts: int


def digest(value: object) -> str:
    """SHA-256 (hex) of a JSON value, whatever the order of its keys; of bytes, as they are."""
    raw = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, default=str).encode()
    return hashlib.sha256(raw).hexdigest()


def now_text() -> str:
    """The time of an entry: ISO 8601, UTC, microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


class Ledger:
    """The open ledger. One connection behind one lock: callers of any thread write one after the other."""

    def __init__(self, folder: Path) -> None:
        """Open (or make) `folder/ledger.sqlite3`. Raises LedgerUnusable."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A lock the kernel drops with the process: after kill -9 the next sandbox may start at once.
            self._owner = (folder / "lock").open("w")
        except OSError as error:
            raise LedgerUnusable(
                f"The ledger cannot be written in {folder} ({error.strerror}): choose a folder with --data."
            ) from error
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._owner.close()
            raise LedgerUnusable(
                f"Another sandbox already uses {folder}: stop it, or choose another folder with --data."
            ) from error
        self.lock = threading.RLock()
        self._closed = False
        try:
            self._connection = sqlite3.connect(
                folder / "ledger.sqlite3", check_same_thread=False, isolation_level=None
            )
        except sqlite3.Error as error:
            self._owner.close()
            raise LedgerUnusable(_why_not(folder, error)) from error
        self._connection.row_factory = sqlite3.Row
        try:
            self._prepare(folder)
        except sqlite3.Error as error:
            self.close()
            raise LedgerUnusable(_why_not(folder, error)) from error
        except LedgerUnusable:
            self.close()
            raise

    def _prepare(self, folder: Path) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self.write() as tx:
            version: int = tx.execute("PRAGMA user_version").fetchone()[0]
            if version == _VERSION:
                return
            if version != 0:
                raise LedgerUnusable(
                    f"The ledger in {folder} is of another version ({version}): choose another with --data."
                )
            for statement in _SCHEMA.split(";\n"):
                tx.execute(statement)
            self.set_rates(tx, _FLAKY_PROVIDER)
            tx.execute(f"PRAGMA user_version = {_VERSION}")

    def close(self) -> None:
        """Close the file; later writers get LedgerClosed."""
        with self.lock:
            self._closed = True
            self._connection.close()
            self._owner.close()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One durable transaction: when the block is left, it is on disk; an exception leaves no trace."""
        with self.lock:
            if self._closed:
                raise LedgerClosed
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A failed COMMIT (disk full) may have rolled back by itself.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Read rows as dictionaries."""
        with self.lock:
            if self._closed:
                raise LedgerClosed
            return [dict(row) for row in self._connection.execute(sql, values)]

    # Requests and planned misbehaviour

    def admit(
        self, endpoint: str, key: str | None, body_digest: str, written_plan: str | None
    ) -> tuple[int, Plan]:
        """Number a request and decide its plan: what it asked for, else the script's next line, else chance.

        Raises UnknownFault if it asked for something that means nothing here.
        """
        asked = None if written_plan is None else faults.parse_for(endpoint, written_plan)
        with self.write() as tx:
            number = tx.execute(
                "INSERT INTO requests (at, endpoint, key, digest, faults) VALUES (?, ?, ?, ?, '')",
                (now_text(), endpoint, key, body_digest),
            ).lastrowid
            assert number is not None
            plan = self._next_in_script(tx, endpoint) if asked is None else asked
            if plan is None:
                plan = self._by_chance(tx, endpoint, number)
            tx.execute("UPDATE requests SET faults = ? WHERE no = ?", (faults.written(plan), number))
        return number, plan

    def _next_in_script(self, tx: sqlite3.Connection, endpoint: str) -> Plan | None:
        for name in faults.names_for(endpoint):
            row = tx.execute(
                "DELETE FROM script WHERE no = (SELECT min(no) FROM script WHERE endpoint = ?)"
                " RETURNING faults",
                (name,),
            ).fetchone()
            if row is not None:
                plan = faults.parse(row["faults"])
                return {fault: value for fault, value in plan.items() if fault in faults.applicable(endpoint)}
        return None

    def _by_chance(self, tx: sqlite3.Connection, endpoint: str, request_no: int) -> Plan:
        for name in faults.names_for(endpoint):
            row = tx.execute("SELECT * FROM rates WHERE endpoint = ?", (name,)).fetchone()
            if row is not None:
                return Rates(name, json.loads(row["chances"]), row["seed"]).draw(endpoint, request_no)
        return {}

    def set_rates(self, tx: sqlite3.Connection, rates: Rates) -> None:
        """Replace the random misbehaviour of one endpoint name."""
        tx.execute(
            "INSERT OR REPLACE INTO rates (endpoint, chances, seed) VALUES (?, ?, ?)",
            (rates.endpoint, json.dumps(rates.chances), rates.seed),
        )

    def add_to_script(self, tx: sqlite3.Connection, endpoint: str, plans: list[str]) -> None:
        """Append one-shot plans; each is used up by one request, in order."""
        tx.executemany(
            "INSERT INTO script (endpoint, faults) VALUES (?, ?)", [(endpoint, text) for text in plans]
        )

    # Entries

    def record(
        self,
        tx: sqlite3.Connection,
        kind: str,
        *,
        key: str | None,
        order_id: str | None,
        reference: str | None,
        business_key: str,
        body_digest: str,
        request_no: int,
        answer: Row,
    ) -> None:
        """Write down that something happened in the world."""
        tx.execute(
            "INSERT INTO entries"
            " (at, kind, key, order_id, reference, business_key, digest, request_no, answer)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                now_text(),
                kind,
                key,
                order_id,
                reference,
                business_key,
                body_digest,
                request_no,
                json.dumps(answer),
            ),
        )

    def entries(self, **equal: str) -> list[Row]:
        """Entries whose columns equal the given values, oldest first; `answer` is decoded."""
        return [row | {"answer": json.loads(row["answer"])} for row in self.select("entries", **equal)]

    def select(self, table: str, **equal: str) -> list[Row]:
        """Rows of a table whose columns equal the given values, oldest first. Raises KeyError for another column."""
        if unknown := equal.keys() - COLUMNS[table]:
            raise KeyError(*unknown)
        where = " AND ".join(f"{column} = ?" for column in equal) or "1"
        return self.rows(f"SELECT * FROM {table} WHERE {where} ORDER BY no", *equal.values())  # noqa: S608 (names of COLUMNS)

    def summary(self) -> Row:
        """Counts by kind, everything that happened more than once, and the state of webhooks."""
        kinds = self.rows("SELECT kind, count(*) AS times FROM entries GROUP BY kind ORDER BY kind")
        webhooks = self.rows(
            "SELECT count(delivered_at) AS delivered, count(*) - count(delivered_at) AS pending,"
            " coalesce(sum(attempts), 0) AS attempts FROM deliveries"
        )
        return {
            "requests": self.rows("SELECT count(*) AS n FROM requests")[0]["n"],
            "counts": {row["kind"]: row["times"] for row in kinds},
            "repeated": self._repeated("business_key"),
            "repeated_by_order": self._repeated("order_id"),
            "webhooks": webhooks[0],
        }

    def _repeated(self, column: Literal["business_key", "order_id"]) -> list[Row]:
        return self.rows(
            f"SELECT kind, {column}, count(*) AS times FROM entries WHERE {column} IS NOT NULL"  # noqa: S608
            f" GROUP BY kind, {column} HAVING count(*) > 1 ORDER BY kind, {column}"
        )

    def reset(self) -> None:
        """Forget everything that happened and was planned; settings stay. Numbers begin at 1 again."""
        with self.write() as tx:
            for forget in ("entries", "requests", "deliveries", "rates", "script"):
                tx.execute(f"DELETE FROM {forget}")  # noqa: S608
            # Numbers of deliveries go on: a sender may still be busy with an old one.
            tx.execute("DELETE FROM sqlite_sequence WHERE name <> 'deliveries'")
            self.set_rates(tx, _FLAKY_PROVIDER)

    # Settings

    def setting(self, name: str) -> str | None:
        """A setting that outlives the process."""
        rows = self.rows("SELECT value FROM settings WHERE name = ?", name)
        return rows[0]["value"] if rows else None

    def set_setting(self, name: str, value: str) -> None:
        with self.write() as tx:
            tx.execute("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", (name, value))

    # Webhooks

    def schedule_delivery(
        self, tx: sqlite3.Connection, message_id: str, order_id: str, payload: Row, due_at: float
    ) -> None:
        """Plan one delivery, in the transaction of the work that it reports. `due_at`: Unix seconds."""
        tx.execute(
            "INSERT INTO deliveries (message_id, order_id, payload, due_at) VALUES (?, ?, ?, ?)",
            (message_id, order_id, json.dumps(payload), due_at),
        )

    def next_delivery(self, besides: set[int]) -> tuple[Delivery, float] | None:
        """The earliest unanswered delivery apart from those being sent, and its due time (Unix seconds)."""
        rows = self.rows(
            "SELECT * FROM deliveries WHERE delivered_at IS NULL AND no NOT IN (SELECT value FROM json_each(?))"
            " ORDER BY due_at, no LIMIT 1",
            json.dumps(list(besides)),
        )
        for row in rows:
            return Delivery(row["no"], row["message_id"], row["payload"], row["attempts"]), row["due_at"]
        return None

    def untried(self, order_id: str) -> int:
        """How many deliveries about an order were never attempted."""
        rows = self.rows("SELECT count(*) AS n FROM deliveries WHERE order_id = ? AND attempts = 0", order_id)
        count: int = rows[0]["n"]
        return count

    def delivered(self, delivery: Delivery, outcome: str) -> None:
        with self.write() as tx:
            tx.execute(
                "UPDATE deliveries SET attempts = attempts + 1, delivered_at = ?, last_outcome = ?"
                " WHERE no = ?",
                (now_text(), outcome, delivery.no),
            )

    def not_delivered(self, delivery: Delivery, outcome: str, again_in_s: float) -> None:
        with self.write() as tx:
            tx.execute(
                "UPDATE deliveries SET attempts = attempts + 1, due_at = ?, last_outcome = ? WHERE no = ?",
                (time.time() + again_in_s, outcome, delivery.no),
            )
