"""More token kinds in prices and costs, discounts, the upstream's own statements, closed periods.

PostgreSQL computes `cost_nano`, and Django does not change such a column: it is dropped and made again, which rewrites
the table once.
"""

import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0006_commerce_guards'),
        ('portal', '0005_operations'),
    ]

    operations = [
        migrations.CreateModel(
            name='Discount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=200, unique=True)),
                ('model', models.CharField(blank=True, max_length=200)),
                ('basis_points', models.PositiveIntegerField(help_text='Hundredths of a percent: 1000 is 10 %.')),
                ('effective_from', models.DateTimeField()),
                ('effective_until', models.DateTimeField(blank=True, null=True)),
                ('reason', models.CharField(max_length=300)),
                ('actor_id', models.BigIntegerField(blank=True, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'billing_discount',
            },
        ),
        migrations.CreateModel(
            name='PeriodClose',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('period', models.CharField(help_text='YYYY-MM, in UTC.', max_length=7, unique=True)),
                ('closed_at', models.DateTimeField()),
                ('actor_id', models.BigIntegerField()),
                ('actor_name', models.CharField(max_length=200)),
                ('calls', models.BigIntegerField()),
                ('equal', models.BigIntegerField()),
                ('unmatched', models.BigIntegerField()),
                ('waiver', models.CharField(blank=True, max_length=500)),
            ],
            options={
                'db_table': 'billing_period_close',
            },
        ),
        migrations.CreateModel(
            name='VolumeTier',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('from_tokens', models.BigIntegerField(unique=True)),
                ('basis_points', models.PositiveIntegerField()),
            ],
            options={
                'db_table': 'billing_volume_tier',
                'ordering': ('from_tokens',),
            },
        ),
        migrations.RemoveConstraint(
            model_name='price',
            name='billing_price_not_negative',
        ),
        migrations.RemoveConstraint(
            model_name='usagerecord',
            name='billing_record_counts',
        ),
        migrations.RemoveConstraint(
            model_name='usagerecord',
            name='billing_record_costs',
        ),
        migrations.RemoveConstraint(
            model_name='usagerecord',
            name='billing_record_free_unless_served',
        ),
        migrations.AddField(
            model_name='price',
            name='cache_write_nano',
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='price',
            name='effective_until',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='price',
            name='minimum_nano',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='price',
            name='reasoning_nano',
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='receipt',
            name='upstream_id',
            field=models.CharField(blank=True, db_default='', default='', max_length=200),
        ),
        migrations.AddField(
            model_name='usageadjustment',
            name='cache_write_cost_nano',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='usageadjustment',
            name='cache_write_tokens',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='usageadjustment',
            name='minimum_cost_nano',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='usageadjustment',
            name='reasoning_cost_nano',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='usagerecord',
            name='attempt',
            field=models.PositiveSmallIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name='usagerecord',
            name='cache_write_cost_nano',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='usagerecord',
            name='cache_write_tokens',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='usagerecord',
            name='minimum_cost_nano',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='usagerecord',
            name='reasoning_cost_nano',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='usagerecord',
            name='upstream_id',
            field=models.CharField(blank=True, db_default='', default='', max_length=200),
        ),
        migrations.AlterField(
            model_name='receipt',
            name='sequence',
            field=models.BigIntegerField(null=True),
        ),
        migrations.RemoveField(model_name='usageadjustment', name='cost_nano'),
        migrations.AddField(
            model_name='usageadjustment',
            name='cost_nano',
            field=models.GeneratedField(db_persist=True, expression=django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(models.F('input_cost_nano'), '+', models.F('cached_cost_nano')), '+', models.F('cache_write_cost_nano')), '+', models.F('output_cost_nano')), '+', models.F('reasoning_cost_nano')), '+', models.F('minimum_cost_nano')), output_field=models.BigIntegerField()),
        ),
        migrations.RemoveField(model_name='usagerecord', name='cost_nano'),
        migrations.AddField(
            model_name='usagerecord',
            name='cost_nano',
            field=models.GeneratedField(db_persist=True, expression=django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(models.F('input_cost_nano'), '+', models.F('cached_cost_nano')), '+', models.F('cache_write_cost_nano')), '+', models.F('output_cost_nano')), '+', models.F('reasoning_cost_nano')), '+', models.F('minimum_cost_nano')), output_field=models.BigIntegerField()),
        ),
        migrations.AddConstraint(
            model_name='receipt',
            constraint=models.UniqueConstraint(condition=models.Q(('sequence__isnull', True)), fields=('source', 'request_id'), name='billing_receipt_once_upstream'),
        ),
        migrations.AddConstraint(
            model_name='usagerecord',
            constraint=models.CheckConstraint(condition=models.Q(('cache_write_tokens__gte', 0), ('cached_tokens__gte', 0), ('completion_tokens__gte', models.F('reasoning_tokens')), ('prompt_tokens__gte', django.db.models.expressions.CombinedExpression(models.F('cached_tokens'), '+', models.F('cache_write_tokens'))), ('reasoning_tokens__gte', 0)), name='billing_record_counts'),
        ),
        migrations.AddConstraint(
            model_name='usagerecord',
            constraint=models.CheckConstraint(condition=models.Q(('cache_write_cost_nano__gte', 0), ('cached_cost_nano__gte', 0), ('input_cost_nano__gte', 0), ('minimum_cost_nano__gte', 0), ('output_cost_nano__gte', 0), ('reasoning_cost_nano__gte', 0)), name='billing_record_costs'),
        ),
        migrations.AddConstraint(
            model_name='usagerecord',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ['completed', 'cancelled']), models.Q(('cache_write_cost_nano', 0), ('cached_cost_nano', 0), ('input_cost_nano', 0), ('minimum_cost_nano', 0), ('output_cost_nano', 0), ('reasoning_cost_nano', 0)), _connector='OR'), name='billing_record_free_unless_served'),
        ),
        migrations.AddConstraint(
            model_name='usagerecord',
            constraint=models.CheckConstraint(condition=models.Q(('attempt__gte', 1), ('attempt__lte', 16)), name='billing_record_attempt'),
        ),
        migrations.AddField(
            model_name='discount',
            name='organization',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='portal.organization'),
        ),
        migrations.AddField(
            model_name='price',
            name='discount',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.discount'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('input_nano__gte', 0), ('minimum_nano__gte', 0), ('output_nano__gte', 0), models.Q(('cached_input_nano__isnull', True), ('cached_input_nano__gte', 0), _connector='OR'), models.Q(('cache_write_nano__isnull', True), ('cache_write_nano__gte', 0), _connector='OR'), models.Q(('reasoning_nano__isnull', True), ('reasoning_nano__gte', 0), _connector='OR')), name='billing_price_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('effective_until__isnull', True), ('effective_until__gt', models.F('effective_from')), _connector='OR'), name='billing_price_ends_after_start'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('discount__isnull', True), ('organization__isnull', False), _connector='OR'), name='billing_price_discount_has_organization'),
        ),
        migrations.AddConstraint(
            model_name='periodclose',
            constraint=models.CheckConstraint(condition=models.Q(('unmatched', 0), models.Q(('waiver', ''), _negated=True), _connector='OR'), name='billing_period_close_matched_or_waived'),
        ),
        migrations.AddConstraint(
            model_name='volumetier',
            constraint=models.CheckConstraint(condition=models.Q(('basis_points__gte', 1), ('basis_points__lte', 10000), ('from_tokens__gt', 0)), name='billing_volume_tier_sane'),
        ),
        migrations.AddConstraint(
            model_name='discount',
            constraint=models.CheckConstraint(condition=models.Q(('basis_points__gte', 1), ('basis_points__lte', 10000)), name='billing_discount_within_whole'),
        ),
        migrations.AddConstraint(
            model_name='discount',
            constraint=models.CheckConstraint(condition=models.Q(('effective_until__isnull', True), ('effective_until__gt', models.F('effective_from')), _connector='OR'), name='billing_discount_ends_after_start'),
        ),
    ]
