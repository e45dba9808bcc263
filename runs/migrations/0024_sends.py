"""What is known of each send of an effect, also of those before the last. A column that may be NULL: the table is not rewritten."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0023_audit_online")]

    operations = [
        migrations.AddField(
            "operation",
            "earlier_sends",
            models.JSONField(
                help_text="Sends of an effect before the one that the columns tell of, oldest first; NULL: there were none",
                null=True,
            ),
        ),
    ]
