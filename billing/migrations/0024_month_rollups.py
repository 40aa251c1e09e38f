"""Months of organizations, made from the days that are rolled up already.

A worker of the version before this one adds nothing to them: start the new one at once, then let
`manage.py rebuild_rollups` make the days on which both ran.
"""

from django.db import migrations, models

# With the lock under which rollups are written, so that none comes between.
FILL = """
SELECT pg_advisory_xact_lock(1919904876);
INSERT INTO billing_month_rollup (start, organization_id, requests, prompt_tokens, cached_tokens, completion_tokens,
                                  reasoning_tokens, cost_nano)
SELECT date_trunc('month', start, 'UTC'), organization_id, SUM(requests), SUM(prompt_tokens), SUM(cached_tokens),
       SUM(completion_tokens), SUM(reasoning_tokens), SUM(cost_nano)
  FROM billing_service_rollup WHERE grain_s = 86400 AND organization_id <> 0 GROUP BY 1, 2 ORDER BY 1, 2;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0023_rollups_by_key")]

    operations = [
        migrations.CreateModel(
            name="MonthRollup",
            fields=[
                ("requests", models.BigIntegerField(default=0)),
                ("prompt_tokens", models.BigIntegerField(default=0)),
                ("cached_tokens", models.BigIntegerField(default=0)),
                ("completion_tokens", models.BigIntegerField(default=0)),
                ("reasoning_tokens", models.BigIntegerField(default=0)),
                ("cost_nano", models.BigIntegerField(default=0)),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "start", "organization_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("start", models.DateTimeField()),
                ("organization_id", models.BigIntegerField()),
            ],
            options={"db_table": "billing_month_rollup"},
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
