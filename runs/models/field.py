"""A JSON column that is never NULL."""

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


class RequiredJSONField(models.JSONField):
    """Stores Python's None as JSON's `null`, which is a value that people and providers send; Django would store SQL's NULL."""

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        if value is None:
            return self.get_db_prep_value(value, connection)
        return super().get_db_prep_save(value, connection)

    def deconstruct(self) -> Any:
        """As the plain field: the column is the same, and migrations need not know."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs
