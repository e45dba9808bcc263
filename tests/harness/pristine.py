"""A database as migrations left it, and the quickest way back to it after a test has committed.

Emptying the few tables that a test has filled takes a tenth of the time that a copy of the database takes. A copy is still made
where more than rows has changed, such as a trigger that the test has added.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from tests.harness.server import Databases

#: Catalogs whose rows of our own (from this object on) change with the schema, by the column that says whose they are;
#: statistics, which change plans, are among them.
OURS = 16_384
CATALOGS = {
    "pg_attrdef": "adrelid",
    "pg_attribute": "attrelid",
    "pg_constraint": "oid",
    "pg_enum": "oid",
    "pg_event_trigger": "oid",
    "pg_extension": "oid",
    "pg_index": "indexrelid",
    "pg_largeobject_metadata": "oid",
    "pg_namespace": "oid",
    "pg_policy": "oid",
    "pg_proc": "oid",
    "pg_publication": "oid",
    "pg_rewrite": "ev_class",
    "pg_sequence": "seqrelid",
    "pg_statistic": "starelid",
    "pg_statistic_ext": "oid",
    "pg_trigger": "oid",
    "pg_type": "oid",
}
# Who inserted a row tells whether it has changed since: each later change has a higher number, and what is deleted is missing.
SHAPE = "\nUNION ALL ".join(
    f"SELECT '{name}', count(*), max(xmin::text::bigint)::text FROM {name} WHERE {column} >= {OURS}"
    for name, column in CATALOGS.items()
)
# Emptying a table changes its row here, in other columns than these.
SHAPE += f"""
UNION ALL SELECT 'pg_class', count(*), md5(string_agg(
    (oid, relname, relnamespace, relkind, relowner, relacl, reloptions, relpersistence, relrowsecurity, relchecks)::text,
    ',' ORDER BY oid
)) FROM pg_class WHERE oid >= {OURS}
UNION ALL SELECT 'pg_db_role_setting', count(*), string_agg((setrole, setconfig)::text, ',' ORDER BY setrole)
    FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION ALL SELECT 'pg_database', count(*), min((datacl, datconnlimit)::text)
    FROM pg_database WHERE datname = current_database()
"""
SIZES = f"""
SELECT oid, format('%I.%I', relnamespace::regnamespace::text, relname), pg_relation_size(oid) FROM pg_class
WHERE relkind = 'r' AND oid >= {OURS} AND relpersistence <> 't' ORDER BY oid
"""
REFERENCES = "SELECT confrelid, conrelid FROM pg_constraint WHERE contype = 'f'"
SEQUENCES = """
SELECT format('%I.%I', schemaname, sequencename), coalesce(last_value, start_value), last_value IS NOT NULL
FROM pg_sequences
"""

type Shape = list[tuple[str, int, str | None]]


class Pristine:
    """Keeps a copy of a database, and what is needed to tell and to undo what has changed in the original since."""

    #: Emptied so many times, tables leave enough of themselves in the catalogs that a copy is due.
    MOST = 50

    def __init__(self, databases: Databases, name: str, url: str) -> None:
        """`url`: that of the database `name`, for its owner."""
        self.name, self.copy_name = name, f"{name}_pristine"
        self._databases, self._url = databases, url
        self._emptied = 0
        with self._session() as session:
            row = session.execute("SHOW is_superuser").fetchone()
            #: Nobody else may empty tables that take no deletion.
            self.is_superuser = row == ("on",)
            self._shape = self._shape_of(session)
            self._tables = {oid: name for oid, name, _ in session.execute(SIZES)}
            self._sizes = {oid: size for oid, _, size in session.execute(SIZES)}
            self._rows = {oid: self._read(session, oid) for oid, size in self._sizes.items() if size}
            self._sequences = set(session.execute(SEQUENCES).fetchall())
            self._references = session.execute(REFERENCES).fetchall()
        databases.copy(name, self.copy_name)

    def restore(self) -> None:
        """Put the database back. Sessions of left-over processes are ended."""
        if not self._undone():
            self._databases.copy(self.copy_name, self.name)
            self._emptied = 0

    def close(self) -> None:
        """Drop the copy, and leave no session behind that would keep the original from being dropped."""
        self._databases.drop(self.copy_name)
        self._databases.end_sessions(self.name)

    def _undone(self) -> bool:
        """Whether all that has changed was rows, which are as they were now."""
        if not self.is_superuser or self._emptied >= self.MOST:
            return False
        with self._session() as session:
            # Not waited for: what they hold is free by the time that a table is ours.
            session.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            if self._shape_of(session) != self._shape:
                return False
            changed = self._with_those_that_refer_to_them(self._changed(session))
            # Triggers that keep rows from being deleted stand still for this role.
            session.execute("SET LOCAL session_replication_role = replica")
            if changed:
                self._emptied += 1
                session.execute(
                    sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(map(self._table, sorted(changed))))
                )
            for oid in changed & self._rows.keys():
                with session.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(self._table(oid))) as copy:
                    copy.write(self._rows[oid])
            for moved in set(session.execute(SEQUENCES).fetchall()) - self._sequences:
                found = next(was for was in self._sequences if was[0] == moved[0])
                session.execute("SELECT setval(%s::regclass, %s, %s)", found)
        return True

    def _changed(self, session: psycopg.Connection) -> set[int]:
        """Tables that were empty and have grown, and those whose rows are others."""
        return {
            oid
            for oid, _, size in session.execute(SIZES).fetchall()
            if (self._read(session, oid) != self._rows[oid] if oid in self._rows else size)
        }

    def _with_those_that_refer_to_them(self, tables: set[int]) -> set[int]:
        """PostgreSQL empties them together only."""
        while more := {by for to, by in self._references if to in tables} - tables:
            tables = tables | more
        return tables

    def _read(self, session: psycopg.Connection, oid: int) -> bytes:
        with session.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(self._table(oid))) as copy:
            return b"".join(copy)

    def _table(self, oid: int) -> sql.SQL:
        return sql.SQL(self._tables[oid])  # quoted by the server

    @contextmanager
    def _session(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self._url, prepare_threshold=None) as session:
            session.execute("SET LOCAL lock_timeout = '20s'")
            yield session

    @staticmethod
    def _shape_of(session: psycopg.Connection) -> Shape:
        return session.execute(SHAPE).fetchall()
