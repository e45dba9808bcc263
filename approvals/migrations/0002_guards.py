"""Votes and versions are append-only in the database, too."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("approvals", "0001_initial"), ("runs", "0002_guards")]

    operations = [
        migrations.RunSQL(
            """
            CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON approvals_vote
                FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
            CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON approvals_version
                FOR EACH ROW EXECUTE FUNCTION agentops_append_only();
            """,
            "DROP TRIGGER append_only ON approvals_vote; DROP TRIGGER append_only ON approvals_version",
        )
    ]
