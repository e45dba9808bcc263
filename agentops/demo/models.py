from typing import ClassVar

from django.db import models

from runs import clock


class SyncedPage(models.Model):
    """One page of the provider's price list, as a run of `nightly_sync` read it."""

    run_id = models.UUIDField(
        help_text="The run that wrote it; a label, so that retention may delete the run."
    )
    number = models.PositiveIntegerField(help_text="Counts from 1 within the run.")
    items = models.JSONField()
    synced_at = models.DateTimeField(default=clock.now)

    objects: ClassVar[models.Manager["SyncedPage"]] = models.Manager()

    class Meta:
        constraints = [
            # A second execution of the step would collide here instead of passing unseen.
            models.UniqueConstraint(fields=["run_id", "number"], name="demo_page_once_per_run")
        ]

    def __str__(self) -> str:
        return f"page {self.number} of run {self.run_id}"
