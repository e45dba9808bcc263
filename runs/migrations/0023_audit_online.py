"""Indexes of the audit page, built while everything goes on."""

from django.db import migrations, models
from django.db.models import Q

from runs.online import AddIndexOnline

ACTED = (
    Q(("actor_id__isnull", False))
    | Q(("actor", "command line"))
    | Q(("kind__in", ["approval_decided", "approval_escalated", "approval_parked", "approval_reminded"]))
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs", "0022_delete_more")]

    operations = [
        AddIndexOnline("auditevent", models.Index(fields=["at", "id"], name="audit_by_time")),
        AddIndexOnline("auditevent", models.Index(fields=["actor", "at", "id"], name="audit_by_actor")),
        AddIndexOnline("auditevent", models.Index(fields=["kind", "at", "id"], name="audit_by_kind")),
        AddIndexOnline(
            "event", models.Index(fields=["at", "run_id", "seq"], condition=ACTED, name="event_acted")
        ),
        AddIndexOnline(
            "event",
            models.Index(fields=["actor", "at", "run_id", "seq"], condition=ACTED, name="event_acted_by"),
        ),
        AddIndexOnline(
            "event",
            models.Index(fields=["kind", "at", "run_id", "seq"], condition=ACTED, name="event_acted_kind"),
        ),
    ]
