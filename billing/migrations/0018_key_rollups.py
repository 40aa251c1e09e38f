"""Days of projects and keys alone, made from the days that are rolled up already.

A worker of the version before this one writes no rows of them: start the new one at once, then let
`manage.py rebuild_rollups` make the days on which both ran.
"""

from django.db import migrations, models

# With the lock under which rollups are written, so that none comes between.
FILL = """
SELECT pg_advisory_xact_lock(1919904876);
INSERT INTO billing_key_rollup (organization_id, grain_s, start, project_id, api_key_id, requests, prompt_tokens,
                                cached_tokens, completion_tokens, reasoning_tokens, cost_nano)
SELECT organization_id, grain_s, start, project_id, api_key_id, SUM(requests), SUM(prompt_tokens), SUM(cached_tokens),
       SUM(completion_tokens), SUM(reasoning_tokens), SUM(cost_nano)
  FROM billing_usage_rollup WHERE grain_s = 86400 GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0017_discount_end'),
    ]

    operations = [
        migrations.CreateModel(
            name='KeyRollup',
            fields=[
                ('requests', models.BigIntegerField(default=0)),
                ('prompt_tokens', models.BigIntegerField(default=0)),
                ('cached_tokens', models.BigIntegerField(default=0)),
                ('completion_tokens', models.BigIntegerField(default=0)),
                ('reasoning_tokens', models.BigIntegerField(default=0)),
                ('cost_nano', models.BigIntegerField(default=0)),
                ('pk', models.CompositePrimaryKey('organization_id', 'grain_s', 'start', 'project_id', 'api_key_id', blank=True, editable=False, primary_key=True, serialize=False)),
                ('organization_id', models.BigIntegerField()),
                ('grain_s', models.IntegerField()),
                ('start', models.DateTimeField()),
                ('project_id', models.BigIntegerField()),
                ('api_key_id', models.BigIntegerField()),
            ],
            options={
                'db_table': 'billing_key_rollup',
                'indexes': [models.Index(fields=['start'], name='billing_key_rollup_start')],
            },
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
