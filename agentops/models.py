"""What the project itself keeps in the database, apart from runs and approvals."""

from django.db import models


class Guess(models.Model):
    """Failed sign-ins under one key until a moment; counted by `agentops.guesses` alone, shared by all web processes."""

    key = models.TextField(primary_key=True, help_text="Keyed hash of what is counted, such as an address")
    count = models.PositiveIntegerField()
    until = models.DateTimeField()

    class Meta:
        db_table = "agentops_guess"
        # Removing what is over.
        indexes = [models.Index(fields=["until"], name="guess_until")]

    def __str__(self) -> str:
        return f"{self.count} until {self.until}"
