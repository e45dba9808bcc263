"""What the project itself keeps in the database, apart from runs and approvals."""

from django.conf import settings
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


class SavedView(models.Model):
    """Filters of a list under a name that one person has given them."""

    id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    page = models.TextField(help_text="Name of the list's URL")
    name = models.TextField()
    query = models.TextField(help_text="Without “?”, on the first page")

    class Meta:
        db_table = "agentops_saved_view"
        default_permissions = ()
        constraints = [
            # Also reads the views of a person on one page, by name.
            models.UniqueConstraint(fields=["user", "page", "name"], name="saved_view_once"),
        ]

    def __str__(self) -> str:
        return self.name
