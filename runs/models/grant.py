"""Capabilities that a person or a group has for a part of the runs."""

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import Q

from runs.clock import Now

from .run import new_id


class Grant(models.Model):
    """One capability, for everything, one workflow or one subject tag. It adds to the permissions of Django's groups.

    What a capability contains: `runs.access.CAPABILITIES`. Rows are never changed; taking one away deletes it, and the
    history of administration keeps both.
    """

    class Capability(models.TextChoices):
        VIEW = "view", "View"
        PAYLOADS = "payloads", "View payloads"
        APPROVE = "approve", "Approve"
        OPERATE = "operate", "Operate"
        ADMINISTER = "administer", "Administer"

    class Scope(models.TextChoices):
        EVERYTHING = "everything", "Everything"
        WORKFLOW = "workflow", "One workflow"
        SUBJECT = "subject", "Subjects that begin with"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="grants"
    )
    group = models.ForeignKey(Group, null=True, blank=True, on_delete=models.CASCADE, related_name="grants")
    capability = models.TextField(choices=Capability)
    scope = models.TextField(choices=Scope, default=Scope.EVERYTHING)
    name = models.TextField(
        blank=True,
        default="",
        help_text="The workflow, or what the subject begins with, upper and lower case told apart",
    )
    granted_at = models.DateTimeField(db_default=Now())
    granted_by = models.TextField()

    class Meta:
        db_table = "runs_grant"
        permissions = [
            ("manage_people", "Can change what people may do, and switch them off"),
            ("export_audit", "Can take the history of administration out of the console"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, group__isnull=True)
                | Q(user__isnull=True, group__isnull=False),
                name="grant_user_or_group",
            ),
            models.CheckConstraint(
                condition=Q(capability__in=["view", "payloads", "approve", "operate", "administer"]),
                name="grant_capability_known",
            ),
            models.CheckConstraint(
                condition=Q(scope="everything", name="")
                | (Q(scope__in=["workflow", "subject"]) & ~Q(name="")),
                name="grant_scope_has_name",
            ),
            # Also reads what a person or a group was granted.
            models.UniqueConstraint(
                fields=["user", "capability", "scope", "name"],
                condition=Q(user__isnull=False),
                name="grant_user_once",
            ),
            models.UniqueConstraint(
                fields=["group", "capability", "scope", "name"],
                condition=Q(group__isnull=False),
                name="grant_group_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_capability_display()}: {self.reach}"

    @property
    def reach(self) -> str:
        """What it reaches, in words."""
        match self.scope:
            case self.Scope.WORKFLOW:
                return f"workflow {self.name}"
            case self.Scope.SUBJECT:
                return f"subjects that begin with “{self.name}”"
        return "everything"
