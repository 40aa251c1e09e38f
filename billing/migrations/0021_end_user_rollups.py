"""Days of end users alone, made from the records: a read of all of them, some minutes for each ten million.

A worker of the version before this one writes no rows of them: start the new one at once, then let
`manage.py rebuild_rollups` make the days on which both ran.
"""

from django.db import migrations, models

# With the lock under which rollups are written, so that none comes between. What is pending is added when it is taken;
# of months whose records are gone, nothing is left to tell the users by.
FILL = """
SELECT pg_advisory_xact_lock(1919904876);
INSERT INTO billing_end_user_rollup (organization_id, grain_s, start, end_user, requests, prompt_tokens, cached_tokens,
                                     completion_tokens, reasoning_tokens, cost_nano)
SELECT organization_id, 86400, date_trunc('day', started_at, 'UTC'), end_user, SUM(requests), SUM(prompt_tokens),
       SUM(cached_tokens), SUM(completion_tokens), SUM(reasoning_tokens), SUM(cost_nano)
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

    dependencies = [
        ('billing', '0020_unequal_receipts'),
    ]

    operations = [
        migrations.CreateModel(
            name='EndUserRollup',
            fields=[
                ('requests', models.BigIntegerField(default=0)),
                ('prompt_tokens', models.BigIntegerField(default=0)),
                ('cached_tokens', models.BigIntegerField(default=0)),
                ('completion_tokens', models.BigIntegerField(default=0)),
                ('reasoning_tokens', models.BigIntegerField(default=0)),
                ('cost_nano', models.BigIntegerField(default=0)),
                ('pk', models.CompositePrimaryKey('organization_id', 'grain_s', 'start', 'end_user', blank=True, editable=False, primary_key=True, serialize=False)),
                ('organization_id', models.BigIntegerField()),
                ('grain_s', models.IntegerField()),
                ('start', models.DateTimeField()),
                ('end_user', models.CharField(blank=True, max_length=256)),
            ],
            options={
                'db_table': 'billing_end_user_rollup',
                'indexes': [models.Index(fields=['start'], name='billing_end_user_rollup_start')],
            },
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
