"""What a person shows for an answer."""

from django.db import models
from django.db.models import F, Func
from django.db.models.lookups import LessThanOrEqual

from runs.clock import Now

from .operation import Operation
from .run import new_id

#: Bytes of one file.
LARGEST = 1024 * 1024


class Evidence(models.Model):
    """A file that came with an answer whether an effect happened. Append-only; what it holds is hostile."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run_id = models.UUIDField()
    operation = models.ForeignKey(
        Operation, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="evidence"
    )
    name = models.TextField(help_text="As the file was called; never a path")
    sha256 = models.TextField()
    body = models.BinaryField()
    actor_id = models.BigIntegerField(null=True)
    actor = models.TextField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "runs_evidence"
        constraints = [
            models.CheckConstraint(
                condition=LessThanOrEqual(
                    Func(F("body"), function="octet_length", output_field=models.IntegerField()), LARGEST
                ),
                name="evidence_is_small",
            ),
        ]
        indexes = [
            # What was shown for the answers of a run; deleted with it.
            models.Index(fields=["run_id", "operation"], name="evidence_by_run")
        ]

    def __str__(self) -> str:
        return self.name
