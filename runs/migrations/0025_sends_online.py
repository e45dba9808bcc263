"""What people did to one run, for its timeline: an index built while everything goes on."""

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

    dependencies = [("runs", "0024_sends")]

    operations = [
        AddIndexOnline(
            "event", models.Index(fields=["run_id", "seq"], condition=ACTED, name="event_acted_on_run")
        ),
    ]
