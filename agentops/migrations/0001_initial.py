from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    # Not for the tables: counting uses the SQL function agentops_now().
    dependencies = [("runs", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Guess",
            fields=[
                (
                    "key",
                    models.TextField(
                        help_text="Keyed hash of what is counted, such as an address",
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("count", models.PositiveIntegerField()),
                ("until", models.DateTimeField()),
            ],
            options={
                "db_table": "agentops_guess",
                "indexes": [models.Index(fields=["until"], name="guess_until")],
            },
        ),
    ]
