"""Rollups of usage, and the triggers that note what has ended and is in none of them yet.

The triggers write in the transaction that ends a record or corrects one, so rollups and pending are exact together.
What ended before this migration becomes pending in it.
"""

import django.contrib.postgres.fields
from django.db import migrations, models


MERGE = """
-- Adds two packed histograms: arrays of `slot << 32 | count`, ascending.
CREATE FUNCTION billing_merge_histograms(one bigint[], other bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT COALESCE(array_agg((slot << 32) | hits ORDER BY slot), '{}')
      FROM (SELECT packed >> 32 AS slot, SUM(packed & 4294967295)::bigint AS hits
              FROM unnest(one || other) packed GROUP BY packed >> 32) slots
$$;
"""

PENDING = """
-- Rows live for seconds: without this, a busy table would be mostly dead rows.
ALTER TABLE billing_rollup_pending SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

CREATE FUNCTION billing_note_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_rollup_pending (organization_id, record_id) VALUES (NEW.organization_id, NEW.request_id);
    RETURN NULL;
END $$;
CREATE FUNCTION billing_note_adjusted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_rollup_pending (organization_id, adjustment_id) VALUES (NEW.organization_id, NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER billing_ended AFTER UPDATE OF status ON billing_usage_record
    FOR EACH ROW WHEN (OLD.status = 'started' AND NEW.status <> 'started') EXECUTE FUNCTION billing_note_ended();
CREATE TRIGGER billing_made_ended AFTER INSERT ON billing_usage_record
    FOR EACH ROW WHEN (NEW.status <> 'started') EXECUTE FUNCTION billing_note_ended();
CREATE TRIGGER billing_adjusted AFTER INSERT ON billing_usage_adjustment
    FOR EACH ROW EXECUTE FUNCTION billing_note_adjusted();

INSERT INTO billing_rollup_pending (organization_id, record_id)
SELECT organization_id, request_id FROM billing_usage_record WHERE status <> 'started';
INSERT INTO billing_rollup_pending (organization_id, adjustment_id)
SELECT organization_id, id FROM billing_usage_adjustment;
"""

UNDO = """
DROP TRIGGER billing_adjusted ON billing_usage_adjustment;
DROP TRIGGER billing_made_ended ON billing_usage_record;
DROP TRIGGER billing_ended ON billing_usage_record;
DROP FUNCTION billing_note_adjusted();
DROP FUNCTION billing_note_ended();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0003_pending_and_day_indexes'),
    ]

    operations = [
        migrations.CreateModel(
            name='RollupPending',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('organization_id', models.BigIntegerField(db_index=True)),
                ('record_id', models.UUIDField(null=True)),
                ('adjustment_id', models.BigIntegerField(null=True)),
            ],
            options={
                'db_table': 'billing_rollup_pending',
            },
        ),
        migrations.CreateModel(
            name='ServiceRollup',
            fields=[
                ('requests', models.BigIntegerField(default=0)),
                ('prompt_tokens', models.BigIntegerField(default=0)),
                ('cached_tokens', models.BigIntegerField(default=0)),
                ('completion_tokens', models.BigIntegerField(default=0)),
                ('reasoning_tokens', models.BigIntegerField(default=0)),
                ('cost_nano', models.BigIntegerField(default=0)),
                ('pk', models.CompositePrimaryKey('organization_id', 'grain_s', 'start', 'model', 'deployment_id', blank=True, editable=False, primary_key=True, serialize=False)),
                ('organization_id', models.BigIntegerField()),
                ('grain_s', models.IntegerField()),
                ('start', models.DateTimeField()),
                ('model', models.CharField(max_length=200)),
                ('deployment_id', models.BigIntegerField()),
                ('cancelled', models.BigIntegerField(default=0)),
                ('failed_request', models.BigIntegerField(default=0)),
                ('failed_capacity', models.BigIntegerField(default=0)),
                ('failed_unavailable', models.BigIntegerField(default=0)),
                ('failed_timeout', models.BigIntegerField(default=0)),
                ('failed_engine', models.BigIntegerField(default=0)),
                ('histogram', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), default=list, size=None)),
            ],
            options={
                'db_table': 'billing_service_rollup',
                'indexes': [models.Index(fields=['start'], name='billing_service_rollup_start'), models.Index(condition=models.Q(('grain_s', 60)), fields=['start'], name='billing_service_rollup_minute')],
            },
        ),
        migrations.CreateModel(
            name='UsageRollup',
            fields=[
                ('requests', models.BigIntegerField(default=0)),
                ('prompt_tokens', models.BigIntegerField(default=0)),
                ('cached_tokens', models.BigIntegerField(default=0)),
                ('completion_tokens', models.BigIntegerField(default=0)),
                ('reasoning_tokens', models.BigIntegerField(default=0)),
                ('cost_nano', models.BigIntegerField(default=0)),
                ('pk', models.CompositePrimaryKey('organization_id', 'grain_s', 'start', 'project_id', 'api_key_id', 'model', 'protocol', 'status', blank=True, editable=False, primary_key=True, serialize=False)),
                ('organization_id', models.BigIntegerField()),
                ('grain_s', models.IntegerField()),
                ('start', models.DateTimeField()),
                ('project_id', models.BigIntegerField()),
                ('api_key_id', models.BigIntegerField()),
                ('model', models.CharField(max_length=200)),
                ('protocol', models.CharField(max_length=40)),
                ('status', models.CharField(max_length=10)),
            ],
            options={
                'db_table': 'billing_usage_rollup',
                'indexes': [models.Index(fields=['start'], name='billing_usage_rollup_start')],
            },
        ),
        migrations.RunSQL(MERGE, "DROP FUNCTION billing_merge_histograms(bigint[], bigint[])"),
        migrations.RunSQL(PENDING, UNDO),
    ]
