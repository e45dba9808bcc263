"""Large payloads, stored once by content."""

from django.db import models

from runs.clock import Now


class Blob(models.Model):
    """A payload too large for its row: canonical JSON, compressed; see `runs.blobs`."""

    sha256 = models.TextField(primary_key=True)
    body = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now(), help_text="When it was last written")

    class Meta:
        db_table = "runs_blob"

    def __str__(self) -> str:
        return self.sha256


class BlobUse(models.Model):
    """A run that has rows which point to a blob; deleted with the run."""

    pk = models.CompositePrimaryKey("run_id", "blob_id")
    run_id = models.UUIDField()
    blob = models.ForeignKey(Blob, on_delete=models.DO_NOTHING, db_column="sha256", db_index=False)

    class Meta:
        db_table = "runs_blob_use"
        indexes = [
            # Is a blob still used? Asked by the sweep of unused ones.
            models.Index(fields=["blob"], name="blob_use_by_blob")
        ]

    def __str__(self) -> str:
        return f"{self.blob_id} by run {self.run_id}"
