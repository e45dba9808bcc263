"""Operations of migrations that change large tables while workers are at work.

A migration with them is not atomic: what one of them has done stays when a later one fails or the migrator is killed. So each
looks first what is there, and the same migration can simply be run again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddConstraint
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import UniqueConstraint


class AddIndexOnline(AddIndexConcurrently):
    """CREATE INDEX CONCURRENTLY: it waits for running transactions and blocks none."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        with _patience(schema_editor):
            if schema_editor.collect_sql or not _is_there(schema_editor, self.index.name):
                super().database_forwards(app_label, schema_editor, from_state, to_state)


class RemoveIndexOnline(RemoveIndexConcurrently):
    """DROP INDEX CONCURRENTLY IF EXISTS."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        with _patience(schema_editor):
            super().database_forwards(app_label, schema_editor, from_state, to_state)


class AddUniqueOnline(AddConstraint):
    """A unique constraint with a condition, which is an index to PostgreSQL, built like one."""

    atomic = False

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        assert isinstance(self.constraint, UniqueConstraint), "others have no index of their own"
        assert self.constraint.condition is not None, "without one, PostgreSQL makes a constraint of it"
        model = to_state.apps.get_model(app_label, self.model_name)
        statement = str(self.constraint.create_sql(model, schema_editor))
        online = statement.replace("CREATE UNIQUE INDEX", "CREATE UNIQUE INDEX CONCURRENTLY", 1)
        with _patience(schema_editor):
            if schema_editor.collect_sql or not _is_there(schema_editor, self.constraint.name):
                schema_editor.execute(online, params=None)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        schema_editor.execute(_drop(schema_editor, self.constraint.name), params=None)


class AddStatisticsOnline(Operation):
    """CREATE STATISTICS over what PostgreSQL would else take as independent, and gather them; blocks no reader and no writer."""

    reversible = True

    def __init__(self, name: str, on: str, table: str, kinds: str = "") -> None:
        """`on`: columns or an expression; `kinds`: "mcv" for columns, nothing for an expression."""
        self.name, self.on, self.table, self.kinds = name, on, table, kinds

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Models know nothing of statistics."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        kinds = f" ({self.kinds})" if self.kinds else ""
        with _patience(schema_editor):
            schema_editor.execute(
                f"CREATE STATISTICS IF NOT EXISTS {self.name}{kinds} ON {self.on} FROM {self.table}",
                params=None,
            )
            schema_editor.execute(f"ANALYZE {self.table}", params=None)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        schema_editor.execute(f"DROP STATISTICS IF EXISTS {self.name}", params=None)

    def describe(self) -> str:
        return f"Statistics {self.name} on {self.table}"


#: What is built concurrently waits for transactions that were there before; nobody waits behind it, and to begin anew costs more.
PATIENCE = "60s"


@contextmanager
def _patience(schema_editor: BaseDatabaseSchemaEditor) -> Iterator[None]:
    """Wait for longer than `manage.py migrate` lets statements wait for locks that others need."""
    if schema_editor.collect_sql:
        yield
        return
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, false)", [PATIENCE]
        )
        before = cursor.fetchone()[0]
        try:
            yield
        finally:
            cursor.execute("SELECT set_config('lock_timeout', %s, false)", [before])


def _is_there(schema_editor: BaseDatabaseSchemaEditor, name: str) -> bool:
    """Whether the index is there and complete. One that was not finished helps nobody and is removed."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [name])
        row = cursor.fetchone()
    if row is not None and not row[0]:
        schema_editor.execute(_drop(schema_editor, name), params=None)
        return False
    return row is not None


def _drop(schema_editor: BaseDatabaseSchemaEditor, name: str) -> str:
    return f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(name)}"
