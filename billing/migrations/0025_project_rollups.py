"""Hours, days and weeks of projects, hours of end users and four weeks of keys.

All but the end users' hours are made from what is rolled up already; those are read from the records, some minutes for
each ten million. Of months whose records are gone there are no such hours: their end users are known by UTC's days.

A worker of the version before this one adds nothing to them: start the new one at once, then let
`manage.py rebuild_rollups` make the days on which both ran.
"""

from django.db import migrations, models

SUMS = "requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost_nano"
ADDED = ", ".join(f"SUM({name})" for name in SUMS.split(", "))

# With the lock under which rollups are written, so that none comes between. What is pending is added when it is taken.
FILL = f"""
SELECT pg_advisory_xact_lock(1919904876);
INSERT INTO billing_project_rollup (organization_id, grain_s, start, project_id, {SUMS})
SELECT organization_id, grain_s, start, project_id, {ADDED}
  FROM billing_usage_rollup WHERE grain_s IN (3600, 86400) GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4;
INSERT INTO billing_project_rollup (organization_id, grain_s, start, project_id, {SUMS})
SELECT organization_id, 604800, date_bin('7 days', start, '1970-01-01 00:00:00+00'), project_id, {ADDED}
  FROM billing_project_rollup WHERE grain_s = 86400 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4;
INSERT INTO billing_key_rollup (organization_id, grain_s, start, project_id, api_key_id, {SUMS})
SELECT organization_id, 2419200, date_bin('28 days', start, '1970-01-01 00:00:00+00'), project_id, api_key_id, {ADDED}
  FROM billing_key_rollup WHERE grain_s = 86400 GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5;
INSERT INTO billing_end_user_rollup (organization_id, grain_s, start, end_user, {SUMS})
SELECT organization_id, 3600, date_bin('1 hour', started_at, '1970-01-01 00:00:00+00'), end_user, {ADDED}
  FROM (
    SELECT record.organization_id, started_at, end_user, 1 AS requests, prompt_tokens, cached_tokens,
           completion_tokens, reasoning_tokens, cost_nano
      FROM billing_usage_record record
     WHERE status <> 'started' AND NOT EXISTS (
        SELECT 1 FROM billing_rollup_pending pending WHERE pending.record_id = record.request_id)
    UNION ALL
    SELECT adjustment.organization_id, record.started_at, record.end_user, 0, adjustment.prompt_tokens,
           adjustment.cached_tokens, adjustment.completion_tokens, adjustment.reasoning_tokens, adjustment.cost_nano
      FROM billing_usage_adjustment adjustment
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
     WHERE NOT EXISTS (
        SELECT 1 FROM billing_rollup_pending pending WHERE pending.adjustment_id = adjustment.id)
  ) facts GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0024_month_rollups")]

    operations = [
        migrations.CreateModel(
            name="ProjectRollup",
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
                        "organization_id",
                        "grain_s",
                        "start",
                        "project_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("organization_id", models.BigIntegerField()),
                ("grain_s", models.IntegerField()),
                ("start", models.DateTimeField()),
                ("project_id", models.BigIntegerField()),
            ],
            options={"db_table": "billing_project_rollup"},
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
        migrations.AddIndex(
            model_name="projectrollup",
            index=models.Index(
                fields=["grain_s", "start"],
                include=("organization_id", "completion_tokens"),
                name="billing_project_rollup_busiest",
            ),
        ),
        migrations.AddIndex(
            model_name="enduserrollup",
            index=models.Index(
                fields=["organization_id", "end_user", "grain_s", "start"], name="billing_end_user_rollup_user"
            ),
        ),
    ]
