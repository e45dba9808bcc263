"""JSON columns: one that is never NULL, and those of payloads, which may be large."""

import uuid
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from runs import blobs


class _PlainInMigrations(models.JSONField):
    def deconstruct(self) -> Any:
        """As the plain field: the column is the same, and migrations need not know."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class RequiredJSONField(_PlainInMigrations):
    """Stores Python's None as JSON's `null`, which is a value that people and providers send; Django would store SQL's NULL."""

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        if value is None:
            return self.get_db_prep_value(value, connection)
        return super().get_db_prep_save(value, connection)


class PayloadField(_PlainInMigrations):
    """A display value of a run: a large one goes to `runs_blob`, in the transaction that writes the row.

    The instance keeps the value; read from the database it is what the row holds, see `runs.redaction.true_value` and
    `blobs.whole`. Not for `QuerySet.update`, which does not come through here.
    """

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        value = super().pre_save(model_instance, add)
        run_id = _owner(model_instance)
        if run_id is None or value is None or hasattr(value, "resolve_expression"):
            return value
        return blobs.spilled(value, run_id)


class RequiredPayloadField(PayloadField, RequiredJSONField):
    """Both."""


def _owner(row: models.Model) -> uuid.UUID | None:
    """The run that a payload belongs to; None for a signal that no run has taken yet, whose payload stays in its row.

    So does the answer of an approval: lists read the verdict in it.
    """
    if row._meta.model_name == "run":
        run: uuid.UUID = row.pk
        return run
    if getattr(row, "kind", "") == "approval":
        return None
    owner: uuid.UUID | None = getattr(row, "run_id", None)
    return owner
